"""What a DDL type means: a row for each type that has no others inside; all else asks it, as for the one form (R15)."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from trident.moments import moment_of

if TYPE_CHECKING:
    import pyarrow as pa

Form = Callable[[Any], Any]
"""Turns a value, that is not None, into one of its type: equal values into one, a decimal with its scale.

It returns `NO_VALUE` for a number that no value of the type equals, and raises `TypeError` for what is no such value.
"""

NO_VALUE = object()
"""In place of a number that no value of the declared type equals."""

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])
_DECIMAL = re.compile(r"decimal\((\d+)(?:,(-?\d+))?\)")


@dataclass(frozen=True)
class FieldType:
    """What one DDL type means.

    `form`: turns a value into the one form. `arrow_as`: the name of the function that makes Arrow's type, and its arguments.
    `family`, `casts`: values of one family can be compared; the families that a value can be cast to.
    `sql`, `cql`: the types of the columns of PostgreSQL and of Cassandra that keep it; None: there is none.
    `wire`: how `struct` writes a number. `digits`: how many an exact one may have before its point, and behind it.
    """

    name: str
    python: type
    form: Form
    arrow_as: tuple[Any, ...]
    family: str
    casts: str
    sql: str
    cql: str | None
    to_text: Callable[[Any], str]
    of_text: Callable[[str], Any]
    wire: str = ""
    digits: tuple[int, int] = (0, 0)
    aliases: tuple[str, ...] = ()

    @cached_property
    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        name, *arguments = self.arrow_as
        return getattr(pa, name)(*arguments)

    @cached_property
    def limit(self) -> int:
        """Whole numbers are from minus this number to one less than it."""
        return 1 << 8 * struct.calcsize(self.wire) - 1


def plain_number(obj: object) -> int | float | None:
    """Return the Python number in a numpy int, float or bool scalar; None for anything else."""
    if type(obj).__module__ != "numpy" or getattr(getattr(obj, "dtype", None), "kind", "") not in ("i", "u", "f", "b"):
        return None
    item = getattr(obj, "item", None)
    number = item() if item is not None and getattr(obj, "ndim", 1) == 0 else None
    return number if type(number) in (int, float, bool) else None


def number_of(value: Any) -> int | float | Decimal:
    """Return a number, of NumPy's as Python has it; `TypeError` for anything else, and for a boolean."""
    number = value if isinstance(value, int | float | Decimal) else plain_number(value)
    if number is None or isinstance(number, bool):
        raise TypeError
    if isinstance(number, Decimal) and number.is_snan():  # every comparison with one raises
        raise TypeError("a signaling NaN is no value; give Decimal('NaN'), or None")
    return number


def _whole_of(wire: str) -> Form:
    limit = 1 << 8 * struct.calcsize(wire) - 1

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
    if isinstance(number, Decimal) and number == number and Decimal(repr(nearest)) != number:  # as it is written
        return NO_VALUE
    return _canonical(nearest)


def _float(value: Any) -> Any:
    nearest = _double(value)
    try:
        return nearest if nearest is NO_VALUE else _canonical(struct.unpack("<f", struct.pack("<f", nearest))[0])
    except OverflowError:
        return NO_VALUE


def _canonical(number: float) -> float:
    return number + 0.0 if number == number else math.nan


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
    if not is_text([value]):
        raise TypeError("it has a lone surrogate, which UTF-8 cannot hold")
    return str.__str__(value)


def is_text(values: Iterable[str]) -> bool:
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


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
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo
    )  # fmt: skip
    return dt.datetime(*parts, fold=value.fold if value.tzinfo else 0)


@lru_cache(maxsize=1024)
def decimal_type(precision: int, scale: int) -> FieldType:
    """Return the type of decimals of so many digits, so many of them behind the point."""
    return FieldType(
        f"decimal({precision},{scale})", Decimal, _decimal_of(precision, scale), ("decimal128", precision, scale), "decimal",
        "number decimal string", f"numeric({precision},{scale})", "decimal", lambda value: format(value, "f"), Decimal,
        digits=(precision - scale, scale),
    )  # fmt: skip


def _whole(name: str, alias: str, wire: str, digits: int, sql: str) -> FieldType:
    arrow_as = (f"int{8 * struct.calcsize(wire)}",)
    return FieldType(name, int, _whole_of(wire), arrow_as, *_NUMBER, sql, name, str, int, wire, (digits, 0), (alias,))


_NUMBER = ("number", "number decimal string boolean")
_ANY = "number decimal string boolean binary date timestamp timestamp_ntz"

TYPES: dict[str, FieldType] = {
    row.name: row
    for row in (
        FieldType(
            "string", str, _string, ("string",), "string", _ANY, "text", "text", str, str, aliases=("str", "varchar")
        ),
        FieldType(
            "boolean", bool, _boolean, ("bool_",), "boolean", "boolean number string", "boolean", "boolean",
            lambda value: "true" if value else "false", lambda text: {"true": True, "false": False}[text], "?",
            aliases=("bool",),
        ),
        _whole("tinyint", "byte", "b", 3, "smallint"),
        _whole("smallint", "short", "h", 5, "smallint"),
        _whole("int", "integer", "i", 10, "integer"),
        _whole("bigint", "long", "q", 19, "bigint"),
        FieldType("float", float, _float, ("float32",), *_NUMBER, "real", "float", repr, float, "f", aliases=("real",)),
        FieldType("double", float, _double, ("float64",), *_NUMBER, "double precision", "double", repr, float, "d"),
        replace(decimal_type(10, 0), name="decimal", aliases=("dec", "numeric")),
        FieldType(
            "binary", bytes, _binary, ("binary",), "binary", "binary", "bytea", "blob", bytes.hex, bytes.fromhex,
            aliases=("bytes",),
        ),
        FieldType(
            "date", dt.date, _date, ("date32",), "date", "date timestamp timestamp_ntz string", "date", "date",
            dt.date.isoformat, partial(moment_of, type_="date"),
        ),
        FieldType(
            "timestamp_ntz", dt.datetime, _timestamp_ntz, ("timestamp", "us"), "timestamp_ntz", "timestamp_ntz date string",
            "timestamp without time zone", None, dt.datetime.isoformat, partial(moment_of, type_="timestamp_ntz"),
        ),
        FieldType(
            "timestamp", dt.datetime, _timestamp, ("timestamp", "us", "UTC"), "timestamp", "timestamp date string",
            "timestamp with time zone", "timestamp", lambda value: value.astimezone(dt.UTC).isoformat(),
            partial(moment_of, type_="timestamp"), aliases=("timestamp_ltz",),
        ),
    )
}  # fmt: skip
"""The types by their names. A type hint means the last type of its class."""


@lru_cache(maxsize=1024)
def simple_type(ddl: str | None) -> FieldType | None:
    """Return what a DDL type in its normal spelling means; None for an array, a map, a struct, and what is no type."""
    found = _DECIMAL.fullmatch(ddl or "")
    if found is not None:
        return decimal_type(int(found[1]), int(found[2] or 0))
    return TYPES.get(ddl or "")


@lru_cache(maxsize=1024)
def class_of(ddl: str | None) -> type | None:
    known = simple_type(ddl)
    return None if known is None else known.python


def family_of(ddl: str) -> str:
    known = simple_type(ddl)
    return ddl if known is None else known.family


def total_type(type_: str | None) -> str | None:
    known = simple_type(type_)
    if known is None or known.family not in ("number", "decimal"):
        return None
    return {int: "bigint", float: "double"}.get(known.python, f"decimal(38,{known.digits[1]})")
