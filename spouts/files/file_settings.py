"""The arguments that all spouts of files have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, Unpack

import pyarrow as pa

from spouts.files.file_coordinator import FileCoordinator, FileFormat
from spouts.files.file_listing import FileSource, Paths
from spouts.files.ranges import Piece
from spouts.files.tails import WAIT_S, TailRule
from trident.errors import SpoutError
from trident.fields import Fields
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
    tail_idle_s
        The former name of `tail`.
    allow_empty
        Start although there is no file yet.
    """

    max_batch_bytes: int
    pattern: str | tuple[str, ...]
    recursive: bool
    follow: bool
    tail: float | Literal["hold"]
    tail_idle_s: float
    allow_empty: bool


@dataclass(frozen=True)
class ChosenFiles:
    """Checked settings."""

    kind: str
    source: FileSource
    max_batch_bytes: int
    follow: bool
    tail: float | Literal["hold"]
    allow_empty: bool

    @staticmethod
    def of(
        kind: str, paths: Paths, default_pattern: str | tuple[str, ...], **settings: Unpack[FileSettings]
    ) -> ChosenFiles:
        """Check settings; `kind` ("text", "CSV") is for messages. `TypeError` or `ValueError` if something is wrong."""
        unknown = sorted(settings.keys() - FileSettings.__annotations__.keys())
        if unknown:
            raise TypeError(
                f"unknown argument {unknown[0]!r}; besides its own, a spout of files has "
                f"{', '.join(FileSettings.__annotations__)}"
            )
        if settings.keys() >= {"tail", "tail_idle_s"}:
            raise TypeError("tail_idle_s is the former name of tail; give one of them")
        max_batch_bytes = settings.get("max_batch_bytes", 8 << 20)
        tail = settings.get("tail", settings.get("tail_idle_s", WAIT_S))
        if max_batch_bytes < 1:
            raise ValueError(f"max_batch_bytes is {max_batch_bytes}; it must be at least 1")
        if tail != "hold" and not (isinstance(tail, (int, float)) and tail >= 0):
            raise ValueError(f'tail is {tail!r}; it must be a number of seconds, not negative, or "hold"')
        patterns, recursive = settings.get("pattern", default_pattern), settings.get("recursive", True)
        source = FileSource.of(paths, patterns, recursive, skips_underscored=kind != "text")
        follow, allow_empty = settings.get("follow", True), settings.get("allow_empty", False)
        return ChosenFiles(kind, source, max_batch_bytes, follow, tail, allow_empty)

    def coordinator(
        self, format_: FileFormat, now: Callable[[], float] | None, conf: Mapping[str, Any]
    ) -> FileCoordinator:
        """Open the driver's side; `SpoutError` if there is no file to read, or would be those that the topology writes."""
        for folder, name in conf.get("own_files", {}).items():
            if self.source.covers(folder, name):
                raise SpoutError(
                    f"{self.source} has {folder} in it, where the topology itself writes: it would read what it has written. "
                    "Keep them apart, or give a pattern that leaves such files out"
                )
        if not self.allow_empty and not self.source.files():
            raise SpoutError(
                f"no {self.kind} file to read in {self.source}. Correct the path or the pattern, or give allow_empty=True if "
                "files will come later"
            )
        return FileCoordinator(
            format_, self.source, self.max_batch_bytes, TailRule(self.tail, self.follow, now or time.time)
        )


class FileEmitter(Protocol):
    """The worker's side."""

    def emit(self, part: Sequence[Piece]) -> Iterator[pa.Table]:
        """Read the pieces of files that make up a part."""


class FileSpout:
    """Emits what is in files once. Transactional.

    Parameters
    ----------
    files
        Which files, and in what batches.
    format_
        Where a batch may end in them.
    fields, emitter
        What is emitted, and the worker's side.
    """

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(self, files: ChosenFiles, format_: FileFormat, fields: Fields, emitter: FileEmitter) -> None:
        self._files, self._format, self._fields, self._emitter = files, format_, fields, emitter

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_coordinator(self, conf: Mapping[str, Any], now: Callable[[], float] | None = None) -> FileCoordinator:
        """Open the driver's side; `SpoutError` if there is no file to read."""
        return self._files.coordinator(self._format, now, conf)

    def get_emitter(self, conf: Mapping[str, Any]) -> FileEmitter:
        """Return the worker's side."""
        return self._emitter
