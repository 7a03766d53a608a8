"""The table at the path of a state, which people read: written whole, one Delta version for each state that it shows.

Nothing depends on it: it is made from the changes, and made again if it is missing, damaged or changed by another program.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pyarrow as pa

from states.delta.fence import newest_sentinel
from states.delta.state_table import ABSENT, StateTable
from trident.state.txid import Sentinel, Snapshot

_SHOWN = "trident.shown"
_BATCH = "trident.batch"
_LOOKED_AT = 20  # versions; other programs may have added some of the last ones


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


class Due(NamedTuple):
    """A state that is to be published: what it shows, and who won its batches."""

    shown: Shown
    snapshot: Snapshot


class PublishedTable:
    """What the table at the path of a state shows.

    `table`: the table, in the role of `AT_PATH`.
    """

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def shown(self) -> Shown | None:
        """Return what the version last seen shows; None if that is not known, or the columns are others."""
        if self._table.version == ABSENT or not self._table.has_columns():
            return None
        notes = (entry[_SHOWN] for entry in self._table.notes(_LOOKED_AT) if _SHOWN in entry)
        return next(map(Shown.of, notes), None)

    def version_of(self, shown: Shown) -> int | None:
        """Return the last version that shows a state that is not later than this; None if the log does not go back so far."""
        for entry in self._table.notes():
            entry_shown = Shown.of(entry[_SHOWN]) if _SHOWN in entry else None
            if entry_shown is not None and entry_shown.txid <= shown.txid and entry_shown.version <= shown.version:
                return int(entry["version"])
        return None

    def show(self, rows: pa.Table, shown: Shown, name: str) -> None:
        """Replace all rows, as the version after the one last seen; raise `VersionMoved` if that is taken."""
        self._table.commit(rows, 0, "overwrite", (f"trident/{name}/shown", shown.txid), shown.metadata(name))


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
