"""Types of columns in files that are not written for Spark: which of Spark's types they are read as."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trident.alignment import replace_leaves
from trident.errors import TopologyError
from trident.fields import Fields, names_shown

NOT_0 = "^[^eE]*[1-9]"
"""What a number begins with that is not 0."""
_HEX = r"^\s*0[xX]"
_SMALL = re.compile(rb"e-(?<=[\d.]e-)(?!\d{12}\b)0*(?:[2-9]\d|[1-9]\d{2,})(?![\w-])")  # but no part of a UUID


def read_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema of a file, in which Spark's INT96 are the moments that they stand for: Arrow calls them local times."""
    schema, moments = file.schema_arrow, int96_columns(file)
    if not moments:
        return schema
    return pa.schema(
        [pa.field(one.name, replace_leaves(one.type, _as_moment)) if one.name in moments else one for one in schema]
    )


def int96_columns(file: pq.ParquetFile) -> list[str]:
    """Return the names of the columns of a file that are or have moments in INT96."""
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    paths = [one.path for one in columns if one.physical_type == "INT96"]
    return [
        name
        for name in (file.schema_arrow.names if paths else ())
        if any(path == name or path.startswith(f"{name}.") for path in paths)
    ]


def typed_as(fields: Fields, names: Sequence[str], type_of: Callable[[str], str | None], what: str) -> Fields:
    """Return fields with their types; one that is not declared is the column's, of the columns `names` that `what` has."""
    types = list(fields.types)
    for at, name in enumerate(fields.names):
        if types[at] is None:
            if name not in names:
                raise TopologyError(
                    f"field {name!r} has no type, and {what} has no such column to take it from; it has "
                    f"{names_shown(names, name)}"
                )
            types[at] = type_of(name)
    return Fields.of(fields.names, types)


def refuse_wide_decimals(table: pa.Table | pa.RecordBatch) -> None:
    """Raise `pa.ArrowInvalid` for a decimal of more digits than its type: Arrow's parsers let 1 pass for a decimal(5,5)."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            if "decimal" in str(column.type):
                column.validate(full=True)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(f"column {name!r}: a number has more digits than {column.type}") from None


def refuse_bent_numbers(texts: Any, made: Any, name: str) -> None:
    """Raise `pa.ArrowInvalid` for a text that Arrow reads as another number: 1e400 is infinite to it, and 0xFF may be -1."""
    is_whole = pa.types.is_integer(made.type)
    if is_whole or pa.types.is_floating(made.type):
        doubted = texts if is_whole else texts.filter(is_extreme(made))
        bent = doubted.filter(pc.match_substring_regex(doubted, _HEX if is_whole else NOT_0))
        if len(bent):
            raise pa.ArrowInvalid(f"column {name!r}: {bent[0].as_py()!r} is not of type {made.type}")


def may_be_small(text: bytes) -> bool:
    """Whether there may be a number in a text that is 0 as a float, and is none."""
    return b"0" * 20 in text or _SMALL.search(text.lower()) is not None


def leaves(column: Any) -> Iterator[Any]:
    """Give the columns within one, of the members of structs, of elements, keys and values; itself if there are none."""
    if pa.types.is_struct(column.type):
        parts = column.flatten()
    elif pa.types.is_map(column.type):
        parts = [column.keys, column.items]
    elif pa.types.is_list(column.type):
        parts = [pc.list_flatten(column)]
    else:
        yield column
        return
    for part in parts:
        yield from leaves(part)


def is_0(numbers: Any) -> Any:
    """Say of each number whether it is 0."""
    return pc.equal(numbers, pa.scalar(0, numbers.type))


def is_extreme(numbers: Any) -> Any:
    """Say of each number whether it is infinite or 0."""
    return pc.or_(pc.is_inf(numbers), is_0(numbers))


def _as_moment(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) else type_
