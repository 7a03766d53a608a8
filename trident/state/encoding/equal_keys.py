"""One form for all equal keys, so that equal keys are one key in every store and are in one partition (R11, R15).

In a dict `-0.0` and `0.0` are one key, and so is one instant in two time zones; in a store that compares bytes they are
not. So a key gets its one form where it enters a state or a grouping, and everything behind sees that form only:
datetimes with a zone in UTC, decimals without trailing zeros, zero without a sign, and every NaN the one object
`math.nan`, which a dict finds again.

The other way round 1, 1.0, True and Decimal(1) are one key in a dict and four in a store. Keys without a declared type
keep their type, so where it matters they become keys that differ in a dict as well (`typed_keys`). Keys with declared
types cannot differ in them (`declared_keys.py`), and pass as `OneForm`.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from itertools import chain
from typing import Any
from uuid import UUID

from trident.errors import CorruptValueError
from trident.state.encoding.extensions import type_name
from trident.state.interfaces import Key
from trident.types import plain_number

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # normalizing must not round
_DECIMAL_NAN = Decimal("NaN")
_ONE_FORM = frozenset((str, int, bool, bytes, type(None), dt.date, dt.timedelta, UUID))
_PLAIN = _ONE_FORM - {bool}
_DISTINCT_TYPES = _PLAIN | {dt.datetime, dt.time}
"""Types whose values never equal a value of another of these types; of the numbers, int."""


class OneForm(list[Key]):
    """Keys of declared types, each in its one form."""


class _TypedKey(tuple[Any, ...]):
    """A key that equals only keys whose parts have the types of its own."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and tuple.__eq__(self, other) and _types(self) == _types(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def canonical_keys(keys: Sequence[Key]) -> Sequence[Key]:
    """Return the keys in their one form; the very keys where all fields are of types that have only one."""
    if _ONE_FORM.issuperset(map(type, chain.from_iterable(keys))):
        return keys
    return [canonical_key(key) for key in keys]


def canonical_key(key: Key) -> Key:
    """Return the one form of a key."""
    return tuple(map(canonical, key))


def typed_keys(keys: Sequence[Key]) -> Sequence[Key]:
    """Return keys in their one form, as a dict must have them: keys of other types are other keys.

    Raises `CorruptValueError`: a part of a key is of a type that has no one form.
    """
    if type(keys) is OneForm:
        return keys
    if _PLAIN.issuperset(map(type, chain.from_iterable(keys))):
        return keys
    return [_typed_key(key) for key in keys]


def _typed_key(key: Key) -> Key:
    form = canonical_key(key)
    for part in form:
        _refuse_unknown(key, part)
    return form if _DISTINCT_TYPES.issuperset(map(type, form)) else _TypedKey(form)


def canonical(part: Any) -> Any:
    """Return the one form of all values of a type that are equal to `part`."""
    if type(part) in _ONE_FORM:
        return part
    if type(part) is float:
        return part + 0.0 if part == part else math.nan
    if isinstance(part, dt.datetime) and part.tzinfo is not None:
        return part.astimezone(dt.UTC)
    if isinstance(part, dt.datetime | dt.time):
        return part.replace(fold=0)  # it distinguishes two readings of one naive time, but == ignores it
    if isinstance(part, Decimal):
        return _decimal(part)
    if isinstance(part, tuple):
        return tuple(map(canonical, part))
    if isinstance(part, frozenset):
        return frozenset(map(canonical, part))
    if isinstance(part, bytearray | memoryview):
        return bytes(part)
    number = plain_number(part)
    return part if number is None else canonical(number)


def _decimal(part: Decimal) -> Decimal:
    if not part.is_finite():
        return _DECIMAL_NAN if part.is_qnan() else part
    return part.normalize(_EXACT) if part else Decimal(0)


def _types(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(map(_types, part))
    return frozenset((one, _types(one)) for one in part) if isinstance(part, frozenset) else type(part)


_KNOWN = _ONE_FORM | {float, dt.datetime, dt.time, Decimal, tuple, frozenset}


def _refuse_unknown(key: Key, part: Any) -> None:
    if (
        type(part) not in _KNOWN
        or (type(part) is dt.time and part.tzinfo)
        or (type(part) is Decimal and part.is_snan())
    ):
        raise CorruptValueError(
            f"key {key!r}: {part!r} is a {type_name(part)}, and a key is made of None, bool, int, float, str, bytes, Decimal, "
            "date, datetime, time without a zone, timedelta, UUID, tuple and frozenset. Convert it to one of these"
        )
    if type(part) in (tuple, frozenset):
        for one in part:
            _refuse_unknown(key, one)
