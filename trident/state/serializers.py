"""Serializers: what the maps store (`OpaqueValue`, `TransactionalValue` or the bare value) to bytes and back.

`CodecSerializer` keeps every type and is the default. The JSON ones are for stores that other programs read; their
layout is a JSON list: opaque `[txid, attempt, prev, curr]`, transactional `[txid, value]`, non-transactional the bare
value; the sentinel of a partition is `[incarnation, txid, attempt]` in all of them.

What JSON loses: a tuple comes back as a list, a key of a dict as text; a Decimal, a time, bytes or a set is refused,
and so are NaN and the infinities, which JSON does not have. int and float stay apart, and an int keeps all of its
digits here (other programs may read it as a double).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trident.errors import CorruptValueError
from trident.state.codec import decode, encode, plain_number
from trident.state.interfaces import StateType
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue, TransactionalValue

__all__ = [
    "CodecSerializer",
    "JSONNonTransactionalSerializer",
    "JSONOpaqueSerializer",
    "JSONTransactionalSerializer",
    "Serializer",
]


class Serializer(Protocol):
    """Turns what a map stores into bytes and back."""

    def serialize(self, obj: Any) -> bytes:
        """Return the bytes of `obj`; raise `CorruptValueError` if it has none."""

    def deserialize(self, data: bytes) -> Any:
        """Return the object of `data`; raise `CorruptValueError` if it is damaged or foreign."""


class CodecSerializer:
    """The type-faithful codec (`trident.state.codec`) for one kind of map.

    The fields of an `OpaqueValue`, `TransactionalValue` or `Sentinel` are one encoded list.
    """

    def __init__(self, kind: StateType = StateType.OPAQUE) -> None:
        self.kind = kind
        self._stored = _STORED[kind]

    def serialize(self, obj: Any) -> bytes:
        """Encode a stored value or a sentinel."""
        return encode(_fields(obj, self._stored))

    def deserialize(self, data: bytes) -> Any:
        """Decode a stored value or a sentinel."""
        return self._stored(decode(data))


class _JSONSerializer:
    kind: StateType

    def serialize(self, obj: Any) -> bytes:
        """Write a stored value or a sentinel as UTF-8 JSON."""
        stored = _fields(obj, _STORED[self.kind])
        try:
            text = json.dumps(stored, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_json_default)
            return text.encode("utf-8")
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptValueError(
                f"write {type(obj).__name__} as JSON: {error}. JSON has None, bool, int, finite float, text, list and "
                "dict; use CodecSerializer to store any other type"
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Read a stored value or a sentinel from UTF-8 JSON."""
        try:
            stored = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise CorruptValueError(
                f"read {bytes(data[:32])!r} as JSON: {error}; the value is damaged, or another serializer wrote it"
            ) from error
        return _STORED[self.kind](stored)


class JSONOpaqueSerializer(_JSONSerializer):
    """`[txid, attempt, prev, curr]`. Storm's own lists have three fields and no attempt, and are refused."""

    kind = StateType.OPAQUE


class JSONTransactionalSerializer(_JSONSerializer):
    """`[txid, value]`, as Storm's."""

    kind = StateType.TRANSACTIONAL


class JSONNonTransactionalSerializer(_JSONSerializer):
    """The bare value, as Storm's."""

    kind = StateType.NON_TRANSACTIONAL


def _json_default(obj: object) -> object:
    number = plain_number(obj)
    if number is None:
        raise TypeError(f"JSON has no {type(obj).__name__}")
    return number


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


# ---- the fields of what is stored ------------------------------------------------------------------------------------


def _opaque(fields: Any) -> OpaqueValue | Sentinel:
    if isinstance(fields, list):
        if len(fields) == 4 and _are_ints(fields[:2]):
            return OpaqueValue(*fields)
        if _is_sentinel(fields):
            return Sentinel(*fields)
    raise _misfit(fields, "[txid, attempt, prev, curr] of an opaque state")


def _transactional(fields: Any) -> TransactionalValue | Sentinel:
    if isinstance(fields, list):
        if len(fields) == 2 and _are_ints(fields[:1]):
            return TransactionalValue(*fields)
        if _is_sentinel(fields):
            return Sentinel(*fields)
    raise _misfit(fields, "[txid, value] of a transactional state")


def _bare(value: Any) -> Any:
    return value


def _fields(obj: Any, stored: Callable[[Any], Any]) -> Any:
    """Return what is encoded: the list of the fields, or the bare value."""
    if isinstance(obj, (OpaqueValue, TransactionalValue, Sentinel)):
        return list(obj)
    if stored is not _bare:
        raise _misfit(obj, "OpaqueValue" if stored is _opaque else "TransactionalValue")
    return obj


def _are_ints(fields: Sequence[Any]) -> bool:
    return all(type(field) is int for field in fields)


def _is_sentinel(fields: list[Any]) -> bool:
    return len(fields) == 3 and isinstance(fields[0], str) and _are_ints(fields[1:])


def _misfit(found: Any, wanted: str) -> CorruptValueError:
    text = repr(found)
    return CorruptValueError(
        f"a stored value is {text if len(text) <= 80 else text[:80] + '…'}, not {wanted}: it was written by a state of "
        "another kind or by another program; use the kind it was written with, or another key prefix"
    )


_STORED: dict[StateType, Callable[[Any], Any]] = {
    StateType.OPAQUE: _opaque,
    StateType.TRANSACTIONAL: _transactional,
    StateType.NON_TRANSACTIONAL: _bare,
}
