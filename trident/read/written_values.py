"""Values as people write them: keys, on the command line and on the page; the values of a dead letter, edited as JSON.

A value that was not edited stays what it was, whatever its type. Another one is read as the type that the value before had.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from trident.fields import Fields
from trident.moments import MOMENTS, moment_of
from trident.setting_types import close_to
from trident.state.interfaces import Key
from trident.types import simple_type


def parse_key(text: str, fields: Fields, state: str, part: bool = False) -> Key:
    """Turn a text into a key: it is the key of one field, or a JSON list of the parts of a key of several.

    If the fields are unknown, a JSON list is a key of several fields and anything else a text. `part`: it may be the first
    fields.
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
        # A list is one of parts, of which none may lose digits; anything else may be a text.
        parts = json.loads(text, parse_float=number_of if text.lstrip().startswith("[") else None)
    except json.JSONDecodeError:
        return [] if len(fields) and text.startswith("[") else [text]
    return parts if isinstance(parts, list) else [text]


def _key(parts: list[Any], fields: Fields, what: str) -> Key:
    if not fields:
        return tuple(parts)
    named = [what] if len(fields) == 1 else [f"{field} of {what}" for field in fields.names]
    return tuple(_of_type(part, type_, name) for part, type_, name in zip(parts, fields.types, named, strict=False))


def _of_type(value: Any, type_: str | None, what: str) -> Any:
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


def _digits(text: str) -> str:
    """Return a number as text; `ValueError` for what only Python reads: 1_000, and digits of other scripts."""
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return text


def _integer(value: Any) -> int:
    if not isinstance(value, str) and type(value) is not int:
        raise TypeError(value)
    return int(_digits(value) if isinstance(value, str) else value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    text = _digits(str(value))
    return number_of(text) if "nan" not in text.lower() else float(text)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return ("false", "true").index(_string(value).lower()) == 1


_ESCAPED = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")  # as bytes are printed that are not UTF-8, and backslashes
_READERS: dict[type, Callable[[Any], Any]] = {
    str: _string,
    int: _integer,
    float: _number,
    bool: _boolean,
    Decimal: lambda value: Decimal(_digits(str(value))),
    bytes: lambda value: _ESCAPED.sub(
        lambda found: bytes.fromhex((found[1] or b"5c").decode()), _string(value).encode()
    ),
}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: decimals, times and what JSON has no form for as text, bytes in base64."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


def number_of(text: str) -> float:
    """Return a number of JSON with a point or an exponent; one with more digits than a double keeps is refused."""
    number = float(text)
    if Decimal(text) != Decimal(repr(number)):
        raise ValueError(
            f"{text} is read as {number!r}: write a decimal in quotes, and a double with the digits that it keeps"
        )
    return number


def edited_values(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a tuple whose fields were edited as JSON; `ValueError`: one is none of the type before."""
    for name in given:
        if name not in before:
            raise ValueError(f"the tuple has no field {name!r}{close_to(name, before)}")
    if missing := [name for name in before if name not in given]:
        raise ValueError(f"the tuple lacks the field {missing[0]!r}")
    return {name: _like(name, given[name], value) for name, value in before.items()}


def read_as(value: Any, type_: str | None) -> Any:
    """Return what JSON had where a null was as the type of its field, or itself. Bytes are not read: base64 may be text."""
    known = simple_type(type_)
    if isinstance(value, (str, float)) and known is not None and known.python not in (str, bytes):
        with suppress(ValueError, TypeError, ArithmeticError):
            return moment_of(_string(value), known.name) if known.name in MOMENTS else _READERS[known.python](value)
    return value


def _like(field: str, given: Any, before: Any) -> Any:
    if repr(given) == repr(plain(before)):  # 0.0 is not -0.0, nor True 1
        return before
    if given is None or before is None:
        return given
    try:
        return _of_kind(field, given, before)
    except (ValueError, ArithmeticError, TypeError):
        kind = type(before).__name__
        raise ValueError(f"field {field!r}: {given!r} cannot be a {kind}, which it was ({plain(before)!r})") from None


def _of_kind(field: str, given: Any, before: Any) -> Any:
    if isinstance(before, Mapping):
        return {**before, **edited_values(given, before)}
    if isinstance(before, (list, tuple)) and isinstance(given, list):
        item = before[0] if before else None
        return [_like(field, each, before[at] if at < len(before) else item) for at, each in enumerate(given)]
    if isinstance(before, (bool, int, str)) and type(given) is type(before):
        return given
    for kind, read in _EDITED.items():
        if isinstance(before, kind):
            return read(given, before)
    raise TypeError


def _double(given: Any, _: float) -> float:
    is_text = isinstance(given, str) and any(map(str.isdigit, given))  # only what JSON has no number for is one
    if is_text or isinstance(given, bool) or (isinstance(given, int) and int(float(given)) != given):
        raise TypeError
    return float(given)


def _moment(given: Any, before: date) -> Any:
    if not isinstance(before, datetime):
        return moment_of(_string(given), "date")
    return moment_of(_string(given), "timestamp_ntz" if before.tzinfo is None else "timestamp")


_EDITED: dict[type, Callable[[Any, Any], Any]] = {
    float: _double,
    bytes: lambda given, _: base64.b64decode(given, validate=True),
    date: _moment,
    Decimal: lambda given, _: Decimal(_digits(str(given))),
}
