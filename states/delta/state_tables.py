"""What is fixed of a Delta state: columns, options, names, the rows that people read; it opens the state's two tables."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.bucket_files import ATTEMPT
from states.delta.beyond_memory.sorted_rows import SortedRows
from states.delta.layout import SENTINEL_COLUMN, DeltaLayout
from states.delta.options import AT_PATH, CHANGES, DeltaOptions
from states.delta.published_table import PublishedTable
from states.delta.state_table import StateTable
from states.delta.table_opening import TableOpening, TableRole
from trident.errors import StateError
from trident.fields import struct_fields, widens
from trident.redaction import redacted
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Snapshot
from trident.state.values import stand_before


class StateTables:
    """One state in Delta tables.

    `path`, `kind`, `conf`, `partition`, `options`: as for `DeltaBackingMap`.
    `layout`, `rows`: the columns of the changes, and of what people read.
    `options`: those of the state.
    `evolves`, `types`: whether former declarations have written a part of it, and what reads their values.
    `name`: the name of the state, with its topology.
    `app`, `what`: the application of its Delta transactions, and how messages call it.
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
        refuse_reused_names(conf, redacted(os.fspath(path)))
        self.options = DeltaOptions() if options is None else options
        self.layout = DeltaLayout(kind, conf)
        self.rows = PublishedRows(self.layout, conf)
        self.evolves, self.types = conf.evolves, conf.migrate
        self.name, self.app = conf.prefix, f"trident/{conf.prefix}/{partition}"
        self._path = os.fspath(path)
        self.what = f"state {conf.state!r} partition {partition} in {redacted(self._path)}"

    def changes(self, read_only: bool = False) -> StateTable:
        """Return the table of the changes, not opened yet."""
        role = TableRole(CHANGES, read_only, evolves=self.evolves)
        layout = self.layout
        return StateTable(TableOpening(self._path, layout.schema, layout.description, self.options, role))

    def at_path(self, read_only: bool = False, at: int | None = None) -> PublishedTable:
        """Return the table at the path, at a version or the newest, not opened yet."""
        hours, role = self.options.published_hours, TableRole(AT_PATH, read_only, at)
        options = replace(self.options, vacuum_after_hours=hours, log_retention_hours=hours)
        opening = TableOpening(self._path, self.rows.schema, self.layout.description, options, role)
        return PublishedTable(StateTable(opening), self.name)


def refuse_reused_names(conf: StateConf, path: str) -> None:
    """Raise `StateError` if a field of the value has a name whose column has values that are none of the field's type."""
    own = dict(struct_fields(conf.value_type))
    for _, former, names in () if conf.migrate is None else conf.migrate.types:
        for name, type_ in () if names is None else struct_fields(former):
            if not widens(type_, own.get(name, type_)):
                raise StateError(
                    f"open Delta table {path}: {name!r} of state {conf.called!r} is of type {own[name]}, and what had "
                    f"this name before is of type {type_}, which does not fit into a column of this type. Nothing was "
                    "written. Give it another name"
                )


class PublishedRows:
    """The columns of the published table, and how rows of the change table become its rows.

    `schema`: the key's fields, then the value.
    `keys`, `value`: their names: those that the topology declares, `key` and `value` where it declares none.
    """

    def __init__(self, layout: DeltaLayout, conf: StateConf) -> None:
        self._layout = layout
        self.keys = tuple(name for name, _ in conf.key_fields) if layout.typed_keys else layout.key_columns
        self.value = _free_name(conf.value_field or "value", self.keys)
        types = [*layout.key_types, layout.value_types[-1]]
        self.schema = pa.schema(list(map(pa.field, [*self.keys, self.value], types)))

    def of(self, rows: pa.Table, snapshot: Snapshot) -> pa.Table:
        """Return the state after a committed batch, given the latest row of each key then or one batch later.

        A key whose value is None has no row: it was removed, or a failed attempt made it.
        """
        rows = rows.filter(pc.is_null(rows[SENTINEL_COLUMN])).combine_chunks()
        rows, without_value = self._published(rows, snapshot)
        return rows.filter(pa.array(~without_value)).select(self.schema.names)

    def in_base(self, changes: SortedRows, snapshot: Snapshot) -> SortedRows:
        """Return changes as a base has them: key, value as of a committed batch, and who wrote it."""
        rows, without_value = self._published(changes.rows, snapshot)
        return changes.with_rows(rows, changes.deleted | without_value, self.keys)

    def _published(self, rows: pa.Table, snapshot: Snapshot) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        is_opaque = self._layout.kind is StateType.OPAQUE
        attempts = rows["attempt"] if is_opaque else pa.nulls(rows.num_rows, ATTEMPT.type)
        value = self._values(rows, snapshot)
        columns = [*(rows[name] for name in self._layout.key_columns), value, attempts]
        return pa.table(columns, schema=self.schema.append(ATTEMPT)), value.is_null().to_numpy(zero_copy_only=False)

    def _values(self, rows: pa.Table, snapshot: Snapshot) -> pa.ChunkedArray:
        """Return the value of each row as of a committed batch: the rule of `trident.state.values.OpaqueValue.at`."""
        if self._layout.kind is not StateType.OPAQUE or not rows.num_rows:
            return rows[self._layout.value_columns[-1]]
        txids, attempts = (rows[name].fill_null(0).to_numpy() for name in ("txid", "attempt"))
        stands = stand_before(txids, attempts, snapshot.txid + 1, snapshot.winners)
        return pc.if_else(pa.array(stands), rows["curr"], rows["prev"])


def _free_name(name: str, taken: tuple[str, ...]) -> str:
    # Column names of Delta are equal if they differ in case only.
    while name.lower() in {each.lower() for each in taken}:
        name += "_"
    return name
