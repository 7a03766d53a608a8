"""The table at the path of a state, which people read: a Delta version for each state that it shows.

While the state fits into memory its rows are written whole, and nothing depends on them: they are made from the changes, and
made again if they are missing, damaged or changed by another program. Beyond memory they are the *base*, in buckets: it holds
all changes up to one `_seq`, which is the version of a Delta transaction of it; no changes above are in it, and those up to
there need not be anywhere else.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.bucket_files import ATTEMPT, BucketFile
from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.data_files import added
from states.delta.faults import VersionMoved
from states.delta.fence import newest_sentinel
from states.delta.layout import SEQ_COLUMN, DeltaLayout
from states.delta.state_table import ABSENT, StateTable
from trident.errors import StateError, TridentError
from trident.state.txid import Sentinel, Snapshot

_LOGGER = logging.getLogger(__name__)

TRIMMED = "trident/trimmed"
"""The transaction of the change table whose version is the highest `_seq` that it need not hold."""

_SHOWN, _BATCH = "trident.shown", "trident.batch"
_LOOKED_AT = 20  # versions; other programs may have added some of the last ones
_MERGED, _MERGED_BATCH = "trident/merged", "trident/merged-batch"
_FILES = "trident/files"  # its version says whether the files are still the ones of our last commit
_NOTHING = -1
_RUNS_PER_CHECKPOINT = 32


class Shown(NamedTuple):
    """What a version of the published table shows.

    `txid`: the last batch that was committed then.
    `sentinel`: the last commit that touched the state; None without a log.
    `version`: the version of the change table.
    """

    txid: int
    sentinel: Sentinel | None
    version: int

    def metadata(self, name: str) -> dict[str, str]:
        """Return what the Delta commit notes; `userMetadata` is what Spark's DESCRIBE HISTORY shows."""
        batch = "the newest writes" if self.sentinel is None else f"batch {self.txid}"
        own = None if self.sentinel is None else self.sentinel[:3]
        note = {_SHOWN: json.dumps([self.txid, own, self.version]), "userMetadata": f"{batch} of {name}"}
        return note if self.sentinel is None else {**note, _BATCH: str(self.txid)}

    @staticmethod
    def of(note: str) -> Shown:
        """Return what a commit noted."""
        txid, own, version = json.loads(note)
        return Shown(txid, None if own is None else Sentinel(*own), version)

    def is_same(self, other: Shown) -> bool:
        """Tell whether both show the same state."""
        if self.sentinel is None or other.sentinel is None:
            return self.sentinel is other.sentinel and self.version == other.version
        return self.sentinel == other.sentinel

    def is_later(self, other: Shown) -> bool:
        """Tell whether this comes after the other, in the same log."""
        if self.sentinel is None or other.sentinel is None:
            return False
        return (
            self.sentinel.incarnation == other.sentinel.incarnation and self.sentinel.version > other.sentinel.version
        )


class Due(NamedTuple):
    """A state that is to be published: what it shows, and who won its batches."""

    shown: Shown
    snapshot: Snapshot


class Holds(NamedTuple):
    """What a base holds: all changes up to a `_seq`, as of a committed batch."""

    seq: int
    batch: int


