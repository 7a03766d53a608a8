"""The rows of a state as typed columns: as a table, as a DataFrame of pandas or of Spark, and as a notebook shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.arrow import UNFIT, arrow_type, python_of, strict_column
from trident.errors import StateError, describe
from trident.extras import needs_package
from trident.fields import Fields, free_name
from trident.graph import Node, PersistNode, StateNode
from trident.naming import counted
from trident.notebook import preformatted, table
from trident.operations.several import Several, result_fields

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

SHOWN_ROWS = 20


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

    Raises `StateError`: some keys have more fields than others.
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


def results_in(nodes: Iterable[Node], state: str) -> Fields:
    """Return the results of a state that holds several aggregates, without what they remember; no field for another state."""
    for node in nodes:
        if isinstance(node, PersistNode) and node.state == state and node.aggregation is not None:
            several = node.aggregation.aggregator
            return result_fields(several) if isinstance(several, Several) else Fields()
    return Fields()


def with_results(columns: Fields, rows: Iterable[Sequence[Any]], results: Fields) -> tuple[Fields, list[Sequence[Any]]]:
    """Return columns and rows with a column for each result in place of the value, if there are several results."""
    if not len(results):
        return columns, list(rows)
    keys = columns.names[:-1]
    names = [free_name(name, keys) for name in results.names]
    wide = Fields.of([*keys, *names], [*columns.types[:-1], *results.types])
    return wide, [(*row[:-1], *(row[-1][name] for name in results.names)) for row in rows]


def table_of_state(state: str, columns: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows as a table; a column whose type is not declared gets its values' type.

    Raises `StateError`: a value does not fit the type of its column, or the values of a column have no common type.
    """
    arrays = []
    for at, (name, type_) in enumerate(zip(columns.names, columns.types, strict=True)):
        values = [row[at] for row in rows]
        try:
            arrays.append(pa.array(values) if type_ is None else strict_column(name, type_, arrow_type(type_), values))
        except UNFIT as error:
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


def pandas_of(table: pa.Table) -> pd.DataFrame:
    """Return a table as a DataFrame of pandas; whole numbers stay whole where some are missing, maps become dicts.

    Raises `EnvironmentProblem`: there is no pandas.
    """
    with needs_package("to_pandas()", "spark", "pandas"):
        import pandas  # noqa: F401  only to see whether it is there: pyarrow imports it by itself
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True, maps_as_pydicts="strict")
    return frame


def html_of_state(
    what: str, columns: Fields, results: Fields, rows: Callable[[], Iterable[Sequence[Any]]], txid: Callable[[], Any]
) -> str:
    """Return the first rows of a state for a notebook."""
    read = list(islice(rows(), SHOWN_ROWS + 1))
    after = txid()
    first, several = read[:SHOWN_ROWS], results if all(len(row) == len(columns) for row in read) else Fields()
    columns, shown = with_results(columns, first, several)
    head = columns.names if all(len(row) == len(columns) for row in shown) else ()
    count = f"the first {SHOWN_ROWS} rows" if len(read) > len(first) else counted(len(first), "row")
    return table(head, shown, ", ".join([what, count, *([] if after is None else [f"after batch {after}"])]))


def html_or_why(what: str, html: Callable[[], str]) -> str:
    """Return what a notebook shows of an object, or why it cannot be read."""
    try:
        return html()
    except Exception as error:  # noqa: BLE001  of a store, perhaps a user's or a closed one: an object can always be shown
        return preformatted(f"{what}: {describe(error)}")
