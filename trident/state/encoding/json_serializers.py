"""Stored values as JSON, for stores that other programs read, Storm's among them.

The fields are those of `trident.state.encoding.stored_fields`; Storm's opaque lists differ, see `StormOpaqueSerializer`.

What JSON loses: a tuple comes back as a list, a key of a dict as text; a Decimal, a time, bytes or a set is refused,
and so are NaN and the infinities, which JSON does not have. int and float stay different, and an int keeps all of its
digits here (other programs may read it as a double).
"""

from __future__ import annotations

import json
from typing import Any, Literal

from trident.errors import ConfigError, CorruptValueError
from trident.state.encoding.extensions import plain_number
from trident.state.encoding.stored_fields import fields_of, from_fields
from trident.state.interfaces import StateType
from trident.state.values import UNKNOWN_ATTEMPT, OpaqueValue

__all__ = [
    "JSONNonTransactionalSerializer",
    "JSONOpaqueSerializer",
    "JSONTransactionalSerializer",
    "StormOpaqueSerializer",
]


class _JSONSerializer:
    kind: StateType

    def serialize(self, obj: Any) -> bytes:
        """Write a stored value or a sentinel as UTF-8 JSON."""
        fields = self._fields_of(obj)
        try:
            return _ENCODER.encode(fields).encode("utf-8")
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptValueError(
                f"write {type(obj).__name__} as JSON: {error}. JSON has None, bool, int, finite float, text, list and "
                "dict; use CodecSerializer to store any other type"
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Read a stored value or a sentinel from UTF-8 JSON."""
        try:
            fields = _DECODER.decode(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CorruptValueError(
                f"read {bytes(data[:32])!r} as JSON: {error}; the value is damaged, or another serializer wrote it"
            ) from error
        return self._from_fields(fields)

    def _fields_of(self, obj: Any) -> Any:
        return fields_of(obj, self.kind)

    def _from_fields(self, fields: Any) -> Any:
        return from_fields(fields, self.kind)


class JSONOpaqueSerializer(_JSONSerializer):
    """`[txid, attempt, prev, curr]`.

    Storm's own lists have three fields and no attempt. They are refused, unless `compat="storm"` is given: then they
    are read as `StormOpaqueSerializer` reads them, and each becomes a list of four fields with the next write of its
    key. So a store that Storm filled can be used, but Storm's programs can no longer read it.
    """

    kind = StateType.OPAQUE

    def __init__(self, compat: Literal["storm"] | None = None) -> None:
        if compat not in (None, "storm"):
            raise ConfigError(f"JSONOpaqueSerializer(compat={compat!r}): compat is 'storm' or None")
        self.compat = compat

    def _from_fields(self, fields: Any) -> Any:
        if self.compat is not None and _is_storms(fields):
            return _from_storm(fields)
        return super()._from_fields(fields)


class StormOpaqueSerializer(JSONOpaqueSerializer):
    """`[txid, curr, prev]`, as Storm's `JSONOpaqueSerializer`, for stores that Storm's programs share.

    Lists of four fields are read as well, and written with three.

    The guarantee is Storm's, which is weaker. The attempt is not stored, so every value of an earlier batch is treated as
    committed. If an attempt fails after it wrote a key, and the replay (of an opaque spout) no longer contains that
    key, the failed attempt's value stays, and later updates start from it (H1). Keys that the replay contains are exact. So an
    opaque spout is refused with it, and the definition of a transactional one is synced before anything is read.
    """

    def __init__(self) -> None:
        super().__init__(compat="storm")

    def _fields_of(self, obj: Any) -> Any:
        return [obj.txid, obj.curr, obj.prev] if isinstance(obj, OpaqueValue) else super()._fields_of(obj)


class JSONTransactionalSerializer(_JSONSerializer):
    """`[txid, value]`, as Storm's."""

    kind = StateType.TRANSACTIONAL


class JSONNonTransactionalSerializer(_JSONSerializer):
    """The bare value, as Storm's."""

    kind = StateType.NON_TRANSACTIONAL


def _is_storms(fields: Any) -> bool:
    # A sentinel has three fields too, but its first one is text.
    return isinstance(fields, list) and len(fields) == 3 and type(fields[0]) in (int, type(None))


def _from_storm(fields: list[Any]) -> OpaqueValue:
    txid, curr, prev = fields
    # Storm stores null as the txid of a write outside of a batch; any batch is later than that.
    return OpaqueValue(0 if txid is None else txid, UNKNOWN_ATTEMPT, prev, curr)


def _plain(obj: object) -> object:
    number = plain_number(obj)
    if number is None:
        raise TypeError(f"JSON has no {type(obj).__name__}")
    return number


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
