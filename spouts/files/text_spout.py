"""TextFileSpout: the lines of text files, each exactly once, from files that are there, that come and that grow.

A definition is plain data:

``ranges``
    What the batch contains: `[path, start, end, crc]` per file, byte ranges that end at line ends. The checksum is of
    the bytes just before `end`, so that a replay finds a file that was truncated or replaced.
``base``
    The directory that all paths in `ranges` are relative to.
``done``
    Only with `follow`: how far every file was read (see `ranges.py`), packed to 4 to 12 bytes a file.
``at``
    Only without `follow`: path, offset and checksum where the batch ends. Files are read in the order of their paths,
    so this says it all; the definition has the same size however many files there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from spouts.files.file_listing import Paths
from spouts.files.file_settings import FileEmitter, FileSettings, FileSpout
from spouts.files.line_ends import LineFiles
from spouts.files.line_reading import TextBlock, line_ends, read_texts
from spouts.files.ranges import Piece
from trident.fields import Fields

_TABLE = 1 << 20
_FEW_BYTES = 16 << 10


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

    def __init__(
        self,
        paths: Paths,
        *,
        encoding: str = "utf-8",
        errors: str = "replace",
        with_source: bool = False,
        output_field: str = "line",
        max_line_bytes: int = 64 << 20,
        **files: Unpack[FileSettings],
    ) -> None:
        super().__init__("text", paths, "*", **files)
        lines = LineFiles(encoding, errors, max_line_bytes)
        fields = Fields(f"{output_field}: string", *(("file: string", "offset: bigint") if with_source else ()))
        self._read_as(lines, TextEmitter(lines, fields))


class TextEmitter(FileEmitter):
    """Emits lines; see `TextFileSpout`."""

    def __init__(self, files: LineFiles, fields: Fields) -> None:
        super().__init__(fields)
        self._files = files

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        """Give the lines of a part; small files share a table."""
        texts: list[TextBlock] = []
        size = 0
        for text in read_texts(part, self._files):
            texts.append(text)
            size += len(text.text)
            if size >= _TABLE:
                yield self._table_of(texts)
                texts, size = [], 0
        if texts:
            yield self._table_of(texts)

    def _table_of(self, texts: list[TextBlock]) -> pa.Table:
        text = texts[0].text if len(texts) == 1 else b"".join([one.text for one in texts])
        # For a few lines a Python object each costs less than numpy needs to begin.
        lines = _lines(text) if len(text) > _FEW_BYTES else pa.array(text[:-1].decode().split("\n"), pa.string())
        columns: list[pa.Array[Any]] = [lines]
        if len(self.fields) > 1:
            columns += _sources(texts)
        return pa.Table.from_arrays(columns, schema=self._schema)


def _lines(text: bytes) -> pa.StringArray:
    """Return lines as an Arrow array, without a Python object for each."""
    ends = line_ends(text)
    count = len(ends)
    # Line ends are dropped from the data, so each line moves to the front by the number of lines before it.
    offsets = np.zeros(count + 1, np.int32)
    np.subtract(ends, np.arange(count), out=offsets[1:], casting="unsafe")
    data = text.replace(b"\n", b"")
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def _sources(texts: list[TextBlock]) -> list[pa.Array[Any]]:
    """Return the columns of files and of the bytes where lines begin."""
    starts = [np.concatenate(([0], line_ends(one.block)[:-1] + 1)) + one.offset for one in texts]
    paths = pa.array([one.path.encode("utf-8", "replace").decode() for one in texts], pa.string())
    return [
        paths.take(np.repeat(np.arange(len(texts)), [len(one) for one in starts])),
        pa.array(np.concatenate(starts)),
    ]
