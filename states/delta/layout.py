"""The columns of a Delta state's change table: how raw keys and values become its rows, and rows become them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from states.delta.raw_forms import SENTINEL_COLUMN, SEQ_COLUMN, RawForms, RawKey, RawValue
from trident.arrow import array_of, python_of
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel

__all__ = ["SENTINEL_COLUMN", "SEQ_COLUMN", "DeltaLayout", "RawKey", "RawValue", "in_order"]

_COMMIT = [("incarnation", pa.string()), ("txid", pa.int64()), ("attempt", pa.int64())]
_SENTINEL = pa.struct([*_COMMIT, ("place", pa.string()), ("sealed", pa.bool_())])


class DeltaLayout(RawForms):
    """The columns of one state, derived from its kind and its `StateConf`.

    Attributes
    ----------
    schema
        The columns.
    """

    def __init__(self, kind: StateType, conf: StateConf) -> None:
        super().__init__(kind, conf)
        self.schema = pa.schema(
            [
                *map(pa.field, self.key_columns, self.key_types),
                *map(pa.field, self.value_columns, self.value_types),
                pa.field(SEQ_COLUMN, pa.int64()),
                pa.field(SENTINEL_COLUMN, _SENTINEL),
            ]
        )

    @property
    def description(self) -> str:
        """One line that is stored with the table; it distinguishes layouts whose columns look alike."""
        keys = "typed" if self.typed_keys else "encoded"
        values = "encoded" if self._value_ddl is None else "typed"
        return f"trident {self.kind.value} state; keys {keys}, values {values}"

    def key_filter(self, raw: Sequence[RawKey]) -> pc.Expression:
        """Return a filter of data rows that keeps at least the rows of these keys."""
        kept = pc.field(SENTINEL_COLUMN).is_null()
        columns = zip(*raw, strict=True) if self.typed_keys else [tuple(raw)]
        for name, type_, column in zip(self.key_columns, self.key_types, columns, strict=True):
            if not pa.types.is_nested(type_) and not any(part != part for part in column):
                there = pa.array({part for part in column if part is not None}, type=type_)
                test = pc.field(name).isin(there)
                kept = kept & (test | pc.field(name).is_null() if None in column else test)
        return kept

    def table(
        self, keys: Sequence[RawKey], values: Sequence[RawValue], seq: int, sentinel: Sentinel | None
    ) -> pa.Table:
        """Build the rows of one commit; the sentinel, if any, is a row of its own, without key and value."""
        width = len(self.value_columns)
        key_parts = zip(*keys, strict=True) if self.typed_keys else [keys]
        parts: list[Sequence[Any]] = [*key_parts, *zip(*values, strict=True)] if keys else []
        if not parts:
            parts = [()] * (len(self.key_columns) + width)
        extra = [] if sentinel is None else [None]
        names, types = (*self.key_columns, *self.value_columns), (*self.key_types, *self.value_types)
        columns = [array_of(n, t, [*p, *extra]) for n, t, p in zip(names, types, parts, strict=True)]
        rows = len(keys) + len(extra)
        columns.append(pa.array([seq] * rows, pa.int64()))
        marks = [None] * len(keys) + ([] if sentinel is None else [sentinel._asdict()])
        columns.append(pa.array(marks, _SENTINEL))
        return pa.table(columns, schema=self.schema)

    def end(self, table: pa.Table) -> tuple[Sentinel | None, int]:
        """Return the latest sentinel of a scan in order, and the highest `_seq`."""
        marks = table[SENTINEL_COLUMN].drop_null()
        sentinel = Sentinel(**marks[-1].as_py()) if len(marks) else None
        return sentinel, table[SEQ_COLUMN][-1].as_py() if table.num_rows else 0

    def latest(self, table: pa.Table, with_deleted: bool = False) -> dict[RawKey, RawValue]:
        """Reduce a scan in order to the latest raw value of each key, with or without deleted keys."""
        is_mark = pc.is_valid(table[SENTINEL_COLUMN])
        data = table.filter(pc.invert(is_mark)) if pc.any(is_mark).as_py() else table
        keys = self.raw_keys([data[name] for name in self.key_columns])
        values = zip(*(_column(data[name], name) for name in self.value_columns), strict=True)
        latest = dict(zip(keys, values, strict=True))
        if data[self.value_columns[0]].null_count and not with_deleted:
            latest = {key: value for key, value in latest.items() if value[0] is not None}
        return latest

    def without_deleted(self, values: Sequence[RawValue | None]) -> list[RawValue | None]:
        """Return raw values with None for those that mark a deleted key."""
        return [None if value is None or value[0] is None else value for value in values]

    def reduced(self, table: pa.Table, drop_deleted: bool) -> pa.Table:
        """Return the latest row of each key and the latest sentinel, in the order of `_seq`, without leaving Arrow.

        With `drop_deleted` the marks of deleted keys are dropped too, which is right if `table` holds all rows of these keys.
        """
        table = in_order(table)
        numbers = pa.array(range(table.num_rows), pa.int64())
        is_mark = pc.is_valid(table[SENTINEL_COLUMN]).combine_chunks()
        marks = numbers.filter(is_mark)
        rows = self._last_of_each_key(table.filter(pc.invert(is_mark)), numbers.filter(pc.invert(is_mark)))
        kept = pa.concat_arrays([rows, marks.slice(max(len(marks) - 1, 0))])
        table = table.take(kept.sort())
        if not drop_deleted:
            return table
        there = pc.or_(pc.is_valid(table[self.value_columns[0]]), pc.is_valid(table[SENTINEL_COLUMN]))
        return table.filter(there)

    def _last_of_each_key(self, data: pa.Table, numbers: pa.Array) -> pa.Array:
        if any(pa.types.is_nested(type_) for type_ in self.key_types):  # Arrow groups by no lists, maps and structs
            keys = self.raw_keys([data[name] for name in self.key_columns])
            last = dict(zip(keys, numbers.to_pylist(), strict=True))
            return pa.array(last.values(), pa.int64())
        keys = [str(at) for at in range(len(self.key_columns))]  # a field of the user's may have any other name
        numbered = pa.table([*map(data.column, self.key_columns), numbers], [*keys, "row"])
        return numbered.group_by(keys).aggregate([("row", "max")])["row_max"].combine_chunks()


def _column(array: Any, name: str) -> list[Any]:
    if name not in ("txid", "attempt"):
        return python_of(array)
    # Many rows have few different numbers: one Python object per number saves 60 bytes a key.
    coded = array.combine_chunks().dictionary_encode()
    numbers = [*coded.dictionary.to_pylist(), None]
    return [numbers[at] for at in coded.indices.fill_null(len(numbers) - 1).to_pylist()]


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows of a scan in the order of `_seq`."""
    seq = table[SEQ_COLUMN].combine_chunks()
    if len(seq) < 2 or pc.all(pc.less_equal(seq.slice(0, len(seq) - 1), seq.slice(1))).as_py():
        return table
    return table.take(pc.sort_indices(seq))