class PublishedTable:
    """The table at the path of a state. What moves on to another version of it does so by `table`.

    `table`: the table, in the role of `AT_PATH`.
    `name`: of the state.
    """

    def __init__(self, table: StateTable, name: str) -> None:
        self.table, self._name, self._runs = table, name, 0

    def shown(self) -> Shown | None:
        """Return what the version last seen shows; None if that is not known, or the columns are others."""
        if self.table.version == ABSENT or not self.table.has_columns():
            return None
        notes = (entry[_SHOWN] for entry in self.table.notes(_LOOKED_AT) if _SHOWN in entry)
        return next(map(Shown.of, notes), None)

    def version_of(self, txid: int, version: int) -> int | None:
        """Return the last version that shows no later batch, and no later version of the changes; None if there is none."""
        for entry in self.table.notes():
            shown = Shown.of(entry[_SHOWN]) if _SHOWN in entry else None
            if shown is not None and shown.txid <= txid and shown.version <= version:
                return int(entry["version"])
        return None

    def show(self, rows: pa.Table, shown: Shown) -> None:
        """Replace all rows, as the version after the one last seen; raise `VersionMoved` if that is taken."""
        self.table.commit(rows, 0, "overwrite", self._app(shown), shown.metadata(self._name))

    # ---- beyond memory --------------------------------------------------------------------------------------------

    def holds(self) -> Holds | None:
        """Return what the version last seen holds; None if it is only derived from the changes."""
        if self.table.version == ABSENT:
            return None
        seq, batch = self.table.transaction(_MERGED), self.table.transaction(_MERGED_BATCH)
        return None if seq is None or seq == _NOTHING else Holds(seq, batch or 0)

    def base(self, files: Iterable[BucketFile] | None = None) -> BucketedBase:
        """Return the rows of the version last seen, or of some files.

        Raises `StateError`: another program has changed the table.
        """
        files, schema = self._own_files() if files is None else files, self.table.schema
        return BucketedBase(list(files), schema.append(ATTEMPT), schema.names[:-1], self.table.filesystem())

    def index(self, layout: DeltaLayout, changes: Iterable[pa.Table] = ()) -> LargeIndex | None:
        """Return the base of the version last seen, and over it what later rows of some tables change; None without one.

        `changes`: rows of the change table, in the order of `_seq`.
        """
        holds = self.holds()
        if holds is None:
            return None
        index = LargeIndex(layout, self.base(), holds.batch)
        for rows in changes:
            index.load(rows.filter(pc.greater(rows[SEQ_COLUMN], holds.seq)))
        return index

    def move(self, before: BucketedBase | None, after: BucketedBase, holds: Holds, shown: Shown) -> None:
        """Replace the files of one base by another's, as the version after the one last seen.

        All rows, if there was none before, or the table has other columns: it gets those of this declaration.
        """
        from deltalake.transaction import RemoveAction

        gone, new = set[BucketFile]() if before is None else {*before.files}, {*after.files}
        mode: Literal["append", "overwrite"] = "append"
        if before is None or not self.table.has_columns():
            assert not gone & new, "a version has files of its own columns only"
            gone, mode = set(), "overwrite"
        for file in new - gone:
            self.table.sync_data(file.path)
        now = int(time.time() * 1000)
        actions: list[Any] = [RemoveAction(file.path, True, now, file.size, {}) for file in gone - new]
        more = (_FILES, _fingerprint(after.files)), (_MERGED_BATCH, holds.batch), (_MERGED, holds.seq)
        actions += [added(file.path, file.size, file.rows, True) for file in new - gone]
        self.table.append(actions, mode, self._app(shown), shown.metadata(self._name), *more)

    def clear(self) -> None:
        """Remove all rows, because the state was emptied; the changes are the state from now on."""
        self.move(None, self.base([]), Holds(_NOTHING, 0), Shown(0, None, ABSENT))

    # ---- upkeep ---------------------------------------------------------------------------------------------------

    def keep_small(self) -> None:
        """Write a checkpoint and delete old files, if that is due after a version; nothing depends on it."""
        self._runs += 1
        if self._runs % _RUNS_PER_CHECKPOINT == 0:
            try:
                self.table.checkpoint()
                self.table.vacuum()
            except (VersionMoved, TridentError, OSError) as error:
                _LOGGER.warning("the clean-up of the table of %s was postponed: %s", self._name, error)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _app(self, shown: Shown) -> tuple[str, int]:
        return f"trident/{self._name}/shown", shown.txid

    def _own_files(self) -> list[BucketFile]:
        files = [BucketFile.of(file.path, file.size, file.rows) for file in self.table.files()]
        own = [file for file in files if file is not None]
        if len(own) < len(files) or self.table.transaction(_FILES) != _fingerprint(own):
            raise StateError(
                f"Delta table {self.table.name} was changed by another program (version {self.table.version} or one before), "
                "and the state depends on it, because it is larger than memory. Bring back the topology's last version "
                "of it with Delta's RESTORE: the last one in the table's history that names a batch"
            )
        return own


def is_newest(changes: StateTable, shown: Shown) -> bool:
    """Whether the changes are still this writer's, or a later writer's that goes on from there."""
    if shown.sentinel is None:
        return True
    changes = changes.another(read_only=True)
    if changes.refresh() == ABSENT:
        return False
    found = newest_sentinel(changes)
    own = shown.sentinel
    return found is not None and found.incarnation == own.incarnation and found.version >= own.version


def _fingerprint(files: Iterable[BucketFile]) -> int:
    """Return a number that identifies the files of a commit."""
    names = "\n".join(sorted(file.path for file in files))
    return int.from_bytes(blake2b(names.encode(), digest_size=7).digest())
