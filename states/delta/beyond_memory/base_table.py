"""The table at the path of a state beyond memory: people read it as any published table, and the state depends on it.

Its rows are in buckets. It holds all changes up to one `_seq`, which is the version of a Delta transaction of it; no
changes above are in it, and those up to there need not be anywhere else. A table without that transaction is only derived
from the changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from states.delta.beyond_memory.bucket_files import BucketFile
from states.delta.beyond_memory.bucketed_base import BucketedBase, Rewrite
from states.delta.change_table import ABSENT
from states.delta.published_table import PublishedTable, Shown
from trident.errors import StateError

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

__all__ = ["TRIMMED", "BaseTable", "Holds"]

TRIMMED = "trident/trimmed"
"""The transaction of the change table whose version is the highest `_seq` that it need not hold."""

_MERGED, _BATCH = "trident/merged", "trident/merged-batch"
_FILES = "trident/files"  # its version tells whether the files are still those of our last commit
_NOTHING = -1


class Holds(NamedTuple):
    """What a base holds: all changes up to a `_seq`, as of a committed batch."""

    seq: int
    batch: int


class BaseTable(PublishedTable):
    """The table at the path of a state. See `PublishedTable`."""

    def holds(self) -> Holds | None:
        """Return what the version last seen holds; None if it is only derived from the changes."""
        if self.version == ABSENT:
            return None
        seq, batch = self.transaction(_MERGED), self.transaction(_BATCH)
        return None if seq is None or seq == _NOTHING else Holds(seq, batch or 0)

    def base(self, files: Iterable[BucketFile] | None = None) -> BucketedBase:
        """Return the rows of the version last seen, or of some files.

        Raises
        ------
        StateError
            Another program has changed the table.
        """
        keys = self._schema.names[:-1]
        return BucketedBase(list(self._own_files() if files is None else files), self._schema, keys, self._filesystem())

    def begin(self, files: Iterable[BucketFile], holds: Holds, shown: Shown, name: str) -> BucketedBase:
        """Replace all rows by files in buckets, as the version after the one last seen; return them."""
        base = self.base(files)
        actions = list(map(_added, self._synced(base.files)))
        self._append(actions, "overwrite", *self._marks(base, holds, shown, name))
        return base

    def move(
        self, base: BucketedBase, rewrites: Iterable[Rewrite], holds: Holds, shown: Shown, name: str
    ) -> BucketedBase:
        """Replace files of a base by those of a merge, as the version after the one last seen; return what it is then."""
        rewrites, actions = list(rewrites), list[Any]()
        for rewrite in rewrites:
            actions += [*map(_removed, rewrite.removed), *map(_added, self._synced(rewrite.added))]
        after = base.moved(rewrites)
        self._append(actions, "append", *self._marks(after, holds, shown, name))
        return after

    def clear(self, name: str) -> None:
        """Remove all rows, because the state was emptied; the changes are the state from now on."""
        shown = Shown(0, None, ABSENT)
        self._append([], "overwrite", *self._marks(self.base([]), Holds(_NOTHING, 0), shown, name))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _marks(self, base: BucketedBase, holds: Holds, shown: Shown, name: str) -> tuple[Any, ...]:
        """Return the transactions and the note of a commit, as `_append` takes them."""
        app = (f"trident/{name}/shown", shown.txid)
        files = _FILES, _fingerprint(base.files)
        return app, shown.metadata(name), files, (_BATCH, holds.batch), (_MERGED, holds.seq)

    def _synced(self, files: Iterable[BucketFile]) -> list[BucketFile]:
        files = list(files)
        for file in files:
            self._sync_data(file.path)
        return files

    def _own_files(self) -> list[BucketFile]:
        facts = pa.table(self._opened().get_add_actions(flatten=True)).to_pylist()
        files = [BucketFile.of(fact["path"], fact["size_bytes"], fact["num_records"]) for fact in facts]
        own = [file for file in files if file is not None]
        if len(own) < len(files) or self.transaction(_FILES) != _fingerprint(own):
            raise StateError(
                f"Delta table {self.name} was changed by another program (version {self.version} or one before), and the "
                "state depends on it, because it is larger than memory. Bring back its last version of the topology with "
                "Delta's RESTORE: in the table's history it is the last one that names a batch"
            )
        return own


def _fingerprint(files: Iterable[BucketFile]) -> int:
    """Return a number that tells whether files are those of a commit."""
    names = "\n".join(sorted(file.path for file in files))
    return int.from_bytes(blake2b(names.encode(), digest_size=7).digest())


def _added(file: BucketFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size, {}, _now_ms(), True, json.dumps({"numRecords": file.rows}))


def _removed(file: BucketFile) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, True, _now_ms(), file.size, {})


def _now_ms() -> int:
    return int(time.time() * 1000)
