"""What is fixed of a Delta state: its columns, its options and its names; it opens the two tables of the state."""

from __future__ import annotations

import os
from dataclasses import replace

from states.delta.layout import DeltaLayout
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.state_table import StateTable
from states.delta.table_opening import TableOpening, TableRole
from states.delta.table_places import AT_PATH, CHANGES
from trident.redaction import redacted
from trident.state.interfaces import StateConf, StateType

__all__ = ["StateTables"]


class StateTables:
    """One state in Delta tables.

    Parameters
    ----------
    path, kind, conf, partition, options
        As for `DeltaBackingMap`.

    Attributes
    ----------
    layout, rows
        The columns of the changes, and of what people read.
    options
        Those of the state.
    name, app, what
        The name of the state, the application of its Delta transactions, and how messages call it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        self.options = DeltaOptions() if options is None else options
        self.layout = DeltaLayout(kind, conf)
        self.rows = PublishedRows(self.layout, conf)
        self.name, self.app = conf.prefix, f"trident/{conf.prefix}/{partition}"
        self._path = os.fspath(path)
        self.what = f"state {conf.state!r} partition {partition} in {redacted(self._path)}"

    def changes(self, read_only: bool = False) -> StateTable:
        """Return the table of the changes, not opened yet."""
        role = TableRole(CHANGES, read_only)
        layout = self.layout
        return StateTable(TableOpening(self._path, layout.schema, layout.description, self.options, role))

    def at_path(self, read_only: bool = False, at: int | None = None) -> StateTable:
        """Return the table at the path, at a version or the newest, not opened yet."""
        hours, role = self.options.published_hours, TableRole(AT_PATH, read_only, at)
        options = replace(self.options, vacuum_after_hours=hours, log_retention_hours=hours)
        return StateTable(TableOpening(self._path, self.rows.schema, self.layout.description, options, role))
