"""Bytes of the log: how one payload is framed, how frames are read back, and the file that they are appended to.

A frame is a magic of four bytes, the payload's length and checksum (both u32, big-endian), and the payload (msgpack).
The magic says whether the frames before it were durable when it was written: a crash may harm those that were not, and
leave a later one whole.
The checksum also covers the frame's offset in its file and the length: bytes of a log inside a payload never look like
a frame, and a frame in the wrong place is no frame.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from trident.errors import CorruptLogError

__all__ = [
    "HEAD_BYTES",
    "Frame",
    "Frames",
    "LogFile",
    "decode",
    "encode",
    "frame",
    "make_directory",
    "read_frames",
    "sync_directory",
]

MAGIC = b"\xc1TL\xb1"  # msgpack never uses 0xc1
HASTY = b"\xb2TL\xc1"  # the same where the frame before is not durable; no first part of it looks like the other
_HEAD = struct.Struct(">4sII")
_PLACE = struct.Struct(">QI")
HEAD_BYTES = _HEAD.size
_MAX_PAYLOAD = 2**32 - 1
_SPACE = 64 << 10
_sync_data = getattr(os, "fdatasync", os.fsync)  # not every POSIX system has fdatasync


class Frame(NamedTuple):
    """One frame: where it starts and ends in its file, and what it carries."""

    offset: int
    end: int
    payload: bytes


class Frames(NamedTuple):
    """Frames in order, the number of bytes from an unfinished frame on (zeros are unused space), and whole frames there."""

    frames: list[Frame]
    torn: int
    beyond: list[Frame]


def encode(data: Any) -> bytes:
    """Return plain data as msgpack; ValueError if it holds anything else."""
    try:
        # Names of files may hold undecodable bytes (surrogates); they must come back as they were.
        payload = bytes(msgpack.packb(data, use_bin_type=True, unicode_errors="surrogatepass"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"cannot write this to the transaction log: {error}. Definitions of spouts are plain data: None, bool, "
            "int (64 bits), float, str, bytes, list, dict"
        ) from error
    if len(payload) > _MAX_PAYLOAD:
        raise ValueError(f"cannot write this to the transaction log: {len(payload)} bytes, at most {_MAX_PAYLOAD} fit")
    return payload


def decode(payload: bytes) -> Any:
    """Return the data of a payload (tuples come back as lists); ValueError if it is not msgpack."""
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False, unicode_errors="surrogatepass")
    except (TypeError, ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"cannot read this from the transaction log: {error or type(error).__name__}") from error


def frame(payload: bytes, offset: int, hasty: bool = False) -> bytes:
    """Return the frame of `payload` for the place `offset` of its file; `hasty` if what is before it is not durable."""
    return _HEAD.pack(HASTY if hasty else MAGIC, len(payload), _checksum(payload, offset)) + payload


def read_frames(data: bytes, base: int, path: Path) -> Frames:
    """Read all frames of `data`, which starts at byte `base` of `path`.

    Raises
    ------
    CorruptLogError
        A frame does not check although it was durable, as a later one says. What a crash can harm are the frames
        since the last one of which that is said; whole ones after the first of them that does not check are `beyond`.
    """
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        found = _frame_at(data, at, base)
        if found is None:
            follower = _follower(data, at, base)
            if follower is not None:
                reason = f"the record there does not check, and another one follows at byte {base + follower}"
                raise CorruptLogError(str(path), base + at, reason)
            break
        frames.append(found)
        at = found.end - base
    return Frames(frames, len(data[at:].rstrip(b"\0")), list(_hasty_after(data, at, base)))


def _checksum(payload: bytes, offset: int) -> int:
    return crc32(payload, crc32(_PLACE.pack(offset, len(payload))))


def _frame_at(data: bytes, at: int, base: int) -> Frame | None:
    if at + HEAD_BYTES > len(data):
        return None
    magic, length, checksum = _HEAD.unpack_from(data, at)
    start, end = at + HEAD_BYTES, at + HEAD_BYTES + length
    if magic not in (MAGIC, HASTY) or end > len(data):
        return None
    payload = data[start:end]
    return Frame(base + at, base + end, payload) if _checksum(payload, base + at) == checksum else None


def _follower(data: bytes, bad: int, base: int) -> int | None:
    """Return where a frame begins that tells that the bad one was durable, None if there is no sign of any."""
    if bad + HEAD_BYTES <= len(data):
        # The last frame may itself be torn: then no valid one follows, but its beginning gives the bad one away.
        end = bad + HEAD_BYTES + int(_HEAD.unpack_from(data, bad)[1])
        rest = data[end : end + len(MAGIC)]
        if rest and MAGIC.startswith(rest):
            return end
    at = data.find(MAGIC, bad + 1)
    while at >= 0:
        if _frame_at(data, at, base) is not None:
            return at
        at = data.find(MAGIC, at + 1)
    return None


def _hasty_after(data: bytes, bad: int, base: int) -> Iterator[Frame]:
    """Find the whole frames after a bad one."""
    at = data.find(HASTY, bad + 1)
    while at >= 0:
        found = _frame_at(data, at, base)
        if found is not None:
            yield found
        at = data.find(HASTY, at + 1 if found is None else found.end - base)


class LogFile:
    """A file that is only appended to. The one place where the log's bytes meet the operating system.

    While it is open there may be zeros after what was appended: space that is had before it is needed, since a sync takes
    a third less where the size of the file stays.
    """

    def __init__(self, path: Path) -> None:
        """Create `path`, which must not exist."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = self._space = 0

    def write(self, data: bytes) -> None:
        """Append all of `data`; after an error any part of it may have been written."""
        if self._size + len(data) > self._space:
            self._space = self._size + len(data) + _SPACE
            with suppress(OSError, AttributeError):  # no such call, or no room: then the data may still have some
                os.posix_fallocate(self._fd, self._size, self._space - self._size)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._fd, rest, self._size)
            self._size, rest = self._size + written, rest[written:]

    def sync(self) -> None:
        """Return once everything written is durable; OSError also if the file has no name any more, so that it is lost."""
        _sync_data(self._fd)
        if not os.fstat(self._fd).st_nlink:
            gone = "its newest segment was removed or replaced while it was written (was log_dir restored from a copy?)"
            raise OSError(errno.ENOENT, gone)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes, durably."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self._size = self._space = size

    def trim(self) -> None:
        """Give back the space that was not needed. Only for the process that writes, and as the last thing that it does."""
        if self._fd >= 0:
            with suppress(OSError):  # the zeros do no harm
                os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it where they are missing, all of them durable; one that is there stays.

    Its name is made durable then too: whoever made it may have ended before.
    """
    directory = directory.absolute()
    missing = not directory.is_dir()
    if missing:
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
    try:
        sync_directory(directory.parent)
    except OSError:
        if missing:  # else it may be one that this user cannot list, or be mounted on what cannot be written to
            raise
