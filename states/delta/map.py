"""The backing map over one Delta table: an index of the newest rows in memory, a Delta transaction per commit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from states.delta.change_table import ABSENT, ChangeTable, VersionMoved
from states.delta.commit_notes import RESET, CommitNote
from states.delta.fence import check_claim, moved_by_compactions, newest_sentinel, overtaken
from states.delta.layout import Layout, RawKey, RawValue
from states.delta.maintenance import Maintenance
from states.delta.options import DeltaOptions
from trident.errors import StateError, UnsupportedOperation
from trident.redaction import redacted
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.txid import Sentinel, Txid

__all__ = ["DeltaBackingMap"]

_COMMIT_TRIES = 5
_FILTERED_KEYS = 20_000  # beyond this many keys, reading all rows is faster


class DeltaBackingMap:
    """The key-value store in one Delta table: a backing map that keeps its own sentinel. Used by one thread at a time.

    Within `begin` … `end` puts and deletions are collected and become one Delta version at `end`; outside, each `multi_put`
    and `multi_delete` is a version of its own.

    Parameters
    ----------
    path
        Directory or object store URI of the table.
    kind
        Decides the value columns and what `multi_get` returns: `OpaqueValue`, `TransactionalValue` or bare values.
    conf
        Types of keys and value; `read_only`.
    partition
        Number of the state partition.
    options
        See `DeltaOptions`.
    """

    commits_atomically = True  # no seal: rows and sentinel are one Delta transaction
    gives_copies = True  # each read decodes or copies values for this very call

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        options = DeltaOptions() if options is None else options
        self._layout = Layout(kind, conf)
        self._what = f"state {conf.state!r} partition {partition} in {redacted(os.fspath(path))}"
        self._app = f"trident/{conf.prefix}/{partition}"
        self._read_only = conf.read_only
        self._table = ChangeTable(
            os.fspath(path), self._layout.schemas, self._layout.description, options, self._read_only
        )
        self._maintenance = Maintenance(self._table, self._layout, options, self._what)
        # The index: the latest rows and the sentinel of version `_loaded`; None if they are of no version.
        self._index: dict[RawKey, RawValue] = {}
        self._sentinel: Sentinel | None = None
        self._seq = 0
        self._loaded: int | None = None
        self._seen: tuple[Sentinel | None] | None = (
            None  # what this instance read or wrote last; None: it has not read it yet
        )
        # The commit: its claim, whether it began, and its puts.
        self._claim: Sentinel | None = None
        self._begun = False
        self._puts: dict[RawKey, RawValue] = {}
        # Of a read-only instance: its answers, and its sentinel if it was read, of the version `_answered`.
        self._answers: dict[RawKey, RawValue | None] = {}
        self._found: tuple[Sentinel | None] | None = None
        self._answered: tuple[int, int] | None = None

    # ---- IBackingMap, RemovableMap, ListableMap -------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: in a commit as of the version it is based on and with its own puts, else the newest."""
        raw = self._layout.pack_keys(keys)
        if self._read_only:
            return self._layout.unpack_values(self._look_up(raw))
        self._load_if_free()
        puts, index = self._puts, self._index
        return self._layout.unpack_values(puts[key] if key in puts else index.get(key) for key in raw)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many keys: in a commit collected until `end`, else made durable at once as a version of its own."""
        self._refuse_read_only("write")
        puts = dict(zip(self._layout.pack_keys(keys), self._layout.pack_values(values), strict=True))
        self._collect_or_commit(puts)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys, as `multi_put` writes them; absent keys and keys that the same commit puts stay as they are."""
        self._refuse_read_only("delete")
        self._load_if_free()
        raw, index = self._layout.pack_keys(keys), self._index
        self._collect_or_commit({key: self._layout.deleted for key in raw if key in index and key not in self._puts})

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of the newest version, in a single page."""
        if self._read_only:
            self._look_up_all()
            values: Mapping[RawKey, RawValue | None] = self._answers
        else:
            self._load_if_free()
            values = self._index | self._puts
        deleted = self._layout.deleted
        yield [self._layout.unpack_key(key) for key, raw in values.items() if raw is not None and raw is not deleted]

    # ---- BackingMapLifecycle --------------------------------------------------------------------------------------

    def begin(self, txid: Txid) -> None:
        """Start a commit on the version that `move_sentinel` compared the sentinel in, or on the newest."""
        self._refuse_read_only("begin a commit")
        if self._claim is None or self._claim != txid.sentinel:
            self._drop_commit()
            self._create_and_load()
        self._puts, self._begun = {}, True

    def end(self, txid: Txid) -> None:
        """Commit the puts and the sentinel as one Delta version.

        Raises
        ------
        FencedError
            A higher attempt has committed since `begin`. Nothing was written.
        BackendError
            Something else than a compaction has committed since `begin` (nothing was written), or the store refused;
            the batch may be replayed with a higher attempt.
        """
        if not self._begun:
            raise StateError(f"end of batch {int(txid)} in {self._what} without its begin")
        try:
            if self._puts or self._claim is not None:
                self._commit(self._puts, self._claim, CommitNote.of_commit(txid))
        finally:
            self._drop_commit()

    # ---- FencedMap, Resettable ------------------------------------------------------------------------------------

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of the newest version, None if there is none; voids an unfinished commit."""
        self._drop_commit()
        try:
            found = self._newest_sentinel()
        except StateError:
            # The comparison of sentinels will show whether the torn end of the table was ever acknowledged.
            if not self._table.step_back():
                raise
            found = self._newest_sentinel()
        self._seen = (found,)
        return found

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Claim the partition for the commit that `begin` starts next; `force` writes the sentinel at once.

        The sentinel of the newest version must be what this instance read or wrote last. The commit is based on this version,
        and its `end` stores the claim in the version after it or fails.
        """
        self._refuse_read_only("move the sentinel")
        self._drop_commit()
        self._table.mend()
        self._load()
        self._seen = self._seen or (self._sentinel,)
        check_claim(self._what, sentinel, self._sentinel, self._seen[0], force)
        if self._loaded == ABSENT:
            self._create_and_load()
            check_claim(self._what, sentinel, self._sentinel, self._seen[0], force)
        if force:
            self._commit({}, sentinel, CommitNote.of_sentinel(sentinel))
        else:
            self._claim = sentinel

    def reset(self) -> None:
        """Empty the table, sentinel included, in one transaction."""
        self._refuse_read_only("empty the table")
        self._maintenance.close()
        self._drop_commit()
        self._table.mend()
        if self._table.refresh() != ABSENT:
            self._loaded = None
            nothing, app = self._layout.table([], [], 0, None), (f"{self._app}/reset", self._table.version)
            try:
                self._table.commit(nothing, 0, "overwrite", app, {RESET: "true"})
            except VersionMoved as moved:
                raise self._overtaken(None) from moved
            self._load()
        self._seen = (None,)

    # ---- the rest -------------------------------------------------------------------------------------------------

    def wait_for_maintenance(self) -> None:
        """Return once no compaction is running."""
        self._maintenance.wait()

    def close(self) -> None:
        """Forget the index and the puts of an unfinished commit; wait for a running compaction."""
        self._maintenance.close()
        self._drop_commit()
        self._forget()

    def _collect_or_commit(self, puts: dict[RawKey, RawValue]) -> None:
        if self._begun:
            self._puts.update(puts)
        elif puts:
            if self._claim is None:
                self._create_and_load()
            self._commit(puts, self._claim, None if self._claim is None else CommitNote.of_sentinel(self._claim))

    def _commit(self, puts: Mapping[RawKey, RawValue], sentinel: Sentinel | None, note: CommitNote | None) -> None:
        notes = {} if note is None else note.metadata()
        tries = _COMMIT_TRIES
        while not self._try_commit(puts, sentinel, notes):
            tries -= 1
            if not tries or not self._moved_by_compactions():
                self._forget()
                raise self._overtaken(sentinel)
        # After the store, never before it, because a failed commit must not look written.
        self._take_over(puts)
        self._sentinel, self._loaded = sentinel or self._sentinel, self._table.version
        self._seen = (self._sentinel,)
        self._maintenance.after_commit()

    def _try_commit(self, puts: Mapping[RawKey, RawValue], sentinel: Sentinel | None, notes: Mapping[str, str]) -> bool:
        # The version alone would do as a number, except for rows that were copied from a table of higher versions, or
        # added by hand.
        seq = max(self._seq, self._table.version) + 1
        rows = self._layout.table(list(puts), list(puts.values()), seq, sentinel)
        app = (f"{self._app}/rows", seq) if sentinel is None else (self._app, sentinel.version)
        try:
            self._table.commit(rows, seq, "append", app, notes)
        except VersionMoved:
            return False
        except Exception:
            self._forget()
            raise
        self._seq = seq
        return True

    def _take_over(self, puts: Mapping[RawKey, RawValue]) -> None:
        index, deleted = self._index, self._layout.deleted
        index.update(puts)
        for key in [key for key, raw in puts.items() if raw is deleted]:
            del index[key]

    def _overtaken(self, own: Sentinel | None) -> Exception:
        self._drop_commit()
        (seen,) = self._seen or (None,)
        return overtaken(self._what, own, self._newest_sentinel(), seen, self._table.version)

    # ---- the index ------------------------------------------------------------------------------------------------

    def _newest_sentinel(self) -> Sentinel | None:
        if self._read_only:
            self._follow()
            if self._found is None:
                at, found = self._table.version, newest_sentinel(self._table)
                if self._table.version != at:  # the files of that version are gone
                    return self._newest_sentinel()
                self._found = (found,)
            return self._found[0]
        self._load()
        return self._sentinel

    def _create_and_load(self) -> None:
        self._table.mend()
        self._load()
        if self._loaded == ABSENT:
            self._table.create()
            self._load()

    def _load(self) -> None:
        if self._table.refresh() == self._loaded or self._moved_by_compactions():
            return
        self._loaded = None
        rows = self._layout.rows(self._table.scan())
        self._index, self._sentinel, self._seq, self._loaded = rows.values, rows.sentinel, rows.seq, self._table.version
        pa.default_memory_pool().release_unused()  # Arrow's read took as much memory as the index, and is done
        self._maintenance.opened(len(self._table.files()))

    def _load_if_free(self) -> None:
        # A claim belongs to the version that it was compared in, so the version must not change before its commit.
        if self._claim is None and not self._begun:
            self._load()

    def _moved_by_compactions(self) -> bool:
        """Move the index to the newest version, if there were only compactions since, which change no content."""
        if self._loaded in (None, ABSENT) or not moved_by_compactions(self._table, self._loaded):
            return False
        self._loaded = self._table.version
        return True

    def _look_up(self, raw: list[RawKey]) -> list[RawValue | None]:
        self._follow()
        missing = list(dict.fromkeys(key for key in raw if key not in self._answers))
        if missing and self._table.version != ABSENT:
            at = self._table.version
            few = len(missing) <= _FILTERED_KEYS
            found = self._layout.rows(self._table.scan(self._layout.key_filter(missing) if few else None)).values
            if (
                self._table.version != at
            ):  # the files of that version are gone, so all answers must come from the newer one
                return self._look_up(raw)
            self._answers.update((key, found.get(key)) for key in missing)
        return [self._answers.get(key) for key in raw]

    def _look_up_all(self) -> None:
        self._follow()
        at, rows = self._table.version, self._layout.rows(self._table.scan())
        if self._table.version != at:
            self._look_up_all()
            return
        self._answers = dict(rows.values)

    def _follow(self) -> None:
        """Move to the newest version; forget what was read of another version, or of another table in its place."""
        self._table.refresh()
        found = self._table.identity()
        if found != self._answered:
            if self._answered is not None and found[0] == self._answered[0]:
                self._table.forget()
                self._table.refresh()
            self._answers, self._found, self._answered = {}, None, self._table.identity()

    def _drop_commit(self) -> None:
        self._claim, self._begun, self._puts = None, False, {}

    def _forget(self) -> None:
        self._index, self._sentinel, self._loaded = {}, None, None
        self._answers, self._found, self._answered = {}, None, None
        self._table.forget()

    def _refuse_read_only(self, doing: str) -> None:
        if self._read_only:
            raise UnsupportedOperation(f"cannot {doing}: {self._what} was opened to be read only")
