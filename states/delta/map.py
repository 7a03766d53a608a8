"""The backing map over one Delta table: an index of the newest values in memory, a Delta transaction per commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from states.delta.beyond_memory.base_table import TRIMMED
from states.delta.change_table import ABSENT, VersionMoved
from states.delta.commit_notes import RESET, CommitNote
from states.delta.fence import overtaken
from states.delta.layout import RawKey, RawValue
from states.delta.map_publishing import DeltaPublishing
from states.delta.puts import Puts, commit_puts
from trident.errors import StateError
from trident.state.backing_map import MapFacts
from trident.state.columns.number_columns import NumberColumns
from trident.state.interfaces import Key
from trident.state.txid import Sentinel, Txid
from trident.storekit import check_move

__all__ = ["DeltaBackingMap"]


class DeltaBackingMap(DeltaPublishing):
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

    # Each read decodes or copies values for this very call; no seal, because rows and sentinel are one Delta transaction.
    facts = MapFacts(commits_atomically=True, gives_copies=True, keeps_columns=True)

    # ---- puts and deletions --------------------------------------------------------------------

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many keys: in a commit collected until `end`, else made durable at once as a version of its own."""
        self._refuse_read_only("write")
        self._collect_or_commit(dict(zip(self._layout.pack_keys(keys), self._layout.pack_values(values), strict=True)))

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys, as `multi_put` writes them; absent keys and keys that the same commit puts stay as they are."""
        self._refuse_read_only("delete")
        self._load_if_free()
        raw = self._layout.pack_keys(keys)
        there = [key for key, found in zip(raw, self._index.values.get(raw), strict=True) if found is not None]
        puts = self._puts.as_rows()
        self._collect_or_commit({key: self._layout.deleted for key in there if key not in puts})

    def multi_get_columns(self, parts: Sequence[Sequence[Any]]) -> NumberColumns | None:
        """Read keys as columns; None if the values are no opaque numbers, or another put of the commit came first."""
        if not self._layout.takes_columns or self._puts:
            return None
        self._load_if_free()
        return self._index.values.find(parts)

    def multi_put_columns(self, found: NumberColumns, new: NumberColumns) -> None:
        """Write columns: collected until `end`."""
        self._refuse_read_only("write")
        if not self._begun:
            raise StateError(f"columns are put to {self._what} outside of a commit")
        self._puts.put_columns(found, new)

    # ---- commits --------------------------------------------------------------------------------------

    def begin(self, txid: Txid) -> None:
        """Start a commit on the version that `move_sentinel` compared the sentinel in, or on the newest."""
        self._refuse_read_only("begin a commit")
        if self._claim is None or self._claim != txid.sentinel:
            self._drop_commit()
            self._create_and_load()
        self._prepare(txid)
        self._puts, self._begun = Puts(self._layout), True

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
                self._publish_newest(txid)
        finally:
            self._drop_commit()

    # ---- the sentinel ------------------------------------------------------------------------------------

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
        self._seen = self._seen or (self._index.sentinel,)
        check_move(self._what, sentinel, self._index.sentinel, self._seen[0], force)
        if self._index.version == ABSENT:
            self._create_and_load()
            check_move(self._what, sentinel, self._index.sentinel, self._seen[0], force)
        if force:
            self._commit(Puts(self._layout), sentinel, CommitNote.of_sentinel(sentinel))
        else:
            self._claim = sentinel

    def reset(self) -> None:
        """Empty the table, sentinel included, in one transaction."""
        self._refuse_read_only("empty the table")
        self._maintenance.close()
        self._publisher.forget()
        self._beyond.wait()
        self._maintenance.merged = None
        self._drop_commit()
        self._table.mend()
        if self._table.refresh() != ABSENT:
            self._index.version = None
            nothing, app = self._layout.table([], [], 0, None), (f"{self._app}/reset", self._table.version)
            try:
                self._table.commit(nothing, 0, "overwrite", app, {RESET: "true"}, (TRIMMED, -1))
            except VersionMoved as moved:
                raise self._overtaken(None) from moved
            self._load()
            self._publisher.clear()
        self._seen = (None,)

    def _prepare(self, txid: Txid) -> None:
        """Keep the state in files if it has grown too large, and publish what the commit is based on."""
        if not self._grow(txid):
            raise self._overtaken(self._claim)
        self._publish_before(txid)

    # ---- the rest -------------------------------------------------------------------------------------------------

    def wait_for_maintenance(self) -> None:
        """Return once no compaction is running, and what may be published is."""
        self._maintenance.wait()
        self._finish_publishing()

    def close(self) -> None:
        """Forget the index and the puts of an unfinished commit; wait for a running compaction, and publish."""
        self._maintenance.close()
        self._finish_publishing()
        self._drop_commit()
        self._forget()

    def _collect_or_commit(self, rows: dict[RawKey, RawValue]) -> None:
        if self._begun:
            self._puts.put(rows)
        elif rows:
            if self._claim is None:
                self._create_and_load()
            note = None if self._claim is None else CommitNote.of_sentinel(self._claim)
            self._commit(Puts(self._layout, rows), self._claim, note)
            self._publish_newest()

    def _commit(self, puts: Puts, sentinel: Sentinel | None, note: CommitNote | None) -> None:
        notes = {} if note is None else note.metadata()
        try:
            is_written = commit_puts(puts, self._table, self._index, self._app, sentinel, notes)
        except Exception:
            self._forget()
            raise
        if not is_written:
            self._forget()
            raise self._overtaken(sentinel)
        self._seen = (self._index.sentinel,)
        self._maintenance.after_commit()

    def _overtaken(self, own: Sentinel | None) -> Exception:
        self._drop_commit()
        (seen,) = self._seen or (None,)
        return overtaken(self._what, own, self._newest_sentinel(), seen, self._table.version)

    def _create_and_load(self) -> None:
        self._table.mend()
        self._load()
        if self._index.version == ABSENT:
            self._publisher.create()  # first, because a state whose changes are inside no table would be torn
            self._table.create()
            self._load()
