"""The types that MessagePack does not have: how the codec packs each of them, and how it reads them back.

MessagePack's own types carry None, bool, int up to 64 bits, float (NaN, infinities and -0.0 included), str, bytes, list
and dict (any encodable key, order kept); these extension types carry the rest:

====  ===========  ==================================================================
code  type         payload
====  ===========  ==================================================================
1     int          two's complement, big endian, if 64 bits are too few
2     Decimal      its text; sign, exponent and trailing zeros kept
3     date         packed [year, month, day]
4     datetime     packed [year, month, day, hour, minute, second, microsecond, fold, zone]
5     time         packed [hour, minute, second, microsecond, fold, zone]
6     timedelta    packed [days, seconds, microseconds]
7     tuple        packed list of the items (a NamedTuple is encoded as the plain tuple)
8     set          packed list of the items in the order of their encodings
9     frozenset    as set
10    UUID         16 bytes
====  ===========  ==================================================================

A zone is None (naive), text (the key of a `ZoneInfo`), or [microseconds east of UTC] or [microseconds, name] (a fixed
offset; any other tzinfo is kept as its offset at that time). Numpy's int, float and bool scalars are encoded as the
Python number that they hold; bytearray and memoryview come back as bytes. The same value gives the same bytes in every
process.
"""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack

from trident.errors import CorruptValueError
from trident.types import plain_number

_BIG_INT, _DECIMAL, _DATE, _DATETIME, _TIME, _TIMEDELTA, TUPLE, _SET, _FROZENSET, _UUID = range(1, 11)
_MICROSECOND = dt.timedelta(microseconds=1)


def type_name(obj: object) -> str:
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _ext_time(obj: dt.datetime | dt.time) -> bytes:
    day = [obj.year, obj.month, obj.day] if isinstance(obj, dt.datetime) else []
    return pack([*day, obj.hour, obj.minute, obj.second, obj.microsecond, obj.fold, _zone(obj)])


def _ext_set(obj: set[Any] | frozenset[Any]) -> bytes:
    # Sorted by their encodings: the iteration order of a set of texts differs from process to process.
    items = sorted(pack(item) for item in obj)
    return bytes(new_packer().pack_array_header(len(items))) + b"".join(items)


def _zone(obj: dt.datetime | dt.time) -> object:
    zone = obj.tzinfo
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    offset = obj.utcoffset()
    if offset is None:
        raise CorruptValueError(
            f"encode {obj!r}: its time zone {zone!r} has no offset without a date; use a zoneinfo.ZoneInfo or a fixed "
            "offset (datetime.timezone)"
        )
    name = zone.tzname(None) if type(zone) is dt.timezone else None
    micros = offset // _MICROSECOND
    return [micros] if name is None or name == dt.timezone(offset).tzname(None) else [micros, name]


_ENCODERS: dict[type[Any], tuple[int, Callable[[Any], bytes]]] = {
    int: (_BIG_INT, lambda obj: obj.to_bytes(obj.bit_length() // 8 + 1, "big", signed=True)),
    Decimal: (_DECIMAL, lambda obj: str(obj).encode("ascii")),
    dt.date: (_DATE, lambda obj: pack([obj.year, obj.month, obj.day])),
    dt.datetime: (_DATETIME, _ext_time),
    dt.time: (_TIME, _ext_time),
    dt.timedelta: (_TIMEDELTA, lambda obj: pack([obj.days, obj.seconds, obj.microseconds])),
    tuple: (TUPLE, lambda obj: pack(list(obj))),
    set: (_SET, _ext_set),
    frozenset: (_FROZENSET, _ext_set),
    UUID: (_UUID, lambda obj: bytes(obj.bytes)),
}


def _default(obj: object) -> object:
    encoder = _ENCODERS.get(tuple if isinstance(obj, tuple) else type(obj))
    if encoder is not None:
        code, payload = encoder
        return msgpack.ExtType(code, payload(obj))
    number = plain_number(obj)
    if number is None:
        raise CorruptValueError(
            f"encode a {type_name(obj)}: only None, bool, int, float, str, bytes, Decimal, date, datetime, time, "
            "timedelta, UUID, tuple, list, dict, set and frozenset are stored. Return one of these from the aggregator "
            "(a dataclass as its tuple or dict), or give the state a serializer of your own"
        )
    return number


# buf_size: allocating the default buffer of 256 KB takes longer than packing a value.
new_row_packer = partial(msgpack.Packer, default=_default, buf_size=512)
"""Makes a packer of rows, tuples or lists alike, whose items are of types that have no other form, and not nested."""
# strict_types: a subclass would come back as its base class, so it is refused (except for tuples, see above).
new_packer = partial(new_row_packer, strict_types=True)
"""Makes a packer for many values; one thread at a time may use it."""


def pack(obj: object) -> bytes:
    packed: bytes = new_packer().pack(obj)
    return packed


def _tzinfo(zone: Any) -> dt.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        return ZoneInfo(zone)
    micros, *name = zone
    return dt.timezone(dt.timedelta(microseconds=micros), *name)


def _time(kind: Callable[..., Any], data: bytes) -> Any:
    *parts, fold, zone = unpack(data)
    return kind(*parts).replace(tzinfo=_tzinfo(zone), fold=fold)


_DECODERS: dict[int, Callable[[bytes], object]] = {
    _BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    _DECIMAL: lambda data: Decimal(data.decode("ascii")),
    _DATE: lambda data: dt.date(*unpack(data)),
    _DATETIME: partial(_time, dt.datetime),
    _TIME: partial(_time, dt.time),
    _TIMEDELTA: lambda data: dt.timedelta(*unpack(data)),
    TUPLE: lambda data: tuple(unpack(data)),
    _SET: lambda data: set(unpack(data)),
    _FROZENSET: lambda data: frozenset(unpack(data)),
    _UUID: lambda data: UUID(bytes=data),
}


def _ext_hook(code: int, data: bytes) -> object:
    decoder = _DECODERS.get(code)
    if decoder is None:
        raise ValueError(f"extension type {code} is unknown")
    return decoder(data)


# timestamp=3: MessagePack's own timestamp, which is never written here, is read as a datetime in UTC.
unpack: Callable[[bytes | memoryview], Any] = partial(
    msgpack.unpackb, ext_hook=_ext_hook, strict_map_key=False, timestamp=3
)
"""Unpack one value, which must end where the data ends."""
