"""The spouts of lines: text, CSV and JSON, each line exactly once, from files that are there, that come and that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

from spouts.files.csv_lines import CsvFormat, WholeCsvEmitter
from spouts.files.file_listing import Paths
from spouts.files.file_settings import FileSettings, FileSpout
from spouts.files.line_ends import LineFiles, LineLimit
from spouts.files.line_reading import LineEmitter, TextEmitter
from spouts.files.parsed_columns import JsonFormat
from trident.arrow import schema_of
from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, is_nested
from trident.setting_types import check_arguments


class TextFileSpout(FileSpout):
    r"""Emits each line of text files once, without its line end (`\n` or `\r\n`). Transactional.

    Parameters
    ----------
    paths
        A directory, a glob, a file, or a list of them. All workers must see the files under the same absolute paths.
    encoding
        Any encoding in which ASCII is ASCII. A byte order mark at the beginning of UTF-8 is dropped.
    errors
        What becomes of bytes that are not text: `"replace"` (U+FFFD, one warning a file) or `"strict"` (`SpoutError`).
    with_source
        Emit `file: string` and `offset: bigint` after the line: its path and the byte at which it begins (of `.gz`
        files, in the unpacked text).
    output_field
        The name of the field that holds the line.
    max_line_bytes
        The greatest length of a line, at most 512 MiB; `SpoutError` beyond.
    files
        The settings of all spouts of files: `max_batch_bytes`, `pattern` (default: all files), `recursive`, `follow`,
        `tail`, `allow_empty`; see `FileSettings`. A longer line than `max_batch_bytes`, and a `.gz` file, makes a batch
        of its own.
    """

    @check_arguments
    def __init__(
        self,
        paths: Paths,
        *,
        encoding: str = "utf-8",
        errors: Literal["replace", "strict"] = "replace",
        with_source: bool = False,
        output_field: str = "line",
        max_line_bytes: LineLimit = 64 << 20,
        **files: Unpack[FileSettings],
    ) -> None:
        super().__init__("text", paths, "*", **files)
        lines = LineFiles(encoding, errors, max_line_bytes)
        fields = Fields(f"{output_field}: string", *(("file: string", "offset: bigint") if with_source else ()))
        self._format, self._emitter = lines, TextEmitter(lines, fields)


class CsvFileSpout(FileSpout):
    r"""Emits each row of CSV files once. Transactional.

    Parameters
    ----------
    fields
        The columns to read, with their types.
    header
        True: the first line of each file names its columns, of which the fields are taken, in any order. False: there is no
        such line, and the columns are the fields. A list of names: there is no such line, and these are the columns.
    delimiter, quote, escape
        One character each; quote and escape may be None. Two quotes within a quoted value stand for one.
    null_values
        What stands for null where it is not quoted; so by default `a,,b` has a null, and `a,"",b` an empty string.
    missing_columns
        What to do if a header lacks a field: `"error"`, or `"null"`.
    timestamp_formats
        Formats as in `%d.%m.%Y %H:%M`, tried in order, for timestamps; default: ISO 8601. A `timestamp` needs an offset in its
        text (`%z`), a `timestamp_ntz` none.
    decimal_point
        Of numbers.
    multiline
        Quoted values may have line ends in them. A file is then one range: read by one task, in one batch, when it has not
        changed for `tail` seconds, and must not change afterwards.
    bad_lines
        The name of a further field of type string: a line that cannot be read gives its text there, and null in all other
        fields. Without it such a line raises `SpoutError`.
    with_file
        Emit `file: string`, the path, after all other fields.
    paths, encoding, errors, max_line_bytes, files
        As for `TextFileSpout`, but `errors` is `"strict"` by default, and `pattern` is `*.csv` and `*.csv.gz`. With
        `multiline`, `max_line_bytes` is for a row.
    """

    @check_arguments
    def __init__(
        self,
        paths: Paths,
        fields: FieldsLike,
        *,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        null_values: Sequence[str] = ("",),
        missing_columns: Literal["error", "null"] = "error",
        timestamp_formats: Sequence[str] = (),
        decimal_point: str = ".",
        multiline: bool = False,
        bad_lines: str | None = None,
        with_file: bool = False,
        encoding: str = "utf-8",
        errors: Literal["replace", "strict"] = "strict",
        max_line_bytes: LineLimit = 64 << 20,
        **files: Unpack[FileSettings],
    ) -> None:
        if multiline and (bad_lines is not None or errors != "strict"):
            raise ValueError(
                "multiline=True does not go with bad_lines or errors='replace': where a row has several lines, "
                "the end of a bad one is not known"
            )
        _check_marks(delimiter=delimiter, quote=quote, escape=escape, decimal_point=decimal_point)
        super().__init__("CSV", paths, ("*.csv", "*.csv.gz"), **files)
        declared = _flat_fields(Fields(fields))
        names = header if isinstance(header, bool) else tuple(header)
        csv = CsvFormat(
            schema_of(declared), names, delimiter, quote, escape, tuple(null_values), missing_columns,
            tuple(timestamp_formats), decimal_point, multiline,
        )  # fmt: skip
        if not isinstance(header, bool):
            csv.check_names("header=", list(header))
        lines = LineFiles(encoding, errors, max_line_bytes, multiline, csv)
        kind = WholeCsvEmitter if multiline else LineEmitter
        self._format, self._emitter = lines, kind(lines, csv, declared, bad_lines, with_file)


def _check_marks(**marks: str | None) -> None:
    for name, mark in marks.items():
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in "\r\n"):
            raise ValueError(f"{name} is {mark!r}; it must be one ASCII character, and not a line end")


def _flat_fields(fields: Fields) -> Fields:
    for name in fields.names:
        type_ = fields.type_of(name)
        if type_ is not None and is_nested(type_):
            raise TopologyError(
                f"field {name!r} is of type {type_}, which CSV cannot hold; declare it as string and parse the value"
            )
    return fields


class JsonFileSpout(FileSpout):
    """Emits each object of JSON-lines files once: one object a line. Transactional.

    Parameters
    ----------
    fields
        The members to read, with their types; `struct` and `array` as deep as the objects are. A member that an object does
        not have is null.
    unknown_fields
        What to do with a member that is not a field: `"ignore"`, or `"error"`.
    bad_lines, with_file
        As for `CsvFileSpout`.
    paths, encoding, errors, max_line_bytes, files
        As for `TextFileSpout`, but `errors` is `"strict"` by default, and `pattern` is `*.json`, `*.jsonl` and `*.ndjson`,
        also with `.gz`.
    """

    @check_arguments
    def __init__(
        self,
        paths: Paths,
        fields: FieldsLike,
        *,
        unknown_fields: Literal["ignore", "error"] = "ignore",
        bad_lines: str | None = None,
        with_file: bool = False,
        encoding: str = "utf-8",
        errors: Literal["replace", "strict"] = "strict",
        max_line_bytes: LineLimit = 64 << 20,
        **files: Unpack[FileSettings],
    ) -> None:
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
        self._format, self._emitter = lines, LineEmitter(lines, format_, declared, bad_lines, with_file)
