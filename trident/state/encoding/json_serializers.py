"""Stored values as JSON, for stores that other programs read.

`STORED_FORMS` names the fields.

What JSON loses: a tuple comes back as a list, a key of a dict as text; a Decimal, a time, bytes or a set is refused,
and so are NaN and the infinities, which JSON does not have. int and float stay different, and an int keeps all of its
digits here (other programs may read it as a double).

The stored fields of a value: turns the values of each kind into a list of fields and back, with checks.

======================  ===================================================
opaque                  `[txid, attempt, prev, curr]`
transactional           `[txid, value]`
non-transactional       the bare value
sentinel, of any kind   `[incarnation, txid, attempt, place, sealed, run]`, or its first five or three
======================  ===================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trident.errors import CorruptValueError
from trident.state.interfaces import StateType
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue, TransactionalValue
from trident.types import plain_number


class _JSONSerializer:
    kind: StateType

    def serialize(self, obj: Any) -> bytes:
        """Write a stored value or a sentinel as UTF-8 JSON."""
        fields = fields_of(obj, self.kind)
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
        return from_fields(fields, self.kind)


class JSONOpaqueSerializer(_JSONSerializer):
    """`[txid, attempt, prev, curr]`."""

    kind = StateType.OPAQUE


class JSONTransactionalSerializer(_JSONSerializer):
    """`[txid, value]`."""

    kind = StateType.TRANSACTIONAL


class JSONNonTransactionalSerializer(_JSONSerializer):
    """The bare value."""

    kind = StateType.NON_TRANSACTIONAL


def _plain(obj: object) -> object:
    number = plain_number(obj)
    if number is None:
        raise TypeError(f"JSON has no {type(obj).__name__}")
    return number


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True)
class StoredForm:
    """The stored form of a kind: its class, the number of fields, and how many of them, from the first on, are ints."""

    stored: type[Any]
    width: int
    ints: int
    text: str


STORED_FORMS: dict[StateType, StoredForm] = {
    StateType.OPAQUE: StoredForm(OpaqueValue, 4, 2, "[txid, attempt, prev, curr] of an opaque state"),
    StateType.TRANSACTIONAL: StoredForm(TransactionalValue, 2, 1, "[txid, value] of a transactional state"),
}
"""The kinds that store more than the bare value."""


def fields_of(obj: Any, kind: StateType) -> Any:
    """Return what is encoded: the list of the fields, or the bare value."""
    if isinstance(obj, Sentinel):
        return obj.fields
    if isinstance(obj, (OpaqueValue, TransactionalValue)):
        return list(obj)
    if kind in STORED_FORMS:
        raise _misfit(obj, STORED_FORMS[kind].stored.__name__)
    return obj


def from_fields(fields: Any, kind: StateType) -> Any:
    """Return the object of what was decoded; raise `CorruptValueError` if it is of another kind."""
    form = STORED_FORMS.get(kind)
    if form is None:
        return fields
    if isinstance(fields, list):
        if len(fields) == form.width and are_ints(fields[: form.ints]):
            return form.stored(*fields)
        if len(fields) == len(Sentinel._fields) and isinstance(fields[0], str) and are_ints(fields[1:3]):
            return Sentinel(*fields)
    raise _misfit(fields, form.text)


def are_ints(fields: Sequence[Any]) -> bool:
    """Whether all fields are ints (a bool is not)."""
    return {int}.issuperset(map(type, fields))


def _misfit(found: Any, wanted: str) -> CorruptValueError:
    text = repr(found)
    return CorruptValueError(
        f"a stored value is {text if len(text) <= 80 else text[:80] + '…'}, not {wanted}: it was written by a state of "
        "another kind or by another program; use the kind it was written with, or another key prefix"
    )
