"""JSON lines as rows, by Arrow's parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.json as pajson

__all__ = ["JsonFormat"]

_WHERE = re.compile(r" in row \d+|JSON parse error: ")


@dataclass(frozen=True)
class JsonFormat:
    """What the objects have; see `JsonFileSpout`."""

    schema: pa.Schema
    unknown_fields: str

    has_header = False

    def parser(self, path: str, header: Callable[[], bytes]) -> JsonParser:
        """Return the parser; it is the same for all files."""
        return JsonParser(self.schema, self.unknown_fields)


class JsonParser:
    """Reads lines that are objects."""

    def __init__(self, schema: pa.Schema, unknown_fields: str) -> None:
        # Arrow reads no dates from JSON, but makes them of text.
        self._schema = schema
        self._read = pa.schema([pa.field(one.name, _without_dates(one.type)) for one in schema])
        self._parse = pajson.ParseOptions(explicit_schema=self._read, unexpected_field_behavior=unknown_fields)

    def parse(self, text: bytes) -> pa.Table:
        """Make a table of lines."""
        if not text.strip():
            return self._schema.empty_table()
        read = pajson.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = pajson.read_json(pa.BufferReader(text), read, self._parse)
        return table if self._read is self._schema else table.cast(self._schema)

    def is_row(self, line: bytes) -> bool:
        """Whether a line has anything but blanks."""
        return bool(line.strip())

    def is_open(self, line: bytes) -> bool:
        """Return False: an object that does not end in its line is no JSON, or fewer rows than lines."""
        return False

    def told(self, error: Exception) -> str:
        """Say what is wrong with a line."""
        return _WHERE.sub("", str(error))


def _without_dates(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type_):
        return pa.string()
    if isinstance(type_, pa.ListType):
        return pa.list_(_without_dates(type_.value_type))
    if isinstance(type_, pa.StructType):
        return pa.struct([pa.field(one.name, _without_dates(one.type)) for one in type_])
    return type_
