"""The codec of stored values: every type comes back as it was, and no byte of a store is ever executed.

A value is one version byte (1) and a MessagePack object; `extensions.py` lists the types. A key is the value that is the list
of its fields, each in its one form (`equal_keys.py`). The same value gives the same bytes in every process.
"""

import os
import struct
from collections.abc import Callable, Sequence
from decimal import InvalidOperation
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import msgpack

from trident.errors import CorruptValueError
from trident.state.encoding.equal_keys import canonical_key, canonical_keys
from trident.state.encoding.extensions import TUPLE, new_packer, new_row_packer, pack, type_name, unpack
from trident.state.interfaces import Key

VERSION = 1  # the first byte of every encoded value
_VERSION_BYTE = bytes([VERSION])
_JOINED_MAX = 1 << 24  # values of more bytes than this together are decoded one by one: joining them costs memory


def encode(obj: object) -> bytes:
    """Encode a value.

    Raises
    ------
    CorruptValueError
        A part of it has no encoding: a type that is not listed, text with lone surrogates, or nesting that is too deep.
    """
    try:
        return _VERSION_BYTE + pack(obj)
    except UnicodeEncodeError as error:
        raise CorruptValueError(
            f"encode text {error.object!r}: it has a lone surrogate at position {error.start}, which UTF-8 cannot "
            "hold; decode the source with errors='replace', or keep the value as bytes"
        ) from error
    except BufferError as error:
        raise CorruptValueError(f"encode a {type_name(obj)}: {error}; give bytes of it") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise CorruptValueError(f"encode a {type_name(obj)}: it is too large or nested too deeply ({error})") from error


def decode(data: bytes) -> Any:
    """Decode what `encode` made; `CorruptValueError`: the bytes are not an encoded value of a known version."""
    decoder = _VERSIONS.get(data[0]) if data else None
    if decoder is None:
        raise CorruptValueError(
            f"decode {_quote(data)}: a stored value starts with byte {VERSION}; these bytes were written by another "
            "program, another serializer or a newer version. Use the serializer they were written with, or another "
            "key prefix"
        )
    try:
        return decoder(memoryview(data)[1:])
    except _DAMAGE as error:
        raise CorruptValueError(
            f"decode {_quote(data)}: damaged or cut off ({str(error) or type(error).__name__}); restore the store"
        ) from error


def encode_many(objs: Sequence[Any], as_lists: bool = False) -> list[bytes]:
    pack_one = new_packer().pack
    try:
        return [_VERSION_BYTE + data for data in map(pack_one, map(list, objs) if as_lists else objs)]
    except _UNPACKABLE:
        return [encode(list(one) if as_lists else one) for one in objs]  # which raises the error of the bad one


def encode_columns(head: Sequence[object], columns: Sequence[Sequence[object]]) -> list[bytes]:
    """Encode rows as lists of their items: those of `head`, which is the same for all, then one of each column."""
    width, count = len(columns) + 1, len(columns[0])
    token = os.urandom(8)
    items: list[object] = [token] * (width * count)
    for at, column in enumerate(columns, start=1):
        items[at::width] = column
    try:
        packer = new_packer()
        start = _VERSION_BYTE + packer.pack_array_header(len(head) + len(columns)) + b"".join(map(packer.pack, head))
        _, *rows = packer.pack(items).split(b"\xc4\x08" + token)
    except _UNPACKABLE:
        return [encode([*head, *row]) for row in zip(*columns, strict=True)]  # which raises the error of the bad one
    return [start + row for row in rows]


def encode_tuples(rows: Sequence[Sequence[object]]) -> list[bytes]:
    packer = new_packer()
    pack_list, pack_extension = packer.pack, packer.pack_ext_type
    try:
        return [_VERSION_BYTE + pack_extension(TUPLE, pack_list(list(row))) for row in rows]
    except _UNPACKABLE:
        return [encode(tuple(row)) for row in rows]


