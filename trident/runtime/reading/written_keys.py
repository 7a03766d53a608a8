"""Keys as people write them, on the command line and on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from trident.fields import Fields
from trident.moments import MOMENTS, moment_of
from trident.state.interfaces import Key


def parse_key(text: str, fields: Fields, state: str) -> Key:
    """Turn a text into a key: it is the key of one field, or a JSON list of the parts of a key of several.

    If the fields are unknown, a JSON list is a key of several fields and anything else a text.

    Raises `ValueError`: the text cannot be such a key; the message says what was expected.
    """
    if len(fields) == 1:
        return (_typed(text, fields.types[0], f"key {text!r} of state {state!r}"),)
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if not fields:
        return tuple(parts) if isinstance(parts, list) else (text,)
    if not isinstance(parts, list) or len(parts) != len(fields):
        raise ValueError(
            f"key {text!r} of state {state!r}: expected a JSON list of its {len(fields)} fields "
            f"({', '.join(fields.names)}), as in '[\"a\", 1]'"
        )
    names = zip(parts, fields.types, fields.names, strict=True)
    return tuple(_typed(part, type_, f"{field} of key {text!r} of state {state!r}") for part, type_, field in names)


def parse_prefix(text: str, fields: Fields, state: str) -> str | Key:
    """Turn a text into the beginning of keys: itself, or the first fields of a key as a JSON list.

    If the first field is not a text, it must be a list; if there is only one field, it must be a text.

    Raises `ValueError`: no such key begins so; the message says what was expected.
    """
    if len(fields) != 1:
        try:
            parts = json.loads(text)
        except ValueError:
            parts = None
        if isinstance(parts, list) and 0 < len(parts) <= (len(fields) or len(parts)):
            return (
                tuple(
                    _typed(part, type_, f"{field} of prefix {text!r} of state {state!r}")
                    for part, type_, field in zip(parts, fields.types, fields.names, strict=False)
                )
                if fields
                else tuple(parts)
            )
    if fields and fields.types[0] not in (None, "string"):
        raise ValueError(
            f"--prefix {text!r} of state {state!r}: the key begins with {fields.names[0]}, of type {fields.types[0]}, which "
            "does not begin with a text" + (", expected a JSON list of its first fields" if len(fields) > 1 else "")
        )
    return text


def _typed(value: Any, type_: str | None, what: str) -> Any:
    """Turn a text, or what JSON made of it, into the type of a field."""
    if value is None or type_ is None:
        return value
    base = type_.partition("(")[0]
    read = _READERS.get(base)
    if read is None:
        return value
    try:
        return read(value)
    except (ValueError, TypeError, ArithmeticError):
        raise ValueError(f"{what}: expected a value of type {type_}") from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, str) and type(value) is not int:
        raise TypeError(value)
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return ("false", "true").index(_string(value).lower()) == 1


def _moment(type_: str) -> Callable[[Any], Any]:
    return lambda value: moment_of(_string(value), type_, in_utc=True)


_READERS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _integer),
    **dict.fromkeys(("float", "double"), _number),
    "boolean": _boolean,
    "decimal": lambda value: Decimal(str(value)),
    **{type_: _moment(type_) for type_ in MOMENTS},
    "binary": lambda value: _string(value).encode(),
}
