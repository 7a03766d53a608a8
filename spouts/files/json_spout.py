"""JsonFileSpout: the objects of JSON-lines files, each exactly once, from files that are there, that come and that grow.

Definitions are as in `TextFileSpout`: byte ranges that end at line ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Unpack

import numpy as np
import pyarrow as pa

from spouts.files.file_listing import Paths
from spouts.files.file_settings import FileSettings, FileSpout
from spouts.files.line_ends import LineFiles, RowFormat, RowParser
from spouts.files.line_reading import LineEmitter
from spouts.files.parsed_columns import json_type, parse_json, read_json, refuse_bent
from spouts.files.tails import End
from trident.arrow import schema_of
from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike


class JsonFileSpout(FileSpout):
    """Emits each object of JSON-lines files once: one object a line. Transactional.

    Parameters
    ----------
    paths
        A directory, a glob, a file, or a list of them. All workers must see the files under the same absolute paths.
    fields
        The members to read, with their types; `struct` and `array` as deep as the objects are. A member that an object does
        not have is null.
    unknown_fields
        What to do with a member that is not a field: `"ignore"`, or `"error"`.
    bad_lines
        The name of a further field of type string: a line that cannot be read gives its text there, and null in all other
        fields. Without it such a line raises `SpoutError`.
    with_file
        Emit `file: string`, the path, after all other fields.
    encoding, errors, max_line_bytes
        As for `TextFileSpout`, but `errors` is `"strict"` by default.
    files
        The settings of all spouts of files: `max_batch_bytes`, `pattern` (default `*.json`, `*.jsonl` and `*.ndjson`, also
        with `.gz`), `recursive`, `follow`, `tail`, `allow_empty`; see `FileSettings`.
    """

    def __init__(
        self,
        paths: Paths,
        fields: FieldsLike,
        *,
        unknown_fields: str = "ignore",
        bad_lines: str | None = None,
        with_file: bool = False,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_line_bytes: int = 64 << 20,
        **files: Unpack[FileSettings],
    ) -> None:
        if unknown_fields not in ("ignore", "error"):
            raise ValueError(f'unknown_fields is {unknown_fields!r}; it must be "ignore" or "error"')
        endings = ("json", "jsonl", "ndjson")
        super().__init__("JSON", paths, tuple(f"*.{one}{gz}" for one in endings for gz in ("", ".gz")), **files)
        declared = Fields(fields)
        for name in declared.names:
            if "map<" in (declared.type_of(name) or ""):
                raise TopologyError(
                    f"field {name!r} is of type {declared.type_of(name)}, which Arrow does not read from JSON; declare a "
                    "struct with the members that you need"
                )
        format_ = JsonFormat(schema_of(declared), unknown_fields)
        lines = LineFiles(encoding, errors, max_line_bytes, rows=format_)
        self._read_as(lines, LineEmitter(format_, lines, declared, bad_lines, with_file))


# JSON lines as rows, by Arrow's parser.

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPENING, _CLOSING, _NEWLINE = b"{}\n"
_WHERE = re.compile(r" in row \d+|JSON parse error: ")


class JsonFormat(RowFormat, RowParser):
    """Lines that are objects, the same in all files; see `JsonFileSpout`."""

    def __init__(self, schema: pa.Schema, unknown_fields: str) -> None:
        # Arrow reads no dates from JSON, and takes moments without an offset for UTC.
        self._schema, self._unknown_fields = schema, unknown_fields
        self._read = pa.schema([pa.field(one.name, json_type(one.type)) for one in schema])

    def parser(self, path: str, header: Callable[[], bytes]) -> RowParser:
        return self

    def end_of(self, path: str, line: bytes, header: Callable[[], bytes] | None) -> End:
        """Say what a last line without a line end is: an object that is closed is whole."""
        marks = _STRING.sub(b"", line.strip())
        if not marks or (marks.startswith(b"{") and (b'"' in marks or marks.count(b"{") > marks.count(b"}"))):
            return End.OPEN
        is_closed = marks.startswith(b"{") and marks.endswith(b"}") and marks.count(b"{") == marks.count(b"}")
        return End.WHOLE if is_closed else End.MAYBE

    def parse(self, text: bytes) -> pa.Table:
        if not text.strip():
            return self._schema.empty_table()
        objects, is_apart = _objects_of(text)
        table = parse_json(text, self._read, self._unknown_fields)
        if table.num_rows > objects:
            raise pa.ArrowInvalid("it is more than one row")
        if table.num_rows < objects or not is_apart:
            raise pa.ArrowInvalid("it is not complete: an object goes on in the next line")
        refuse_bent(table, text)
        columns = [read_json(table[one.name], one.type, one.name) for one in self._schema]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def is_row(self, line: bytes) -> bool:
        return bool(line.strip())

    def describe(self, error: Exception) -> str:
        return _WHERE.sub("", str(error))


def _objects_of(text: bytes) -> tuple[int, bool]:
    """Return how many lines are not empty, and whether each of them ends like an object.

    Where each of them also begins like one, no object can go on in the next line.
    Raises `pa.ArrowInvalid`: one does not begin like an object. It must not reach Arrow's parser, which takes `null` for a row,
    or ends the process.
    """
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE)
    begins = np.concatenate(([0], ends[:-1] + 1))
    odd = (codes[begins] != _OPENING) | (codes[ends - 1] != _CLOSING)
    count, is_apart = len(ends), True
    for at in np.flatnonzero(odd).tolist():
        line = text[begins[at] : ends[at]].strip()
        if line and not line.startswith(b"{"):
            raise pa.ArrowInvalid("it is not an object: an object begins with {")
        count, is_apart = count - (not line), is_apart and line[-1:] in (b"", b"}")
    return count, is_apart
