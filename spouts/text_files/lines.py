"""From bytes to lines: blocks that end at line ends become Arrow arrays without a Python object per line."""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spouts.text_files.ranges import Piece, check_unchanged, line_end_after, open_error, opened, too_long
from trident.errors import ReplayMismatchError, SpoutError

__all__ = ["LineOptions", "read_lines"]

_log = logging.getLogger(__name__)
_BLOCK = 1 << 20
_FEW_BYTES = 16 << 10
_BOM = b"\xef\xbb\xbf"
_NEWLINE = ord("\n")
_warned: set[str] = set()

Block = tuple[int, bytes]


@dataclass(frozen=True)
class LineOptions:
    """How bytes become lines; see `TextFileSpout`."""

    encoding: str
    errors: str
    max_line_bytes: int
    schema: pa.Schema
    with_source: bool


def read_lines(pieces: Iterable[Piece], options: LineOptions) -> Iterator[pa.Table]:
    """Read the lines of pieces, as tables of about a megabyte; small files share one."""
    texts: list[_Text] = []
    size = 0
    for text in _texts(pieces, options):
        texts.append(text)
        size += len(text.text)
        if size >= _BLOCK:
            yield _batch_of(texts, options)
            texts, size = [], 0
    if texts:
        yield _batch_of(texts, options)


def _texts(pieces: Iterable[Piece], options: LineOptions) -> Iterator[_Text]:
    for piece in pieces:
        range_ = piece.range
        try:
            with opened(range_.path) as file:
                check_unchanged(file, range_)
                for offset, block in (_gz_blocks if range_.whole else _plain_blocks)(file, piece, options):
                    if offset == 0 and options.encoding == "utf-8" and block.startswith(_BOM):
                        offset, block = len(_BOM), block[len(_BOM) :]
                    if block:
                        yield _text_of(range_.path, offset, block, options)
        except OSError as error:
            doing = f"cannot read the batch defined as bytes {range_.start} to {range_.end}"
            raise open_error(range_.path, error, doing) from error


def _plain_blocks(file: int, piece: Piece, options: LineOptions) -> Iterator[Block]:
    range_ = piece.range
    start = piece.start if piece.start == range_.start else line_end_after(file, piece.start - 1, piece.end)
    end = range_.end if piece.end == range_.end else line_end_after(file, piece.end - 1, range_.end)
    if start >= piece.end:
        return  # the line that begins before this piece ends after it
    at = start

    def read(size: int) -> bytes:
        nonlocal at
        data = os.pread(file, min(size, end - at), at) if at < end else b""
        if at < end and not data:
            raise ReplayMismatchError(
                f"the batch was defined as bytes {range_.start} to {range_.end} of {range_.path}, which ended at byte "
                f"{at} while it was read: it was truncated. Put the file back as it was and start again"
            )
        at += len(data)
        return data

    yield from _blocks(read, start, range_.path, options.max_line_bytes)


def _gz_blocks(file: int, piece: Piece, options: LineOptions) -> Iterator[Block]:
    path = piece.range.path
    with os.fdopen(file, "rb", buffering=0, closefd=False) as raw, gzip.GzipFile(fileobj=raw) as unpacked:

        def read(size: int) -> bytes:
            try:
                return unpacked.read(size)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise SpoutError(
                    f"the compressed file {path} is damaged or not complete: {error} (at byte {raw.tell()} of "
                    f"{piece.range.end}, {unpacked.tell()} bytes unpacked). Put a complete file there and start again"
                ) from error

        yield from _blocks(read, 0, path, options.max_line_bytes)


def _blocks(read: Callable[[int], bytes], offset: int, path: str, max_line_bytes: int) -> Iterator[Block]:
    """Regroup what is read into blocks that end at line ends (but the last), with the offset of each."""
    pending: list[bytes] = []
    held = 0
    while data := read(_BLOCK):
        at = data.rfind(b"\n") + 1
        if at:
            block = b"".join([*pending, memoryview(data)[:at]]) if pending or at < len(data) else data
            yield offset, block
            offset += len(block)
            pending, held = ([data[at:]], len(data) - at) if at < len(data) else ([], 0)
        else:
            pending.append(data)
            held += len(data)
        if held > max_line_bytes:
            raise too_long(path, offset, max_line_bytes)
    if pending:
        yield offset, b"".join(pending)


