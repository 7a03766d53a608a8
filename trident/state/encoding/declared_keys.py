"""Values under their declared type: keys that are asked for in their one form, and values that bolts emit (R15).

Under a declared type values are equal if they are the same number, the same text, the same moment: 1 and 1.0 are one in a
`double`, and Decimal("1.0") and Decimal("1.00") are one in a `decimal(10,2)`. What the values of a type cannot be at all,
a text for an int, a datetime for a date, is refused: a reader that answers None would say that such a key may be there
another time. A number that no value of the type equals, 1.5 for an int, is of the right kind and absent.

Keys that come from columns are of their declared types already; see `trident.runtime.steps.key_columns`.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from functools import lru_cache
from typing import Any

from trident.errors import WrongKeyError
from trident.fields import Fields
from trident.state.encoding.equal_keys import canonical
from trident.state.encoding.extensions import plain_number, type_name
from trident.state.interfaces import Key
from trident.tuples import TridentTuple

Form = Callable[[Any], Any]

NO_VALUE = object()
"""In place of a number that no value of the declared type equals."""

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_CLASSES: dict[str, type] = {"string": str, "binary": bytes, "boolean": bool, "date": dt.date}
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])


@lru_cache(maxsize=1024)
def declared_form(type_: str | None) -> Form:
    """Return what turns a value, that is not None, into one of a type: equal values into one, a decimal with its scale.

    It returns `NO_VALUE` for a number that no value of the type equals, and raises `TypeError` for what is no such value.
    """
    if type_ in _BITS:
        return _whole_of(_BITS[type_])
    if type_ is not None and type_.startswith("decimal("):
        precision, _, scale = type_[8:-1].partition(",")
        return _decimal_of(int(precision), int(scale or 0))
    return _FORMS.get(type_ or "", canonical)


def declared_keys(keys: Sequence[Key], fields: Fields, state: str) -> Sequence[Key | None]:
    """Return keys that are asked for in their one form, None for one that no key of the state equals.

    Raises `WrongKeyError`: a key has too many parts or too few, or a part is no value of its field's type.
    """
    if _are_in_one_form(keys, fields):
        return keys
    return [_declared(key, fields, state) for key in keys]


def declared_prefix(prefix: Sequence[Any], fields: Fields, state: str) -> Key | None:
    """Return the first fields of a key in their one form; None and errors as `declared_keys`."""
    count = len(prefix)
    first = Fields.of(fields.names[:count], fields.types[:count]) if 0 < count <= len(fields) else fields
    return _declared(tuple(prefix), first, state)


def keys_of_list(keys: Sequence[Any], state: str) -> list[Key]:
    """Return keys as tuples: a bare value is the key of one field.

    Raises `WrongKeyError`: it is a text, not a list of keys: each of its characters would be one.
    """
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
    if set(map(len, keys)) != {len(fields)}:
        return not keys
    for type_, column in zip(fields.types, zip(*keys, strict=True), strict=True):
        classes = set(map(type, column))
        if type_ in _BITS:
            limit = 1 << _BITS[type_] - 1
            if classes != {int} or min(column) < -limit or max(column) >= limit:
                return False
        elif not classes <= {_CLASSES.get(type_ or ""), type(None)}:
            return False
    return True


def _declared(key: Key, fields: Fields, state: str) -> Key | None:
    if len(key) != len(fields):
        raise WrongKeyError(
            f"key {key!r} of state {state!r} has {_counted(len(key))}; expected {_counted(len(fields))}, ({', '.join(fields)})"
        )
    parts = []
    for name, type_, value in zip(fields.names, fields.types, key, strict=True):
        try:
            parts.append(None if value is None else canonical(declared_form(type_)(value)))
        except TypeError as error:
            hint = f"; {error}" if str(error) else ""
            raise WrongKeyError(
                f"key {key!r} of state {state!r}: expected a value of type {type_} for {name!r}, got {value!r}, a "
                f"{type_name(value)}{hint}"
            ) from None
    return None if NO_VALUE in parts else tuple(parts)


def _counted(count: int) -> str:
    return f"{count} part{'' if count == 1 else 's'}"


# ---- the forms of the types --------------------------------------------------------------------------------------------


def number_of(value: Any) -> int | float | Decimal:
    """Return a number, of NumPy's as Python has it; `TypeError` for anything else, and for a boolean."""
    number = value if isinstance(value, int | float | Decimal) else plain_number(value)
    if number is None or isinstance(number, bool):
        raise TypeError
    return number


def _whole_of(bits: int) -> Form:
    limit = 1 << bits - 1

    def whole(value: Any) -> Any:
        number = number_of(value)
        if (not isinstance(number, int) and not math.isfinite(number)) or not -limit <= number < limit:
            return NO_VALUE
        if number != (exact := int(number)):
            return NO_VALUE
        return exact

    return whole


def _double(value: Any) -> Any:
    number = number_of(value)
    try:
        nearest = float(number)
    except OverflowError:
        return NO_VALUE
    if isinstance(number, int) and nearest != number:
        return NO_VALUE
    return canonical(nearest)


def _float(value: Any) -> Any:
    nearest = _double(value)
    try:
        return nearest if nearest is NO_VALUE else canonical(struct.unpack("<f", struct.pack("<f", nearest))[0])
    except OverflowError:
        return NO_VALUE


def _decimal_of(precision: int, scale: int) -> Form:
    unit, limit = Decimal(1).scaleb(-scale), Decimal(1).scaleb(precision - scale)

    def decimal(value: Any) -> Any:
        number = number_of(value)
        exact = Decimal(repr(float(number))) if isinstance(number, float) else Decimal(number)
        if not exact.is_finite() or exact.copy_abs() >= limit:
            return NO_VALUE
        try:
            return exact.quantize(unit, context=_EXACT) if exact else Decimal(0).scaleb(-scale)
        except Inexact:
            return NO_VALUE

    return decimal


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str.__str__(value)


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _boolean(value: Any) -> bool:
    found = value if isinstance(value, bool) else plain_number(value)
    if not isinstance(found, bool):
        raise TypeError
    return found


def _date(value: Any) -> dt.date:
    if not isinstance(value, dt.date):
        raise TypeError
    if isinstance(value, dt.datetime):
        raise TypeError("take its .date()")
    return value


def _timestamp(value: Any) -> dt.datetime:
    """Return a moment; without a zone it is one in UTC, as where tuples are emitted."""
    moment = _time_of(value)
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def _timestamp_ntz(value: Any) -> dt.datetime:
    moment = _time_of(value)
    if moment.tzinfo is not None:
        raise TypeError("it has a zone, and values of this type have none; take it off with .replace(tzinfo=None)")
    return moment


def _time_of(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value != value:  # NaT of pandas
        raise TypeError("give a datetime")
    if getattr(value, "nanosecond", 0):
        raise TypeError("it has nanoseconds; round it to microseconds, as .floor('us') does")
    parts = (
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        value.tzinfo,
    )
    return dt.datetime(*parts, fold=value.fold if value.tzinfo else 0)


_FORMS: dict[str, Form] = {
    "string": _string,
    "binary": _binary,
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
