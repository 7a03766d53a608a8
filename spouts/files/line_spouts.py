"""The spouts of lines: text, CSV and JSON, each line exactly once, from files that are there, that come and that grow.

What all spouts of files have is here too: their settings, the choice of files, and both of their sides.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from spouts.files.csv_lines import CsvFormat, WholeCsvEmitter
from spouts.files.file_coordinator import FileCoordinator, FileFormat
from spouts.files.file_listing import FileSource, Paths
from spouts.files.line_ends import LineFiles, LineLimit
from spouts.files.line_reading import LineEmitter, TextEmitter
from spouts.files.parsed_columns import JsonFormat
from spouts.files.ranges import FileEmitter
from spouts.files.tails import WAIT_S, TailRule
from trident.arrow import schema_of
from trident.errors import SpoutError, TopologyError
from trident.fields import Fields, FieldsLike, is_nested
from trident.moments import checked_format
from trident.setting_types import Limit, Seconds, check_arguments
from trident.spout.interfaces import SpoutType


class FileSettings(TypedDict, total=False):
    """Which files are read, and how much of them a batch has.

    Attributes
    ----------
    max_batch_bytes
        The greatest number of bytes of one batch, default 8 MiB. What cannot be cut (a longer line, a `.gz` file, a row
        group) makes a batch of its own.
    pattern
        What the names of files in directories must match, or several patterns, of which one must match. Names with a leading
        dot or underscore are skipped unless it has one (for `TextFileSpout`, with a dot only).
    recursive
        Read directories within directories too (the default). A link to what is read already is not followed.
    follow
        When all is read, look for new files and for what was added to old ones (the default). False: only what is there
        at the start.
    tail
        With `follow`, an end that may be whole (a last line without a line end, a `.gz` file) is read when the file was not
        changed for this many seconds, default 10; everything else goes on meanwhile. `"hold"`: a line is never read without
        its line end. What cannot be whole is held in any case.
    allow_empty
        Start although there is no file yet.
    """

    max_batch_bytes: Limit
    pattern: str | tuple[str, ...]
    recursive: bool
    follow: bool
    tail: Seconds | Literal["hold"]
    allow_empty: bool


class FileSpout:
    """Emits what is in files once. Transactional. A kind of file sets `_format`, where batches may end, and `_emitter`."""

    spout_type = SpoutType.TRANSACTIONAL
    _format: FileFormat
    _emitter: FileEmitter

    @check_arguments
    def __init__(
        self, kind: str, paths: Paths, default_pattern: str | tuple[str, ...], **settings: Unpack[FileSettings]
    ) -> None:
        self._kind, self._settings = kind, settings
        self._max_batch_bytes = settings.get("max_batch_bytes", 8 << 20)
        patterns, recursive = settings.get("pattern", default_pattern), settings.get("recursive", True)
        self._source = FileSource.of(paths, patterns, recursive, skips_underscored=kind != "text")

    @property
    def source_names(self) -> Sequence[str]:
        """The folders, globs and files."""
        return [os.path.realpath(root) for root in self._source.roots]

    def get_output_fields(self) -> Fields:
        return self._emitter.fields

    def get_coordinator(self, conf: Mapping[str, Any], now: Callable[[], float] | None = None) -> FileCoordinator:
        """Open the driver's side; `SpoutError` if there is no file to read, or would be those that the topology writes."""
        for folder, name in conf.get("own_files", {}).items():
            if self._source.covers(folder, name):
                raise SpoutError(
                    f"{self._source} has {folder} in it, where the topology itself writes: it would read what it has written. "
                    "Keep them apart, or give a pattern that leaves such files out"
                )
        if not self._settings.get("allow_empty") and not self._source.files():
            raise SpoutError(
                f"no {self._kind} file to read in {self._source}. Correct the path or the pattern, or give allow_empty=True if "
                "files will come later"
            )
        rule = TailRule(self._settings.get("tail", WAIT_S), self._settings.get("follow", True), now or time.time)
        return FileCoordinator(self._format, self._source, self._max_batch_bytes, rule)

    def get_emitter(self, conf: Mapping[str, Any]) -> FileEmitter:
        """Return the worker's side."""
        return self._emitter


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
        The settings of all spouts of files, see `FileSettings`; `pattern` is all files by default.
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
        One character each; quote and escape may be None. Two quotes within a quoted value stand for one, also where the
        escape is the quote.
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
        declared = _readable(Fields(fields), is_nested, "CSV cannot hold; declare it as string and parse the value")
        names = header if isinstance(header, bool) else tuple(header)
        csv = CsvFormat(
            schema_of(declared), names, delimiter, quote, None if escape == quote else escape, tuple(null_values),
            missing_columns, tuple(checked_format("timestamp_formats", one) for one in timestamp_formats), decimal_point,
            multiline,
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
    if marks["delimiter"] in (marks["quote"], marks["escape"]):
        raise ValueError(f"delimiter is {marks['delimiter']!r}, which is the quote or the escape too; give another one")


def _readable(fields: Fields, is_refused: Callable[[str], bool], why: str) -> Fields:
    for name, type_ in fields.pairs:
        if type_ is not None and is_refused(type_):
            raise TopologyError(f"field {name!r} is of type {type_}, which {why}")
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
        why = "Arrow does not read from JSON; declare a struct with the members that you need"
        declared = _readable(Fields(fields), lambda type_: "map<" in type_, why)
        format_ = JsonFormat(schema_of(declared), unknown_fields)
        lines = LineFiles(encoding, errors, max_line_bytes, rows=format_)
        self._format, self._emitter = lines, LineEmitter(lines, format_, declared, bad_lines, with_file)
