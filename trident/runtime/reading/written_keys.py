"""Keys as people write them, on the command line and on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from trident.fields import Fields
from trident.moments import MOMENTS, moment_of
from trident.state.interfaces import Key
from trident.types import simple_type


def parse_key(text: str, fields: Fields, state: str, part: bool = False) -> Key:
    """Turn a text into a key: it is the key of one field, or a JSON list of the parts of a key of several.

    If the fields are unknown, a JSON list is a key of several fields and anything else a text.

    `part`: it may be the first fields of a key: a JSON list of them, or the first one alone.

    Raises `ValueError`: the text cannot be such a key; the message says what was expected.
    """
    parts, what = _parts(text, fields), f"key {text!r} of state {state!r}"
    if len(parts) != len(fields or parts) and not (part and 0 < len(parts) < len(fields)):
        most = "its first field, or a JSON list of some or all" if part else "a JSON list"
        raise ValueError(
            f"{what}: expected {most} of its {len(fields)} fields ({', '.join(fields.names)}), as in '[\"a\", 1]'"
        )
    return _key(parts, fields, what)


def parse_prefix(text: str, fields: Fields, state: str) -> str | Key:
    """Turn a text into the beginning of keys: itself, or the first fields of a key as a JSON list.

    If the first field is not a text, it must be a list; if there is only one field, it must be a text.

    Raises `ValueError`: no such key begins so; the message says what was expected.
    """
    parts = _parts(text, fields)
    if parts != [text] and 0 < len(parts) <= len(fields or parts):
        return _key(parts, fields, f"prefix {text!r} of state {state!r}")
    if fields and fields.types[0] not in (None, "string"):
        raise ValueError(
            f"--prefix {text!r} of state {state!r}: the key begins with {fields.names[0]}, of type {fields.types[0]}, which "
            "does not begin with a text" + (", expected a JSON list of its first fields" if len(fields) > 1 else "")
        )
    return text


def _parts(text: str, fields: Fields) -> list[Any]:
    """Return the parts that a text has: those of a JSON list, else itself; none if it only begins as such a list."""
    if len(fields) == 1:
        return [text]
    try:
        parts = json.loads(text)
    except ValueError:
        return [] if len(fields) and text.startswith("[") else [text]
    return parts if isinstance(parts, list) else [text]


def _key(parts: list[Any], fields: Fields, what: str) -> Key:
    if not fields:
        return tuple(parts)
    named = [what] if len(fields) == 1 else [f"{field} of {what}" for field in fields.names]
    return tuple(_typed(part, type_, name) for part, type_, name in zip(parts, fields.types, named, strict=False))


def _typed(value: Any, type_: str | None, what: str) -> Any:
    """Turn a text, or what JSON made of it, into the type of a field."""
    known = simple_type(type_)
    if value is None or known is None:
        return value
    try:
        if known.name in MOMENTS:
            return moment_of(_string(value), known.name, in_utc=True)
        return _READERS[known.python](value)
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


_READERS: dict[type, Callable[[Any], Any]] = {
    str: _string,
    int: _integer,
    float: _number,
    bool: _boolean,
    Decimal: lambda value: Decimal(str(value)),
    bytes: lambda value: _string(value).encode(),
}