class _Text(NamedTuple):
    """A block, as it is in the file from `offset` on, and as UTF-8 in which every line ends with a newline."""

    path: str
    offset: int
    block: bytes
    text: bytes


def _text_of(path: str, offset: int, block: bytes, options: LineOptions) -> _Text:
    if len(block) > options.max_line_bytes:
        _check_lengths(path, offset, _line_ends(block), options.max_line_bytes)
    text = block if block.endswith(b"\n") else block + b"\n"
    text = _as_utf8(path, offset, text, options)
    if b"\r" in text:  # much faster to look for than both bytes
        text = text.replace(b"\r\n", b"\n")
    return _Text(path, offset, block, text)


def _batch_of(texts: list[_Text], options: LineOptions) -> pa.Table:
    text = texts[0].text if len(texts) == 1 else b"".join([one.text for one in texts])
    # For a few lines a Python object each costs less than numpy needs to begin.
    lines = _lines(text) if len(text) > _FEW_BYTES else pa.array(text[:-1].decode().split("\n"), pa.string())
    columns: list[pa.Array[Any]] = [lines]
    if options.with_source:
        columns += _sources(texts)
    return pa.Table.from_arrays(columns, schema=options.schema)


def _lines(text: bytes) -> pa.StringArray:
    ends = _line_ends(text)
    count = len(ends)
    # Line ends are dropped from the data, so each line moves to the front by the number of lines before it.
    offsets = np.zeros(count + 1, np.int32)
    np.subtract(ends, np.arange(count), out=offsets[1:], casting="unsafe")
    data = text.replace(b"\n", b"")
    return pa.StringArray.from_buffers(count, _buffer(offsets), pa.py_buffer(data))


def _sources(texts: list[_Text]) -> list[pa.Array[Any]]:
    """Return the columns of files and of the bytes where lines begin."""
    starts = [np.concatenate(([0], _line_ends(one.block)[:-1] + 1)) + one.offset for one in texts]
    paths = pa.array([one.path.encode("utf-8", "replace").decode() for one in texts], pa.string())
    return [
        paths.take(np.repeat(np.arange(len(texts)), [len(one) for one in starts])),
        pa.array(np.concatenate(starts)),
    ]


def _buffer(numbers: npt.NDArray[np.int32]) -> pa.Buffer:
    return pa.py_buffer(numbers.data.cast("B"))


def _line_ends(text: bytes) -> npt.NDArray[np.int64]:
    """Return the positions of the line ends; that of a last line without one is the end of the text."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return ends if text.endswith(b"\n") else np.append(ends, len(text))


def _check_lengths(path: str, offset: int, ends: npt.NDArray[np.int64], limit: int) -> None:
    lengths = np.diff(ends, prepend=-1)  # with the line end
    if int(lengths.max()) > limit + 1:
        longest = int(lengths.argmax())
        raise too_long(path, offset + int(ends[longest] - lengths[longest]) + 1, limit)


def _as_utf8(path: str, offset: int, text: bytes, options: LineOptions) -> bytes:
    """Return the text as valid UTF-8; `errors` says what becomes of bytes that are no text in the encoding."""
    if options.encoding == "utf-8" and (text.isascii() or _is_utf8(text)):
        return text
    try:
        return text.decode(options.encoding).encode()
    except UnicodeDecodeError as error:
        at = offset + error.start
        if options.errors == "strict":
            raise SpoutError(
                f"byte {at} of {path} is not {options.encoding} text ({error.reason}). Give the right encoding, or "
                'errors="replace" to have U+FFFD in its place'
            ) from error
    # Line by line: the decoder of some encodings takes a line end for a part of a broken character.
    mended = "\n".join([line.decode(options.encoding, "replace") for line in text.split(b"\n")])
    if path not in _warned:
        _warned.add(path)
        _log.warning(
            "%s is not all %s text: the first broken byte seen is byte %d; %d characters around there are U+FFFD now",
            path, options.encoding, at, mended.count("\ufffd"),
        )  # fmt: skip
    return mended.encode()


def _is_utf8(text: bytes) -> bool:
    # Arrow validates without making a copy of the text, which decoding would.
    whole = pa.StringArray.from_buffers(1, _buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text))
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
