"""JsonFileSpout: the objects of JSON-lines files, each exactly once, from files that are there, that come and that grow.

Definitions are those of `TextFileSpout`: byte ranges that end at line ends.
"""

from __future__ import annotations

from typing import Unpack

from spouts.byte_ranges.file_listing import Paths
from spouts.byte_ranges.file_settings import ChosenFiles, FileSettings
from spouts.files.json_lines import JsonFormat
from spouts.files.row_reading import RowOptions
from spouts.files.row_spout import RowFileSpout
from spouts.text_files.line_ends import LineFiles
from spouts.text_files.text_blocks import TextOptions
from trident.arrow import schema_of
from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike

__all__ = ["JsonFileSpout"]


class JsonFileSpout(RowFileSpout):
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
        chosen = ChosenFiles.of("JSON", paths, tuple(f"*.{one}{gz}" for one in endings for gz in ("", ".gz")), **files)
        declared = Fields(fields)
        for name in declared.names:
            if "map<" in (declared.type_of(name) or ""):
                raise TopologyError(
                    f"field {name!r} is of type {declared.type_of(name)}, which Arrow does not read from JSON; declare a "
                    "struct with the members that you need"
                )
        text = TextOptions.of(encoding, errors, LineFiles(max_line_bytes))
        options = RowOptions(text, declared, bad_lines, "file" if with_file else None)
        super().__init__(chosen, JsonFormat(schema_of(declared), unknown_fields), options)
