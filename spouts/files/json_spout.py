"""JsonFileSpout: the objects of JSON-lines files, each exactly once, from files that are there, that come and that grow.

Definitions are those of `TextFileSpout`: byte ranges that end at line ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from spouts.byte_ranges.cutting import Clock, FileCoordinator
from spouts.byte_ranges.file_listing import Paths
from spouts.byte_ranges.file_settings import ChosenFiles, FileSettings
from spouts.files.json_lines import JsonFormat
from spouts.files.row_reading import LineEmitter, RowOptions, fields_with
from spouts.text_files.line_ends import LineFiles
from spouts.text_files.text_blocks import TextOptions
from trident.arrow import schema_of
from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import SpoutType

__all__ = ["JsonFileSpout"]


class JsonFileSpout:
    """Emits each object of JSON-lines files once: one object a line. Transactional.

    Parameters
    ----------
    paths
        A directory, a glob, a file, or a list of them. All workers must see the files under the same absolute paths.
    fields
        The members to read, with their types; `struct` and `array` as deep as the objects are. A member that an object does
        not have is null.
    unknown_fields
        What a member that is no field means: `"ignore"`, or `"error"`.
    bad_lines
        The name of a further field of type string: a line that cannot be read gives its text there, and null in all other
        fields. Without it such a line raises `SpoutError`.
    with_file
        Emit `file: string`, the path, after all other fields.
    encoding, errors, max_line_bytes
        As of `TextFileSpout`, but `errors` is `"strict"` by default.
    files
        The settings of all spouts of files: `max_batch_bytes`, `pattern` (default `*.json`, `*.jsonl` and `*.ndjson`, also
        with `.gz`), `recursive`, `follow`, `tail_idle_s`, `allow_empty`; see `FileSettings`.
    """

    spout_type = SpoutType.TRANSACTIONAL

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
        self._files = ChosenFiles.of(
            "JSON", paths, tuple(f"*.{one}{gz}" for one in endings for gz in ("", ".gz")), **files
        )
        declared = Fields(fields)
        for name in declared.names:
            if "map<" in (declared.type_of(name) or ""):
                raise TopologyError(
                    f"field {name!r} is of type {declared.type_of(name)}, which Arrow does not read from JSON; declare a "
                    "struct with the members that you need"
                )
        text = TextOptions.of(encoding, errors, LineFiles(max_line_bytes))
        self._format = JsonFormat(schema_of(declared), unknown_fields)
        self._options = RowOptions(text, declared, bad_lines, "file" if with_file else None)

    def get_output_fields(self) -> Fields:
        """Return the fields with their types."""
        return fields_with(self._options.fields, self._options.bad_lines, self._options.file_field)

    def get_coordinator(self, conf: Mapping[str, Any], clock: Clock | None = None) -> FileCoordinator:
        """Open the driver's side; `SpoutError` if there is no file to read."""
        return self._files.coordinator(self._options.text.files, clock)

    def get_emitter(self, conf: Mapping[str, Any]) -> LineEmitter:
        """Return the worker's side."""
        return LineEmitter(self._format, self._options)
