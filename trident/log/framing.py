"""The bytes of the log: frames of magic (4 bytes), length and checksum (u32, big-endian), then the payload (msgpack).

The checksum covers the place too, offset and length: bytes of a log inside a payload, or in the wrong place, are no frame.
Where a definition may be lost (all states are opaque) it is written without a sync, and that of the commit record makes both
durable. `SYNCED` says that everything before the frame was durable when it was written; `UNSYNCED` says nothing of that.

One rule reads a log after any crash. Frames are valid up to the first whose checksum is wrong. If a whole `SYNCED` frame comes
after that one, it was durable, and the disk has damaged it: an error. Otherwise it and all after it was never acknowledged.
"""

import struct
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from trident.errors import CorruptLogError

SYNCED = b"\xc1TL\xb1"  # MessagePack never uses 0xc1, so no payload begins like a frame
UNSYNCED = b"\xb2TL\xc1"  # no beginning of it is a beginning of the other
_HEAD = struct.Struct(">4sII")
_PLACE = struct.Struct(">QI")
HEAD_BYTES = _HEAD.size
_MAX_PAYLOAD = 2**32 - 1
_FEW_BYTES = 512  # most records have fewer; to allocate the default buffer of 256 KB takes longer than to pack a record


class Frame(NamedTuple):
    """One frame: where it starts and ends in its file, and what it carries."""

    offset: int
    end: int
    payload: bytes


def encode(data: Any) -> bytes:
    """Return plain data as msgpack; ValueError if it holds anything else."""
    try:
        # Names of files may hold undecodable bytes (surrogates); reading must restore them.
        payload = bytes(msgpack.Packer(unicode_errors="surrogatepass", buf_size=_FEW_BYTES).pack(data))
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


def frame(payload: bytes, offset: int, synced: bool = True) -> bytes:
    """Return the frame of `payload` for the place `offset` of its file; `synced` if all bytes before it are durable."""
    return _HEAD.pack(SYNCED if synced else UNSYNCED, len(payload), _checksum(payload, offset)) + payload


def read_frames(data: bytes, base: int, path: object) -> tuple[list[Frame], int]:
    """Read the frames of `data`, which starts at byte `base` of `path`, up to the first whose checksum is wrong.

    Returns them, and how many bytes follow, without the zeros that the writer allocated in advance.
    Raises `CorruptLogError`: the frame with a wrong checksum was durable, as a later one says.
    """
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        next_frame = _frame_at(data, at, base)
        if next_frame is None:
            _check_unfinished(data, at, base, path)
            break
        frames.append(next_frame)
        at = next_frame.end - base
    return frames, len(data[at:].rstrip(b"\0"))


def length_of(head: bytes) -> int:
    """Return the length of the payload behind the head of a frame; 0 if it is none."""
    return int(_HEAD.unpack(head)[1]) if len(head) == HEAD_BYTES else 0


def _checksum(payload: bytes, offset: int) -> int:
    return crc32(payload, crc32(_PLACE.pack(offset, len(payload))))


def _frame_at(data: bytes, at: int, base: int) -> Frame | None:
    if at + HEAD_BYTES > len(data):
        return None
    magic, length, checksum = _HEAD.unpack_from(data, at)
    start, end = at + HEAD_BYTES, at + HEAD_BYTES + length
    if magic not in (SYNCED, UNSYNCED) or end > len(data):
        return None
    payload = data[start:end]
    return Frame(base + at, base + end, payload) if _checksum(payload, base + at) == checksum else None


def _check_unfinished(data: bytes, bad: int, base: int, path: object) -> None:
    """Raise `CorruptLogError` if the frame at `bad` was durable; else it is an end that a crash left unfinished."""
    follower = _synced_after(data, bad, base)
    if follower is not None:
        reason = f"the record there has a wrong checksum, and another one follows at byte {base + follower}"
        raise CorruptLogError(str(path), base + bad, reason)


def _synced_after(data: bytes, bad: int, base: int) -> int | None:
    """Return the place of a frame which says that the bad one was durable; None if there is none."""
    if bad + HEAD_BYTES <= len(data):
        # That frame may itself be unfinished, with a wrong checksum; at the end of the bad one its magic alone is enough.
        end = bad + HEAD_BYTES + int(_HEAD.unpack_from(data, bad)[1])
        rest = data[end : end + len(SYNCED)]
        if rest and SYNCED.startswith(rest):
            return end
    at = data.find(SYNCED, bad + 1)
    while at >= 0 and _frame_at(data, at, base) is None:
        at = data.find(SYNCED, at + 1)
    return at if at >= 0 else None
