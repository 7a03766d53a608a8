"""The values of a dead letter as JSON, to be edited, and as values of their types again.

A value that is left as it is stays what it was, whatever its type. Another one is read as the type that the value before had.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from trident.moments import moment_of
from trident.setting_types import close_to


def plain(value: Any) -> Any:
    """Return a value as JSON has it: decimals, times and what JSON has no form for as text, bytes in base64."""
    if value is None or isinstance(value, (bool, int, float, str)):
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
    """Return the values of a tuple whose fields were edited as JSON.

    Raises `ValueError`: the fields are others, or a value is none of the type of the one before.
    """
    for name in given:
        if name not in before:
            raise ValueError(f"the tuple has no field {name!r}{close_to(name, before)}")
    if missing := [name for name in before if name not in given]:
        raise ValueError(f"the tuple lacks the field {missing[0]!r}")
    return {name: _typed(name, given[name], value) for name, value in before.items()}


def _typed(field: str, given: Any, before: Any) -> Any:
    if given == plain(before) and type(given) is type(plain(before)):
        return before
    if given is None or before is None:
        return given
    try:
        return _read(field, given, before)
    except (ValueError, ArithmeticError, TypeError):
        kind = type(before).__name__
        raise ValueError(f"field {field!r}: {given!r} cannot be a {kind}, which it was ({plain(before)!r})") from None


def _read(field: str, given: Any, before: Any) -> Any:
    if isinstance(before, Mapping):
        return {**before, **edited_values(given, before)}
    if isinstance(before, (list, tuple)):
        item = before[0] if before else None
        return [_typed(field, each, before[at] if at < len(before) else item) for at, each in enumerate(given)]
    if isinstance(before, (bool, int, str)) and type(given) is type(before):
        return given
    for kind, read in _READ.items():
        if isinstance(before, kind):
            return read(given, before)
    raise TypeError


def _double(given: Any, _: float) -> float:
    if isinstance(given, (bool, str)) or (isinstance(given, int) and int(float(given)) != given):
        raise TypeError
    return float(given)


def _moment(given: Any, before: date) -> Any:
    if not isinstance(given, str):
        raise TypeError
    if not isinstance(before, datetime):
        return moment_of(given, "date")
    return moment_of(given, "timestamp_ntz" if before.tzinfo is None else "timestamp")


_READ: dict[type, Callable[[Any, Any], Any]] = {
    float: _double,
    bytes: lambda given, _: base64.b64decode(given, validate=True),
    date: _moment,
    Decimal: lambda given, _: Decimal(str(given)),
}
