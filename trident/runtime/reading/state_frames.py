"""The rows of a state as typed columns, and as a DataFrame of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.arrow import arrow_type, python_of
from trident.errors import StateError
from trident.fields import Fields, free_name
from trident.graph import StateNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def columns_of(state: StateNode) -> Fields:
    """Return the columns of a state's rows: the fields of its key, and the field of its value.

    The value has the name that the aggregate's output was given, `value` where an updater decides what it is; with a `_` at
    its end if a field of the key has that name.
    """
    keys, named = state.key_fields, state.value.names[0] if len(state.value) else "value"
    value = free_name(named, keys.names)
    return Fields.of([*keys.names, value], [*keys.types, state.value.types[0] if len(state.value) else None])


def columns_of_rows(state: str, rows: Sequence[Sequence[Any]]) -> Fields:
    """Return columns for the rows of a state whose keys an updater chooses: `key` (or `key_1`, `key_2` …) and `value`.

    Raises
    ------
    StateError
        Some keys have more fields than others.
    """
    widths = {len(row) for row in rows} or {2}
    if len(widths) > 1:
        raise StateError(
            f"the rows of state {state!r} cannot become columns: its updater writes keys of {min(widths) - 1} and of "
            f"{max(widths) - 1} fields. Read them with get_tuples()"
        )
    fields = widths.pop() - 1
    names = ["key"] if fields == 1 else [f"key_{at}" for at in range(1, fields + 1)]
    return Fields.of([*names, "value"], [None] * (fields + 1))


def table_of_state(state: str, columns: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows as a table; a column whose type is not declared gets its values' type.

    Raises
    ------
    StateError
        A value does not fit the type of its column, or the values of a column have no common type.
    """
    arrays = []
    for at, (name, type_) in enumerate(zip(columns.names, columns.types, strict=True)):
        values = [row[at] for row in rows]
        try:
            arrays.append(pa.array(values, type=None if type_ is None else arrow_type(type_)))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            declared = "has no declared type" if type_ is None else f"is declared as {type_}"
            raise StateError(
                f"the rows of state {state!r} cannot become columns: {name!r} {declared}, and {error}. Read them with "
                "get_tuples()"
            ) from error
    return pa.table(arrays, names=list(columns.names))


def frame_of(spark: SparkSession, state: str, columns: Fields, rows: Sequence[Sequence[Any]]) -> DataFrame:
    """Return rows as a DataFrame."""
    table = table_of_state(state, columns, rows)
    if not spark.version.startswith("3."):
        return spark.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema  # PySpark 3.5 takes no tables

    values = zip(*map(python_of, table.columns), strict=True)
    return spark.createDataFrame(list(values), from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
