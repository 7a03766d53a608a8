"""QueryBatches: a stream whose batches a query of Spark gives, to `topology.foreach_batch(…)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, normal_type, quote, struct_type, widens
from trident.spout.interfaces import BatchCoordinator, SpoutType


class QueryBatches:
    """The batches that `writeStream.foreachBatch` hands over. Opaque: Spark repeats a batch, but not always its rows.

    The topology is not started: `topology.foreach_batch(…)` returns the function that the query calls.

    Parameters
    ----------
    schema
        The columns that the topology reads, as in `"shop: string, euros: bigint"`, or the schema of a DataFrame. The query may
        have more.
    deterministic
        Promise that a batch that Spark gives again has the same rows, so that transactional states may be fed. A plan with
        `rand()`, `current_timestamp()`, a limit without an order, or a source that forgets does not keep that promise.
    rows_are
        What the rows are if the query's output mode is `update` or `complete` and it aggregates, or keeps values in
        your code: `"totals"`, each in place of an earlier one (keep the newest with `Last()`), or `"events"`, each of
        which counts. Such a query is refused without it.
    """

    def __init__(
        self,
        schema: FieldsLike | Any,
        *,
        deterministic: bool = False,
        rows_are: Literal["events", "totals"] | None = None,
    ) -> None:
        if rows_are not in (None, "events", "totals"):
            raise TopologyError(f"rows_are={rows_are!r}: expected 'events' or 'totals'")
        self.fields, self.rows_are = fields_of_schema(schema), rows_are
        self.spout_type = SpoutType.TRANSACTIONAL if deterministic else SpoutType.OPAQUE

    def get_output_fields(self) -> Fields:
        return self.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> BatchCoordinator:
        """Refuse: there is no query yet."""
        raise TopologyError(
            f"stream {conf.get('stream', '')!r} gets its batches from a query, so the topology is not started: give "
            "topology.foreach_batch(), or what exactly_once returned, to writeStream.foreachBatch, and start the query"
        )

    def get_emitter(self, conf: Mapping[str, Any]) -> QueryEmitter:
        """Return the worker's side."""
        return QueryEmitter()


class QueryEmitter:
    """Gives the rows of a partition of the query's DataFrame, which are there already."""

    def emit(self, part: Iterable[Any]) -> Iterable[Any]:
        return part


def fields_of_schema(schema: Any, names: Iterable[str] | None = None) -> Fields:
    """Return declared fields, or those of the schema of a DataFrame; `names`: only these of its columns."""
    if not _is_of_spark(schema):
        return Fields(schema)
    columns = [column for column in schema.fields if names is None or column.name in names]
    return Fields.of([column.name for column in columns], [_type_of(column) for column in columns])


def names_of_schema(schema: Any) -> list[str]:
    return list((schema if _is_of_spark(schema) else Fields(schema)).names)


def _is_of_spark(schema: Any) -> bool:
    return type(schema).__module__.partition(".")[0] == "pyspark"  # asked without an import of PySpark


def _type_of(column: Any) -> str:
    """Return the DDL type of a column of Spark; what has only nulls, of type void, is a string unless it is declared."""
    try:
        return _ddl(column.dataType)
    except TopologyError as error:
        raise TopologyError(f"column {column.name!r}: {error}. Cast it in the query, or leave it out") from None


def _ddl(type_: Any) -> str:
    kind = type_.typeName()
    if kind == "struct":
        return struct_type(type_.names, [_ddl(one.dataType) for one in type_.fields])
    if kind == "array":
        return f"array<{_ddl(type_.elementType)}>"
    if kind == "map":
        return f"map<{_ddl(type_.keyType)},{_ddl(type_.valueType)}>"
    return "string" if kind == "void" else normal_type(type_.simpleString())


def cast_of(column: Any, declared: str | None) -> str:
    """Return the SQL of a column of Spark as the type that is declared, which has all of its values; see `fits`."""
    name, is_same = quote(column.name), column.dataType.typeName() != "void" and _type_of(column) == declared
    return name if is_same else f"CAST({name} AS {declared})"


def fits(column: Any, declared: str | None) -> bool:
    """Whether a cast of Spark makes the declared type of a column without a loss; one of structs goes by position."""
    if column.dataType.typeName() == "void":
        return True
    found = _type_of(column)
    return found == declared or (declared is not None and "struct<" not in found and widens(found, declared))
