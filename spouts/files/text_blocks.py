"""From byte ranges to blocks of text that end at line ends: checked, unpacked, as UTF-8."""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spouts.files.line_ends import LineFiles, line_end_after, too_long
from spouts.files.ranges import Piece, check_unchanged, open_error, opened
from trident.errors import ReplayMismatchError, SpoutError

_log = logging.getLogger(__name__)
_BLOCK = 1_000_000
_BOM = b"\xef\xbb\xbf"
_NEWLINE = ord("\n")
_warned: set[str] = set()

Block = tuple[int, bytes]


class TextBlock(NamedTuple):
    """A block, as it is in the file from `offset` on, and as UTF-8 in which every line ends with a newline.

    `is_first` says whether it is the beginning of the file.
    """

    path: str
    offset: int
    block: bytes
    text: bytes
    is_first: bool


def read_texts(pieces: Iterable[Piece], files: LineFiles) -> Iterator[TextBlock]:
    """Read pieces, as blocks of about a megabyte."""
    for piece in pieces:
        range_ = piece.range
        try:
            with opened(range_.path) as file:
                check_unchanged(file, range_, files.is_whole(range_.path))
                blocks = _gz_blocks if range_.path.endswith(".gz") else _plain_blocks
                for offset, block in blocks(file, piece, files.max_line_bytes):
                    is_first = offset == 0
                    if is_first and files.encoding == "utf-8" and block.startswith(_BOM):
                        offset, block = len(_BOM), block[len(_BOM) :]
                    if block:
                        yield _text_of(range_.path, offset, block, is_first, files)
        except OSError as error:
            doing = f"cannot read the batch defined as bytes {range_.start} to {range_.end}"
            raise open_error(range_.path, error, doing) from error


def _plain_blocks(file: int, piece: Piece, longest: int) -> Iterator[Block]:
    """Give what begins in a piece, in blocks that end at line ends (but the last), with the offset of each."""
    range_ = piece.range
    at = piece.start if piece.start == range_.start else line_end_after(file, piece.start - 1, piece.end)
    end = range_.end if piece.end == range_.end else line_end_after(file, piece.end - 1, range_.end)
    if at >= piece.end:
        return  # the line that begins before this piece ends after it

    def read(start: int, stop: int) -> bytes:
        data = b""
        while len(data) < stop - start:  # one call gives 2 GiB at most, and some file systems less than is asked for
            more = os.pread(file, stop - start - len(data), start + len(data))
            if not more:
                raise ReplayMismatchError(
                    f"the batch was defined as bytes {range_.start} to {range_.end} of {range_.path}, which ended at byte "
                    f"{start + len(data)} while it was read: it was truncated. Put the file back as it was and start again"
                )
            data += more
        return data

    while at < end:
        stop = min(end, at + _BLOCK)
        block = read(at, stop)
        if not block.endswith(b"\n"):  # the rest of the line, as far as it may go on
            block += read(stop, line_end_after(file, stop, min(end, stop + longest + 1)))
        yield at, block
        at += len(block)


def _gz_blocks(file: int, piece: Piece, longest: int) -> Iterator[Block]:
    """As `_plain_blocks`, of a compressed file."""
    path, at = piece.range.path, 0
    with os.fdopen(file, "rb", buffering=0, closefd=False) as raw, gzip.GzipFile(fileobj=raw) as unpacked:
        try:
            while block := unpacked.read(_BLOCK):
                if not block.endswith(b"\n"):
                    block += unpacked.readline(longest + 1)
                yield at, block
                at += len(block)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SpoutError(
                f"the compressed file {path} is damaged or not complete: {error} (at byte {raw.tell()} of "
                f"{piece.range.end}, {unpacked.tell()} bytes unpacked). Put a complete file there and start again"
            ) from error


def _text_of(path: str, offset: int, block: bytes, is_first: bool, files: LineFiles) -> TextBlock:
    if len(block) > files.max_line_bytes:
        ends = line_ends(block)
        lengths = np.diff(ends, prepend=-1)  # with the line end
        if int(lengths.max()) > files.max_line_bytes + 1:
            longest = int(lengths.argmax())
            raise too_long(path, offset + int(ends[longest] - lengths[longest]) + 1, files.max_line_bytes)
    text = block if block.endswith(b"\n") else block + b"\n"
    text = _as_utf8(path, offset, text, files)
    if b"\r" in text:  # much faster to look for than both bytes
        text = text.replace(b"\r\n", b"\n")
    return TextBlock(path, offset, block, text, is_first)


def line_ends(text: bytes) -> npt.NDArray[np.int64]:
    """Return the positions of the line ends; a last line without one ends with the text."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return ends if text.endswith(b"\n") else np.append(ends, len(text))


def _as_utf8(path: str, offset: int, text: bytes, files: LineFiles) -> bytes:
    """Return the text as valid UTF-8; `errors` says what becomes of bytes that are no text in the encoding."""
    if files.encoding == "utf-8" and (text.isascii() or _is_utf8(text)):
        return text
    try:
        return text.decode(files.encoding).encode()
    except UnicodeDecodeError as error:
        at = offset + error.start
        if files.errors == "strict":
            raise SpoutError(
                f"byte {at} of {path} is not {files.encoding} text ({error.reason}). Give the right encoding, or "
                'errors="replace" to have U+FFFD in its place'
            ) from error
    # Line by line: the decoder of some encodings takes a line end for a part of a broken character.
    mended = "\n".join([line.decode(files.encoding, "replace") for line in text.split(b"\n")])
    if path not in _warned:
        _warned.add(path)
        _log.warning(
            "%s is not all %s text: the first broken byte seen is byte %d; %d characters around there are U+FFFD now",
            path, files.encoding, at, mended.count("\ufffd"),
        )  # fmt: skip
    return mended.encode()


def _is_utf8(text: bytes) -> bool:
    # Arrow validates without making a copy of the text, which decoding would.
    whole = pa.StringArray.from_buffers(1, buffer_of(np.array([0, len(text)], np.int32)), pa.py_buffer(text))
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def buffer_of(numbers: npt.NDArray[np.int32]) -> pa.Buffer:
    """Return numbers as a buffer, without a copy."""
    return pa.py_buffer(numbers.data.cast("B"))
