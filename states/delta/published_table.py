"""The table at the path of a state, which people read: written whole, one Delta version for each state that it shows.

Nothing depends on it: it is made from the changes, and made again if it is missing, damaged or changed by another program.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from states.delta.change_table import ABSENT, ChangeTable
from states.delta.options import DeltaOptions
from states.delta.table_check import check_mark
from states.delta.table_places import AT_PATH
from trident.state.txid import Sentinel

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["PublishedTable", "Shown"]

_SHOWN = "trident.shown"
_BATCH = "trident.batch"
_LOOKED_AT = 20  # versions; other programs may have added some of the last ones


class Shown(NamedTuple):
    """What a version of the published table shows.

    Attributes
    ----------
    txid
        The last batch that was committed then.
    sentinel
        The last commit that touched the state; None without a log.
    version
        The version of the change table.
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


class PublishedTable(ChangeTable):
    """The table at the path of a state.

    Parameters
    ----------
    path
        Of the state.
    schema, description
        The columns of the rows, and the mark of the state's tables.
    options
        Those of the state.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        description: str,
        options: DeltaOptions,
        read_only: bool = False,
        at: int | None = None,
    ) -> None:
        hours = options.published_hours
        options = replace(options, vacuum_after_hours=hours, log_retention_hours=hours)
        super().__init__(path, schema, description, options, read_only, at, AT_PATH)
        self.is_alone = True  # the table of the changes has looked for others

    def shown(self) -> Shown | None:
        """Return what the version last seen shows; None if that is not known, or the columns are others."""
        if self.version == ABSENT or self._opened().schema().to_json() != self._delta_schema().to_json():
            return None
        notes = (entry[_SHOWN] for entry in self.notes(_LOOKED_AT) if _SHOWN in entry)
        return next(map(Shown.of, notes), None)

    def version_of(self, shown: Shown) -> int | None:
        """Return the last version that shows a state that is not later than this; None if the log does not go back so far."""
        for entry in self.notes():
            found = Shown.of(entry[_SHOWN]) if _SHOWN in entry else None
            if found is not None and found.txid <= shown.txid and found.version <= shown.version:
                return int(entry["version"])
        return None

    def show(self, rows: pa.Table, shown: Shown, name: str) -> None:
        """Replace all rows, as the version after the one last seen; raise `VersionMoved` if that is taken."""
        self.commit(rows, 0, "overwrite", (f"trident/{name}/shown", shown.txid), shown.metadata(name))

    def _check(self, table: DeltaTable) -> None:
        check_mark(table, self.name, self._description)
