"""What all spouts of files have: arguments, the choice of files, and both of their sides."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import pyarrow as pa

from spouts.files.file_coordinator import FileCoordinator, FileFormat
from spouts.files.file_listing import FileSource, Paths
from spouts.files.ranges import Piece, open_error
from spouts.files.tails import WAIT_S, TailRule
from trident.arrow import schema_of
from trident.errors import SpoutError
from trident.fields import Fields
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


class FileEmitter(ABC):
    """The worker's side.

    `declared`: what is read.
    `bad_lines`: the name of a field of type string that follows, for what cannot be read; None: there is none.
    `with_file`: whether the path follows, as `file: string`.
    """

    is_quick: ClassVar[bool] = True  # it never waits, so the loop may call it

    def __init__(self, declared: Fields, bad_lines: str | None = None, with_file: bool = False) -> None:
        self._bad_lines, self._with_file = bad_lines, with_file
        more = [f"{name}: string" for name in (bad_lines, "file" if with_file else None) if name is not None]
        self.fields = Fields(declared, *more) if more else declared
        self._wanted, self._schema = schema_of(declared), schema_of(self.fields)

    def emit(self, part: Iterable[Piece]) -> Iterator[Any]:
        """Read the pieces of files that make up a part, in tables of about a megabyte."""
        for piece in part:
            try:
                yield from self.read(piece)
            except OSError as error:
                raise open_error(piece.range.path, error, f"cannot read the batch {piece.range}") from error

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[Any]:
        """Read a piece; `OSError` if it cannot be opened."""

    def _table(self, columns: list[pa.Array], path: str, rows: int) -> pa.Table:
        if self._with_file:
            columns.append(pa.repeat(pa.scalar(path.encode("utf-8", "replace").decode()), rows))
        return pa.Table.from_arrays(columns, schema=self._schema)


class FileSpout:
    """Emits what is in files once. Transactional. A kind of file sets `_format`, where batches may end, and `_emitter`.

    `kind`: of the files ("text", "CSV"), for messages.
    `default_pattern`: what their names match unless the settings say it.
    """

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