def decode_many(data: Sequence[bytes]) -> list[Any]:
    columns = _decode_together(data, _VERSION_BYTE, 1)
    return [decode(one) for one in data] if columns is None else columns[0]


def decode_found(data: Sequence[bytes | None], absent: Any) -> list[Any]:
    found = iter(decode_many([one for one in data if one is not None]))
    return [absent if one is None else next(found) for one in data]


def decode_columns(data: Sequence[bytes], width: int) -> list[list[Any]] | None:
    """Decode lists of `width` items and return them as columns; None if not every value is such a list, undamaged."""
    return _decode_together(data, _VERSION_BYTE + bytes([_EMPTY_LIST + width]), width) if 0 < width < 16 else None


def encode_keys(keys: Sequence[Key], prefix: bytes = b"") -> list[bytes]:
    """Encode each key, behind a prefix: equal keys of the same types have the same bytes, all other keys have other bytes.

    Raises
    ------
    CorruptValueError
        A field of a key has no encoding; the message has the key.
    """
    head = prefix + _VERSION_BYTE
    try:
        forms = canonical_keys(keys)
        if forms is keys:  # no key has a field that could be nested
            return [head + packed for packed in map(new_row_packer().pack, keys)]
        return [head + packed for packed in map(new_packer().pack, map(list, forms))]
    except _UNPACKABLE:
        return [prefix + _encode_key(key) for key in keys]


def decode_keys(data: Sequence[bytes]) -> list[Key]:
    """Decode what `encode_keys` made: the keys in their one form, so a time in UTC and a Decimal without zeros."""
    columns = decode_columns(data, data[0][1] - _EMPTY_LIST) if data and len(data[0]) > 1 else None
    return [_decode_key(one) for one in data] if columns is None else list(zip(*columns, strict=True))


def _encode_key(key: Key) -> bytes:
    try:
        return encode(list(canonical_key(key)))
    except (CorruptValueError, OverflowError) as error:
        raise CorruptValueError(f"encode key {key!r}: {error}") from error


def _decode_key(data: bytes) -> Key:
    parts = decode(data)
    if type(parts) is not list:
        raise CorruptValueError(
            f"decode {_quote(data)} as a key: it is a {type_name(parts)}, not the list of the parts; another program "
            "wrote under this key prefix"
        )
    return tuple(parts)


_EMPTY_LIST = 0x90  # MessagePack's byte for a list of no items; lists of up to 15 follow


def _decode_together(data: Sequence[bytes], head: bytes, width: int) -> list[list[Any]] | None:
    """Decode values that are each `head` and `width` packed objects; None if any is not.

    All are unpacked in one call, with a mark before each. The mark has 8 random bytes, so no value contains it, and the marks
    come out at their places only if there are exactly `width` whole objects between each two: a value that is cut off or too
    long cannot take bytes of its neighbours.
    """
    if len(data) < 2 or sum(map(len, data)) > _JOINED_MAX:
        return None
    token = os.urandom(8)
    mark = b"\xc4\x08" + token
    joined = mark + mark.join(data)
    stripped = joined.replace(mark + head, mark)
    if len(joined) - len(stripped) != len(head) * len(data):
        return None
    try:
        found = unpack(b"\xdd" + struct.pack(">I", len(data) * (width + 1)) + stripped)
    except _DAMAGE:
        return None
    if found[:: width + 1].count(token) != len(data):
        return None
    return [found[at :: width + 1] for at in range(1, width + 1)]


_VERSIONS: dict[int, Callable[[memoryview], Any]] = {VERSION: unpack}
"""The reader of each version; a version that was ever written stays here."""

_UNPACKABLE: tuple[type[Exception], ...] = (CorruptValueError, BufferError, ValueError, OverflowError, RecursionError)
_DAMAGE: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    InvalidOperation,
    ZoneInfoNotFoundError,
    msgpack.UnpackException,
    struct.error,
)


def _quote(data: bytes) -> str:
    head = bytes(data[:16])
    return f"{head!r}" if len(data) <= len(head) else f"{head!r}… ({len(data)} bytes)"
