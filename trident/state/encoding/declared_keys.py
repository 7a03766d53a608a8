"""Values under their declared type: keys that are asked for in their one form, and values that bolts emit (R15).

Under a declared type values are equal if they are the same number, the same text, the same moment: 1 and 1.0 are one in a
`double`, and Decimal("1.0") and Decimal("1.00") are one in a `decimal(10,2)`. What the values of a type cannot be at all,
a text for an int, a datetime for a date, is refused: a reader that answers None would say that such a key may be there
another time. A number that no value of the type equals, 1.5 for an int, is of the right kind and absent.

Keys that come from columns are of their declared types already; see `trident.runtime.steps.key_columns`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from trident.errors import WrongKeyError
from trident.fields import Fields
from trident.state.encoding.equal_keys import canonical
from trident.state.encoding.extensions import type_name
from trident.state.interfaces import Key
from trident.tuples import TridentTuple
from trident.types import NO_VALUE, TYPES, Form, simple_type

_LIMITS = {row.name: row.limit for row in TYPES.values() if row.python is int}
_CLASSES = {row.name: row.python for row in TYPES.values() if row.python in (str, bytes, bool, dt.date)}


def declared_form(type_: str | None) -> Form:
    """Return what turns a value, that is not None, into one of a type; that of an undeclared type has only the one form."""
    simple = simple_type(type_)
    return canonical if simple is None else simple.form


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
