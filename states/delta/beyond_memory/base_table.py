"""The table at the path of a state beyond memory: people read it as any published table, and the state depends on it.

Its rows are in buckets. It holds all changes up to one `_seq`, which is the version of a Delta transaction of it; no
changes above are in it, and those up to there need not be anywhere else. A table without that transaction is only derived
from the changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from states.delta.beyond_memory.bucket_files import ATTEMPT, BucketFile
from states.delta.beyond_memory.bucketed_base import BucketedBase, Rewrite
from states.delta.data_files import added
from states.delta.published_table import Shown
from states.delta.state_table import ABSENT, StateTable
from trident.errors import StateError

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

TRIMMED = "trident/trimmed"
"""The transaction of the change table whose version is the highest `_seq` that it need not hold."""

_MERGED, _BATCH = "trident/merged", "trident/merged-batch"
_FILES = "trident/files"  # its version says whether the files are still the ones of our last commit
_NOTHING = -1


class Holds(NamedTuple):
    """What a base holds: all changes up to a `_seq`, as of a committed batch."""

    seq: int
    batch: int


class BaseTable:
    """The rows of a state beyond memory, in the table at its path.

    `table`: the table, in the role of `AT_PATH`.
    `name`: of the state.
    """

    def __init__(self, table: StateTable, name: str) -> None:
        self._table, self._name = table, name

    def holds(self) -> Holds | None:
        """Return what the version last seen holds; None if it is only derived from the changes."""
        if self._table.version == ABSENT:
            return None
        seq, batch = self._table.transaction(_MERGED), self._table.transaction(_BATCH)
        return None if seq is None or seq == _NOTHING else Holds(seq, batch or 0)

    def base(self, files: Iterable[BucketFile] | None = None) -> BucketedBase:
        """Return the rows of the version last seen, or of some files.

        Raises `StateError`: another program has changed the table.
        """
        table = self._table
        files = self._own_files() if files is None else files
        return BucketedBase(list(files), table.schema.append(ATTEMPT), table.schema.names[:-1], table.filesystem())

    def has_columns(self) -> bool:
        """Whether all files of the version last seen have the columns of this declaration."""
        return self._table.has_columns()

    def begin(self, files: Iterable[BucketFile], holds: Holds, shown: Shown) -> None:
        """Replace all rows by files in buckets, as the version after the one last seen."""
        base = self.base(files)
        self._append(self._synced(base.files), "overwrite", base, holds, shown)

    def move(self, base: BucketedBase, rewrites: Iterable[Rewrite], holds: Holds, shown: Shown) -> BucketedBase:
        """Replace files of a base by a merge's, as the version after the one last seen; return the new base.

        All files, if the table has other columns: it gets those of this declaration.
        """
        rewrites = list(rewrites)
        after = base.moved(rewrites)
        if not self.has_columns():
            assert not set(after.files) & set(base.files), "a version has files of its own columns only"
            self._append(self._synced(after.files), "overwrite", after, holds, shown)
            return after
        actions = list[Any]()
        for rewrite in rewrites:
            actions += [*map(_removed, rewrite.removed), *self._synced(rewrite.added)]
        self._append(actions, "append", after, holds, shown)
        return after

    def clear(self) -> None:
        """Remove all rows, because the state was emptied; the changes are the state from now on."""
        self._append([], "overwrite", self.base([]), Holds(_NOTHING, 0), Shown(0, None, ABSENT))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _append(
        self, actions: list[Any], mode: Literal["append", "overwrite"], base: BucketedBase, holds: Holds, shown: Shown
    ) -> None:
        more = (_FILES, _fingerprint(base.files)), (_BATCH, holds.batch), (_MERGED, holds.seq)
        app = f"trident/{self._name}/shown", shown.txid
        self._table.append(actions, mode, app, shown.metadata(self._name), *more)

    def _synced(self, files: Iterable[BucketFile]) -> list[AddAction]:
        files = list(files)
        for file in files:
            self._table.sync_data(file.path)
        return [added(file.path, file.size, file.rows, True) for file in files]

    def _own_files(self) -> list[BucketFile]:
        files = [BucketFile.of(file.path, file.size, file.rows) for file in self._table.files()]
        own = [file for file in files if file is not None]
        if len(own) < len(files) or self._table.transaction(_FILES) != _fingerprint(own):
            raise StateError(
                f"Delta table {self._table.name} was changed by another program (version {self._table.version} or one before), "
                "and the state depends on it, because it is larger than memory. Bring back the topology's last version "
                "of it with Delta's RESTORE: the last one in the table's history that names a batch"
            )
        return own


def _fingerprint(files: Iterable[BucketFile]) -> int:
    """Return a number that identifies the files of a commit."""
    names = "\n".join(sorted(file.path for file in files))
    return int.from_bytes(blake2b(names.encode(), digest_size=7).digest())


def _removed(file: BucketFile) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, True, int(time.time() * 1000), file.size, {})
