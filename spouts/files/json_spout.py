"""JsonFileSpout: the objects of JSON-lines files, each exactly once, from files that are there, that come and that grow.

Definitions are as in `TextFileSpout`: byte ranges that end at line ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Unpack

import pyarrow as pa

from spouts.files.file_listing import Paths
from spouts.files.file_settings import FileSettings, FileSpout
from spouts.files.line_ends import LineFiles, RowFormat, RowParser
from spouts.files.line_reading import LineEmitter
from spouts.files.parsed_columns import json_error, read_objects
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


class JsonFormat(RowFormat, RowParser):
    """Lines that are objects, the same in all files; see `JsonFileSpout`."""

    def __init__(self, schema: pa.Schema, unknown_fields: str) -> None:
        self._schema, self._unknown_fields = schema, unknown_fields

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
        return read_objects(text, self._schema, self._unknown_fields)

    def is_row(self, line: bytes) -> bool:
        return bool(line.strip())

    def describe(self, error: Exception) -> str:
        return json_error(error)
