"""One form for all equal keys, so that equal keys are one key in every store and are in one partition (R11, R15).

In a dict `-0.0` and `0.0` are one key, and so is one instant in two time zones; in a store that compares bytes they are not.
So a key gets its one form where it enters a state or a grouping: datetimes with a zone in UTC, decimals without trailing
zeros, zero without a sign, and every NaN the one object `math.nan`, which a dict finds again.

The other way round 1, 1.0, True and Decimal(1) are one key in a dict and four in a store. Keys without a declared type keep
their type, so where it matters they become keys that differ in a dict as well (`typed_keys`). Keys with declared types cannot
differ in them, and pass as `CanonicalKeys`.

Under a declared type values are equal if they are the same number, the same text, the same moment. What the values of a type
cannot be at all, a text for an int, is refused: a reader that answers None would say that such a key may be there another
time. A number that no value of the type equals, 1.5 for an int, is of the right kind and absent.
"""

import datetime as dt
import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from itertools import chain
from typing import Any
from uuid import UUID

from trident.errors import CorruptValueError, WrongKeyError
from trident.fields import Fields
from trident.state.encoding.extensions import type_name
from trident.state.interfaces import Key
from trident.tuples import TridentTuple
from trident.types import NO_VALUE, TYPES, Form, is_text, plain_number, simple_type

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # normalizing must not round
_DECIMAL_NAN = Decimal("NaN")
_ONE_FORM = frozenset((str, int, bool, bytes, type(None), dt.date, dt.timedelta, UUID))
_PLAIN = _ONE_FORM - {bool}
_DISTINCT_TYPES = _PLAIN | {dt.datetime, dt.time}
"""Types whose values never equal a value of another of these types; of the numbers, int."""

_LIMITS = {row.name: row.limit for row in TYPES.values() if row.python is int}
_CLASSES = {row.name: row.python for row in TYPES.values() if row.python in (str, bytes, bool, dt.date)}


class CanonicalKeys(list[Key]):
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
    return keys if _ONE_FORM.issuperset(map(type, chain.from_iterable(keys))) else list(map(canonical_key, keys))


def canonical_key(key: Key) -> Key:
    return tuple(map(canonical, key))


def typed_keys(keys: Sequence[Key]) -> Sequence[Key]:
    """Return keys in their one form, as a dict must have them: keys of other types are other keys."""
    if type(keys) is CanonicalKeys or _PLAIN.issuperset(map(type, chain.from_iterable(keys))):
        return keys
    return list(map(_typed_key, keys))


def _typed_key(key: Key) -> Key:
    try:
        form = canonical_key(key)
    except OverflowError as error:
        raise CorruptValueError(f"key {key!r}: {error} in UTC, the one form of a moment") from error
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


def declared_form(type_: str | None) -> Form:
    """Return what turns a value, that is not None, into one of a type; that of an undeclared type has only the one form."""
    simple = simple_type(type_)
    return canonical if simple is None else simple.form


def declared_keys(keys: Sequence[Key], fields: Fields, state: str) -> Sequence[Key | None]:
    """Return keys that are asked for in their one form, None for one that no key of the state equals.

    `fields`: of the key; none if an updater chooses the keys: then they are of the types that are given.
    Raises `WrongKeyError`: a key has too many parts or too few, or a part is no value of its field's type.
    """
    if not fields.names:
        return typed_keys(keys)
    return keys if _are_in_one_form(keys, fields) else [_declared_key(key, fields, state) for key in keys]


def declared_prefix(prefix: Sequence[Any], fields: Fields, state: str) -> Key | None:
    """Return the first fields of a key in their one form; None and errors as `declared_keys`."""
    count = len(prefix)
    first = Fields.of(fields.names[:count], fields.types[:count]) if 0 < count <= len(fields) else fields
    return _declared_key(tuple(prefix), first, state)


def keys_of_list(keys: Sequence[Any], state: str) -> list[Key]:
    """Return keys as tuples: a bare value is the key of one field; `WrongKeyError`: a text in place of a list."""
    if isinstance(keys, str | bytes | bytearray):
        raise WrongKeyError(
            f"read the keys {keys!r} of state {state!r}: that is one value; give a list of keys, [{keys!r}]"
        )
    return [key if isinstance(key, tuple) else _as_tuple(key) for key in keys]


def _as_tuple(key: Any) -> Key:
    if isinstance(key, TridentTuple):
        return key.values
    return tuple(key) if isinstance(key, list) else (key,)


def _are_in_one_form(keys: Sequence[Key], fields: Fields) -> bool:
    """Whether all keys are of types that have one form, and fit; without a loop in Python."""
    if set(map(len, keys)) != {len(fields.types)}:
        return not keys
    for type_, column in zip(fields.types, zip(*keys, strict=True), strict=True):
        classes = set(map(type, column))
        if type_ in _LIMITS:
            limit = _LIMITS[type_]
            if classes != {int} or min(column) < -limit or max(column) >= limit:
                return False
        elif not classes <= {_CLASSES.get(type_ or ""), type(None)}:
            return False
        text = "" if str not in classes else "".join(column if len(classes) == 1 else filter(None, column))
        if not (text.isascii() or is_text((text,))):
            return False
    return True


def _declared_key(key: Key, fields: Fields, state: str) -> Key | None:
    if len(key) != len(fields):
        raise WrongKeyError(
            f"key {key!r} of state {state!r} has {_count(len(key))}; expected {_count(len(fields))}, ({', '.join(fields)})"
        )
    parts = []
    for name, type_, value in zip(fields.names, fields.types, key, strict=True):
        try:
            parts.append(None if value is None else canonical(declared_form(type_)(value)))
        except (TypeError, OverflowError) as error:  # in UTC it may be beyond the years that there are
            hint = f"; {error}" if str(error) else ""
            raise WrongKeyError(
                f"key {key!r} of state {state!r}: expected a value of type {type_} for {name!r}, got {value!r}, a "
                f"{type_name(value)}{hint}"
            ) from None
    return None if NO_VALUE in parts else tuple(parts)


def _count(count: int) -> str:
    return f"{count} part{'' if count == 1 else 's'}"
