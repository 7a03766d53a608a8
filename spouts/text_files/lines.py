"""From text to lines, as Arrow arrays without a Python object per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spouts.byte_ranges.ranges import Piece
from spouts.text_files.text_blocks import Text, TextOptions, buffer_of, line_ends, read_texts

__all__ = ["LineOptions", "read_lines"]

_TABLE = 1 << 20
_FEW_BYTES = 16 << 10


@dataclass(frozen=True)
class LineOptions:
    """How lines become rows; see `TextFileSpout`."""

    text: TextOptions
    schema: pa.Schema
    with_source: bool


def read_lines(pieces: Iterable[Piece], options: LineOptions) -> Iterator[pa.Table]:
    """Read the lines of pieces, as tables of about a megabyte; small files share one."""
    texts: list[Text] = []
    size = 0
    for text in read_texts(pieces, options.text):
        texts.append(text)
        size += len(text.text)
        if size >= _TABLE:
            yield _batch_of(texts, options)
            texts, size = [], 0
    if texts:
        yield _batch_of(texts, options)


def _batch_of(texts: list[Text], options: LineOptions) -> pa.Table:
    text = texts[0].text if len(texts) == 1 else b"".join([one.text for one in texts])
    # For a few lines a Python object each costs less than numpy needs to begin.
    lines = _lines(text) if len(text) > _FEW_BYTES else pa.array(text[:-1].decode().split("\n"), pa.string())
    columns: list[pa.Array[Any]] = [lines]
    if options.with_source:
        columns += _sources(texts)
    return pa.Table.from_arrays(columns, schema=options.schema)


def _lines(text: bytes) -> pa.StringArray:
    ends = line_ends(text)
    count = len(ends)
    # Line ends are dropped from the data, so each line moves to the front by the number of lines before it.
    offsets = np.zeros(count + 1, np.int32)
    np.subtract(ends, np.arange(count), out=offsets[1:], casting="unsafe")
    data = text.replace(b"\n", b"")
    return pa.StringArray.from_buffers(count, buffer_of(offsets), pa.py_buffer(data))


def _sources(texts: list[Text]) -> list[pa.Array[Any]]:
    """Return the columns of files and of the bytes where lines begin."""
    starts = [np.concatenate(([0], line_ends(one.block)[:-1] + 1)) + one.offset for one in texts]
    paths = pa.array([one.path.encode("utf-8", "replace").decode() for one in texts], pa.string())
    return [
        paths.take(np.repeat(np.arange(len(texts)), [len(one) for one in starts])),
        pa.array(np.concatenate(starts)),
    ]
