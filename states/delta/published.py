"""The rows that people read: one for each key, with the key's fields and the value under their own names and types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from states.delta.layout import DeltaLayout
from states.delta.raw_forms import SENTINEL_COLUMN
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Snapshot
from trident.state.values import stand_before

__all__ = ["PublishedRows"]


class PublishedRows:
    """The columns of the published table, and how rows of the change table become its rows.

    Attributes
    ----------
    schema
        The key's fields, then the value.
    keys, value
        Their names: those that the topology declares, `key` and `value` where it declares none.
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
        columns = [*(rows[name] for name in self._layout.key_columns), self.values(rows, snapshot)]
        return pa.table(columns, schema=self.schema).filter(pc.is_valid(columns[-1]))

    def values(self, rows: pa.Table, snapshot: Snapshot) -> pa.ChunkedArray:
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
