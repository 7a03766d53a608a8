"""The backing map over one Delta table: an index of the newest values in memory, a Delta transaction per commit."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from states.delta.faults import VersionMoved
from states.delta.fence import RESET, CommitNote, newest_sentinel
from states.delta.index import Index, Reader
from states.delta.layout import Puts, RawKey, RawValue
from states.delta.options import DeltaOptions
from states.delta.publishing import Publishing
from states.delta.staging import Staged, Staging
from states.delta.state_table import ABSENT
from states.delta.state_tables import NOTHING, TRIMMED, StateTables
from states.delta.upkeep import Expiry, Maintenance
from trident.errors import BackendError, StateError
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.serializers import apply_by_key
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.table import KeyColumns, OpaqueTable
from trident.state.txid import Sentinel, Snapshot, Txid
from trident.storekit import check_move, displaced, refuse_read_only


class DeltaBackingMap(BackingMap):
    """The key-value store in one Delta table: a backing map that keeps its own sentinel. Used by one thread at a time.

    Within `begin` … `end` puts and deletions are collected and become one Delta version at `end`; outside, each `multi_put`
    and `multi_delete` is a version of its own. Parameters as of `DeltaState`; `kind` decides the value columns and what
    `multi_get` returns: `OpaqueValue`, `TransactionalValue` or bare values.
    """

    # Each read decodes or copies values for this very call; no seal, because rows and sentinel are one Delta transaction.
    facts = MapFacts(commits_atomically=True, gives_copies=True, keeps_columns=True, has_typed_columns=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        self.tables = tables = StateTables(path, kind, conf, partition, options)
        self._layout, self._what, self._app, self._table = tables.layout, tables.what, tables.app, tables.changes
        self._index = Index(tables)
        self._maintenance = Maintenance(tables, self._index)
        self._reader = Reader(tables) if conf is not None and conf.read_only else None
        self._publishing = Publishing(tables, self._index, self._maintenance)
        self.staging = Staging(tables, partition)
        self._evolves, self._expires = tables.evolves, tables.options.ttl_s is not None
        self._expiry = Expiry(tables)
        self._seen: tuple[Sentinel | None] | None = None  # what was read or written last; None: it was not read yet
        # The commit: its claim, whether it began, and its puts.
        self._claim: Sentinel | None = None
        self._begun = False
        self._puts: Puts = {}

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: in a commit as of the version it is based on and with its own puts, else the newest."""
        raw = self._layout.pack_keys(keys)
        if self._reader is not None:
            return self._layout.unpack_values(self._reader.get(raw))
        self._load_if_free()
        found, puts = self._index.values.get(raw), self._rows()
        return self._layout.unpack_values(map(puts.get, raw, found) if puts else found)

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read keys as columns; None if the values are no opaque numbers, or another put of the commit came first."""
        if not self._layout.takes_columns or self._puts or self._reader is not None:
            return None
        self._load_if_free()
        return self._index.values.find(keys if isinstance(keys, KeyColumns) else self._layout.pack_keys(keys))

    def key_pages(self) -> Iterator[Sequence[Key]]:
        if self._reader is not None:
            yield from ([self._layout.unpack_key(key) for key in page] for page in self._reader.key_pages())
            return
        self._load_if_free()
        puts, deleted = self._rows(), self._layout.deleted
        for page in self._index.values.key_pages():
            yield [self._layout.unpack_key(key) for key in page if key not in puts]
        yield [self._layout.unpack_key(key) for key, raw in puts.items() if raw is not deleted]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self._refuse_read_only("write")
        if isinstance(values, OpaqueTable) and values.place is not None:
            if not self._begun:
                raise StateError(f"columns are put to {self._what} outside of a commit")
            assert not self._puts, "columns come first"
            self._puts = values
            return
        raw, pack = self._layout.pack_keys(keys), self._layout.pack_values
        packed = apply_by_key("write", keys, values, lambda value: pack([value])[0], pack)
        self._collect_or_commit(dict(zip(raw, packed, strict=True)))

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys, as `multi_put` writes them; absent keys and keys that the same commit puts stay as they are."""
        self._refuse_read_only("delete")
        self._load_if_free()
        raw = self._layout.pack_keys(keys)
        there = [key for key, found in zip(raw, self._index.values.get(raw), strict=True) if found is not None]
        puts = self._rows()
        self._collect_or_commit({key: self._layout.deleted for key in there if key not in puts})

    def begin(self, txid: Txid) -> None:
        """Start a commit on the version that `move_sentinel` compared the sentinel in, or on the newest."""
        self._refuse_read_only("begin a commit")
        if self._claim is None or self._claim != txid.sentinel:
            self._drop_commit()
            self._create_and_load()
        found = self._index.sentinel
        if txid.run and self._claim is not None:  # in a task; its driver publishes
            self.staging.begin(self._claim, txid)
            self._index.follow_base()
        else:
            self._publishing.before(txid, found)
        if self._index.sentinel != found:  # another writer has committed meanwhile
            raise self._overtaken_error(self._claim)
        self._puts, self._begun = {}, True

    def end(self, txid: Txid) -> None:
        """Commit, or stage, the puts and the sentinel as one Delta version, or nothing.

        Raises
        ------
        FencedError
            A higher attempt has committed since `begin`.
        BackendError
            Something else than a compaction has committed since, or the store refused; the batch may be replayed with a
            higher attempt.
        """
        is_staged = self.staging.is_on
        if not self._begun or (is_staged and self._claim is None):
            log = ", or without a log" if is_staged else ""
            raise StateError(f"end of batch {int(txid)} in {self._what} without its begin{log}")
        try:
            self._delete_expired(is_staged)
            if is_staged and self._claim is not None:
                self.staging.stage(self._index, self._puts, self._claim)
            elif self._puts or self._claim is not None:
                self._commit(self._puts, self._claim, CommitNote.of_commit(txid))
                if self._claim is not None:
                    self.staging.discard_before(self._claim)
                if txid.incarnation is None:
                    self._publishing.without_log()
        finally:
            self._drop_commit()

    def publish(self, own: Sentinel, txid: Txid, staged: bytes) -> None:
        """Commit, in the driver, what a task staged for this attempt, whose sentinel was read before; raise as `end` does."""
        (found,) = self._seen or (None,)
        check_move(self._what, own, found, found)
        self._index.let_go()
        self._publishing.before(txid, found)
        file = Staged.from_bytes(staged)
        self._table.refresh()
        self._write(lambda: self.staging.publish(own, txid, file, *self._expiry.mark(file.seq)), own)
        self._seen = (own,)
        self._maintenance.after_commit()
        self.staging.discard(own.incarnation, own.attempt)

    def publish_snapshot(self, snapshot: Snapshot) -> None:
        """Delete what earlier drivers left; then publish the state after a batch that the log holds."""
        if self._reader is None:
            self.staging.discard_all(once=True)
            if self._seen is not None and self._seen[0] is not None:
                self._publishing.try_publish(snapshot, self._seen[0])

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of the newest version, None if there is none; voids an unfinished commit."""
        self._drop_commit()
        try:
            found = self._sentinel_alone()
        except StateError:
            # The comparison of sentinels will show whether the torn end of the table was ever acknowledged.
            if not self._table.step_back():
                raise
            found = self._sentinel_alone()
        if self._expires and self._seen is None and self._reader is None:
            self._index.look()  # which refuses a base, at the start already
        self._seen = (found,)
        return found

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Claim the partition for the commit that `begin` starts next, on the version in which the sentinel was compared.

        `force` writes the sentinel at once.
        """
        self._refuse_read_only("move the sentinel")
        self._drop_commit()
        self._table.mend()
        if self._evolves and self._table.refresh() != ABSENT:
            try:
                self._table.cover()
            except VersionMoved as moved:
                raise self._overtaken_error(None) from moved
            self._evolves = False  # once
        self._index.load()
        self._seen = self._seen or (self._index.sentinel,)
        check_move(self._what, sentinel, self._index.sentinel, self._seen[0], force)
        if self._index.sentinel is None:  # the state is empty, whatever base its lost changes had
            self._publishing.clear(base_only=True)
        if self._index.version == ABSENT:
            self._create_and_load()
            check_move(self._what, sentinel, self._index.sentinel, self._seen[0], force)
        if force:
            self._commit({}, sentinel, CommitNote.of_sentinel(sentinel))
        else:
            self._claim = sentinel

    def reset(self) -> None:
        self._refuse_read_only("empty the table")
        self._maintenance.close()
        self._publishing.forget()
        self._drop_commit()
        self._table.mend()
        if self._table.refresh() != ABSENT:
            self._index.forget()
            app = f"{self._app}/reset", self._table.version
            try:
                self._table.append([], "overwrite", app, {RESET: "true"}, (TRIMMED, NOTHING))
            except VersionMoved as moved:
                raise self._overtaken_error(None) from moved
            self._index.load()
            self._publishing.clear()
        self._seen = (None,)
        self.staging.discard_all()

    def wait_for_maintenance(self) -> None:
        """Return once no compaction is running, and what may be published is."""
        self._maintenance.wait()
        self._publishing.finish()

    def close(self) -> None:
        """Forget the index and the puts of an unfinished commit; wait for a running compaction, and publish."""
        self._maintenance.close()
        self._publishing.finish()
        self._drop_commit()
        self._forget()

    def _rows(self) -> dict[RawKey, RawValue]:
        """Return the puts of the commit by raw key; the last one of a key counts."""
        if isinstance(self._puts, OpaqueTable):
            self._puts = self._layout.raw_rows(self._puts)
        return self._puts

    def _collect_or_commit(self, rows: dict[RawKey, RawValue]) -> None:
        if self._begun:
            self._rows().update(rows)
        elif rows:
            if self._claim is None:
                self._create_and_load()
            note = None if self._claim is None else CommitNote.of_sentinel(self._claim)
            self._commit(rows, self._claim, note)
            self._publishing.without_log()

    def _delete_expired(self, is_staged: bool) -> None:
        """Put a deletion of each row that has expired, and is not written by this commit."""
        if is_staged:
            self._expiry.follow()
        if keys := self._expiry.expired_keys():
            puts = self._rows()
            puts.update({key: self._layout.deleted for key in keys if key not in puts})

    def _commit(self, puts: Puts, sentinel: Sentinel | None, note: CommitNote | None) -> None:
        notes = {} if note is None else note.metadata()
        mark = self._expiry.mark(self._index.next_seq)
        self._write(lambda: self._index.commit(puts, self._app, sentinel, notes, *mark), sentinel)
        self._seen = (self._index.sentinel,)
        self._maintenance.after_commit()

    def _write(self, version: Callable[[], bool], own: Sentinel | None) -> None:
        """Make a version by a call that returns False if another writer has committed meanwhile."""
        try:
            is_written = version()
        except Exception:
            self._forget()
            raise
        if not is_written:
            self._forget()
            raise self._overtaken_error(own)

    def _overtaken_error(self, own: Sentinel | None) -> Exception:
        """Return the error of a commit that was refused because another writer has committed."""
        self._drop_commit()
        (seen,) = self._seen or (None,)
        self._index.load()
        found = self._index.sentinel
        if own is not None and found != seen:
            return displaced(self._what, own, found, seen)
        writer = "another writer" if own is None else f"the writer of {own}"
        return BackendError(
            f"commit of {writer} to {self._what} was refused: version {self._table.version} was committed meanwhile, its "
            f"sentinel is {found}. Nothing was written; the batch may be replayed"
        )

    def _sentinel_alone(self) -> Sentinel | None:
        """Return the newest sentinel without reading the rows, which a start does not need."""
        if self._reader is not None:
            return self._reader.sentinel()
        if self._index.version in (None, ABSENT):
            self._table.refresh()
            return newest_sentinel(self._table)
        self._index.load()
        return self._index.sentinel

    def _create_and_load(self) -> None:
        self._table.mend()
        self._index.load()
        if self._index.version == ABSENT:
            self._publishing.create()  # first, because a state whose changes are inside no table would be torn
            self._table.create()
            self._index.load()

    def _load_if_free(self) -> None:
        # A claim belongs to the version that it was compared in, so the version must not change before its commit.
        if self._claim is None and not self._begun:
            self._index.load()

    def _drop_commit(self) -> None:
        self._claim, self._begun, self._puts = None, False, {}

    def _forget(self) -> None:
        self._index.forget()
        self._expiry.forget()
        if self._reader is not None:
            self._reader.forget()
        self._table.forget()

    def _refuse_read_only(self, doing: str) -> None:
        refuse_read_only(self._reader is not None, doing, self._what)
