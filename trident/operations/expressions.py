"""Expressions over columns, as data: `col("n") + 1`, `col("word").upper()`; for `Stream.select` and `Stream.where`.

An expression is checked against a stream's fields when it is declared (`trident.operations.expression_types`), and computed
for a whole batch at once where the tuples are. A null operand gives null, but for `is_null`, `is_not_null`, `coalesce`,
`if_else`, and `&` and `|` where the other side decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from trident.errors import TopologyError
from trident.fields import normal_type
from trident.moments import checked_format, checked_zone

_BINARY = re.compile(r"[-+*/%&|<>=!]+")


def _operator(kind: str) -> Callable[[Expression, object], Expression]:
    return lambda self, other: _binary(kind, self, other)


def _reflected_operator(kind: str) -> Callable[[Expression, object], Expression]:
    return lambda self, other: _binary(kind, other, self)


@dataclass(frozen=True, eq=False, repr=False)
class Expression:
    """How a column is computed from others. Made by `col` and `lit`, and from expressions by operators and methods.

    Attributes
    ----------
    kind
        `col`, `lit`, an operator, or the name of a function.
    operands
        The expressions that it is computed from.
    options
        Plain values: the name of a field, a literal, a separator.
    """

    kind: str
    operands: tuple[Expression, ...] = ()
    options: tuple[Any, ...] = ()

    def fields(self) -> Iterator[str]:
        """Iterate over the names of the fields that are read, as often as they are named."""
        if self.kind == "col":
            yield self.options[0]
        for operand in self.operands:
            yield from operand.fields()

    __add__, __radd__ = _operator("+"), _reflected_operator("+")
    __sub__, __rsub__ = _operator("-"), _reflected_operator("-")
    __mul__, __rmul__ = _operator("*"), _reflected_operator("*")
    __truediv__, __rtruediv__ = _operator("/"), _reflected_operator("/")
    __mod__ = _operator("%")
    __and__, __rand__ = _operator("&"), _reflected_operator("&")
    __or__, __ror__ = _operator("|"), _reflected_operator("|")
    __eq__, __ne__ = _operator("=="), _operator("!=")  # type: ignore[assignment]
    __lt__, __le__ = _operator("<"), _operator("<=")
    __gt__, __ge__ = _operator(">"), _operator(">=")

    def __neg__(self) -> Expression:
        return Expression("negate", (self,))

    def __invert__(self) -> Expression:
        return Expression("not", (self,))

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no truth value before there are tuples; write &, | and ~ for and, or and not, "
            "with each comparison in parentheses"
        )

    def is_null(self) -> Expression:
        """Whether the value is null."""
        return Expression("is_null", (self,))

    def is_not_null(self) -> Expression:
        """Whether the value is not null."""
        return Expression("is_not_null", (self,))

    def isin(self, *values: Any) -> Expression:
        """Whether the value is one of some plain values, none of them null; a list of them may be given too."""
        options = tuple(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple, set)) else values
        if not options or None in options:
            raise TopologyError(f"isin takes at least one value, and no null, got {options!r}; is_null finds nulls")
        return Expression("isin", (self,), options)

    def between(self, low: Any, high: Any) -> Expression:
        """Whether the value is at least `low` and at most `high`."""
        inside: Expression = (self >= low) & (self <= high)
        return inside

    def abs(self) -> Expression:
        """The number without its sign."""
        return Expression("abs", (self,))

    def round(self, digits: int = 0) -> Expression:
        """The number with so many digits behind the point, halves away from zero; below 0, with as many zeros before it."""
        if not -18 <= _whole("round", digits) <= 38:
            raise TopologyError(f"round takes -18 to 38 digits, got {digits}")
        return Expression("round", (self,), (digits,))

    def floor(self) -> Expression:
        """The greatest whole number that is not above the value, a bigint; of a decimal, a decimal."""
        return Expression("floor", (self,))

    def ceil(self) -> Expression:
        """The least whole number that is not below the value, a bigint; of a decimal, a decimal."""
        return Expression("ceil", (self,))

    def date_part(self, part: str) -> Expression:
        """A part of a date or a time as an int: `"year"`, `"month"`, … `"second"`, `"day_of_week"` (Sunday is 1), in UTC."""
        return Expression("date_part", (self,), (_one_of("date_part", part, PARTS),))

    def date_trunc(self, unit: str, zone: str | None = None) -> Expression:
        """The beginning of the unit that a date or a moment is in: `"month"`, `"week"` (from Monday), `"hour"` and so on.

        `zone`: the time zone that decides, for a timestamp.
        """
        options = (_one_of("date_trunc", unit, UNITS), None if zone is None else checked_zone("date_trunc", zone))
        return Expression("date_trunc", (self,), options)

    def in_zone(self, zone: str) -> Expression:
        """What clocks in a zone show at a moment, a timestamp_ntz: `col("at").in_zone("Europe/Berlin").cast("date")`."""
        return Expression("in_zone", (self,), (checked_zone("in_zone", zone),))

    def from_utc_timestamp(self, zone: str) -> Expression:
        """The same as a timestamp: clocks in UTC then show what clocks in the zone show at this moment. As in Spark."""
        return Expression("from_utc_timestamp", (self,), (checked_zone("from_utc_timestamp", zone),))

    def to_utc_timestamp(self, zone: str) -> Expression:
        """The moment at which clocks in a zone show what UTC clocks show at this one: the inverse of `from_utc_timestamp`."""
        return Expression("to_utc_timestamp", (self,), (checked_zone("to_utc_timestamp", zone),))

    def to_date(self, format: str) -> Expression:
        """The date that a text has in a format of `strptime`: `"%d.%m.%Y"`. `cast("date")` reads `2026-11-26`."""
        return Expression("to_date", (self,), (checked_format("to_date", format),))

    def to_timestamp(self, format: str) -> Expression:
        """The moment that a text has in a format of `strptime`, in UTC without `%z`. `cast("timestamp")` reads ISO 8601."""
        return Expression("to_timestamp", (self,), (checked_format("to_timestamp", format),))

    def json(self, path: str) -> Expression:
        """What JSON text has at a path such as `"$.user.tags[0]"`, as text; null if there is nothing, or it is not JSON."""
        return Expression("json", (self,), json_path(path))

    def cast(self, type: str) -> Expression:
        """The value as another type, written as DDL. Exact: a value that does not fit fails as its tuple would."""
        return Expression("cast", (self,), (normal_type(type),))

    def upper(self) -> Expression:
        """The text in upper case, as in Python (so `ß` becomes `SS`)."""
        return Expression("upper", (self,))

    def lower(self) -> Expression:
        """The text in lower case, as in Python."""
        return Expression("lower", (self,))

    def trim(self, characters: str = " ", side: str = "both") -> Expression:
        """The text without some characters, spaces if none are named, at its ends, or on its `"left"` or `"right"` side."""
        options = (_text("trim", characters), _one_of("trim", side, ("both", "left", "right")))
        return Expression("trim", (self,), options)

    def length(self) -> Expression:
        """The number of characters."""
        return Expression("length", (self,))

    def contains(self, text: str) -> Expression:
        """Whether `text` occurs in the text."""
        return Expression("contains", (self,), (_text("contains", text),))

    def starts_with(self, text: str) -> Expression:
        """Whether the text begins with `text`."""
        return Expression("starts_with", (self,), (_text("starts_with", text),))

    def ends_with(self, text: str) -> Expression:
        """Whether the text ends with `text`."""
        return Expression("ends_with", (self,), (_text("ends_with", text),))

    def like(self, pattern: str) -> Expression:
        r"""Whether the whole text fits a pattern: `%` stands for any characters, `_` for one; `\%`, `\_`, `\\` for itself."""
        if re.fullmatch(r"(?:[^\\]|\\[%_\\])*", _text("like", pattern), re.DOTALL) is None:
            raise TopologyError(f"like: a backslash must stand before %, _ or another backslash, unlike in {pattern!r}")
        return Expression("like", (self,), (pattern,))

    def rlike(self, pattern: str) -> Expression:
        """Whether a regular expression (RE2) matches a part of the text."""
        return Expression("rlike", (self,), (_pattern("rlike", pattern),))

    def regexp_extract(self, pattern: str, group: int = 1) -> Expression:
        """What a group of a regular expression matches in the text, 0 the whole; an empty text if there is no match."""
        if _whole("regexp_extract", group) not in range(re.compile(_pattern("regexp_extract", pattern)).groups + 1):
            raise TopologyError(f"regexp_extract: {pattern!r} has no group {group}")
        return Expression("regexp_extract", (self,), (pattern, group))

    def regexp_replace(self, pattern: str, replacement: str) -> Expression:
        r"""The text with matches of a regular expression replaced; `\1` in the replacement is what its first group matched."""
        _pattern("regexp_replace", pattern, _text("regexp_replace", replacement))
        return Expression("regexp_replace", (self,), (pattern, replacement))

    def replace(self, text: str, replacement: str) -> Expression:
        """The text with each occurrence of another text replaced."""
        return Expression("replace", (self,), (_text("replace", text), _text("replace", replacement)))

    def substring(self, start: int, length: int | None = None) -> Expression:
        """At most `length` characters from position `start` on, which begins at 0; all the rest without `length`."""
        for one in (start, 0 if length is None else length):
            if not isinstance(one, int) or isinstance(one, bool) or one < 0:
                raise TopologyError(f"substring takes whole numbers of at least 0, got {one!r}")
        return Expression("substring", (self,), (start, length))

    def split(self, separator: str) -> Expression:
        """The parts between single separators, empty ones included, as an array."""
        if not _text("split", separator):
            raise TopologyError("split needs a separator of at least one character")
        return Expression("split", (self,), (separator,))

    def field(self, name: str) -> Expression:
        """One field of a struct; null where the struct is."""
        return Expression("field", (self,), (_text("field", name),))

    def explode(self) -> Expression:
        """Each element of an array in a tuple of its own, for one column of `select`; an empty or null one drops it."""
        return Expression("explode", (self,))

    def __repr__(self) -> str:
        if self.kind in ("col", "lit"):
            return f"{self.kind}({self.options[0]!r})"
        if _BINARY.fullmatch(self.kind):
            return f"({self.operands[0]!r} {self.kind} {self.operands[1]!r})"
        if self.kind in ("negate", "not"):
            return f"{'-' if self.kind == 'negate' else '~'}{self.operands[0]!r}"
        if self.kind in ("coalesce", "if_else", "concat", "greatest", "least"):
            return f"{self.kind}({', '.join(map(repr, self.operands))})"
        shown = ", ".join(repr(option) for option in self.options if option is not None)
        return f"{self.operands[0]!r}.{self.kind}({shown})"


def col(name: str) -> Expression:
    """The value of a field."""
    if not isinstance(name, str):
        raise TopologyError(f"col takes the name of a field, got {name!r}")
    return Expression("col", (), (name,))


def lit(value: Any) -> Expression:
    """A value that is the same for all tuples. Operators take plain values too; `lit(None)` needs a `cast`."""
    return Expression("lit", (), (value,))


def coalesce(*values: Any) -> Expression:
    """The first of the values that is not null; null if all are."""
    return _of_several("coalesce", values)


def if_else(condition: Any, then: Any, otherwise: Any) -> Expression:
    """`then` where the condition is true, `otherwise` where it is false or null."""
    return Expression("if_else", tuple(map(_expression, (condition, then, otherwise))))


def concat(*texts: Any) -> Expression:
    """The texts one after the other; null if one is."""
    return _of_several("concat", texts)


def greatest(*values: Any) -> Expression:
    """The greatest of the values that are not null; null if all are."""
    return _of_several("greatest", values)


def least(*values: Any) -> Expression:
    """The least of the values that are not null; null if all are."""
    return _of_several("least", values)


PARTS = (
    "year", "quarter", "month", "week", "day", "hour", "minute", "second", "day_of_week", "day_of_year",
)  # fmt: skip
UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def json_path(path: str) -> tuple[str | int, ...]:
    """Return the names and places of a path; `TopologyError` if it is none."""
    steps = _STEP.findall(path[1:]) if _text("json", path).startswith("$") else []
    if "$" + "".join(f".{name}" if name else f"[{place}]" for name, place in steps) != path or not steps:
        raise TopologyError(f"json takes a path such as '$.user.name' or '$.tags[0]', got {path!r}")
    return tuple(name or int(place) for name, place in steps)


def _of_several(kind: str, values: tuple[Any, ...]) -> Expression:
    if not values:
        raise TopologyError(f"{kind} needs at least one value")
    return Expression(kind, tuple(map(_expression, values)))


def _one_of(call: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise TopologyError(f"{call} takes one of {', '.join(known)}; got {text!r}")
    return text


def _whole(call: str, number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TopologyError(f"{call} takes a whole number, got {number!r}")
    return number


def _pattern(call: str, pattern: str, replacement: str = "") -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        re.compile(_text(call, pattern))
        pc.replace_substring_regex(pa.array([""]), pattern, replacement)  # RE2 has no looking around, for one
    except (re.error, ValueError) as error:
        raise TopologyError(f"{call}: {pattern!r} is not a regular expression: {error}") from None
    return pattern


def _expression(value: object) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def _binary(kind: str, left: object, right: object) -> Expression:
    return Expression(kind, (_expression(left), _expression(right)))


def _text(call: str, text: object) -> str:
    if not isinstance(text, str):
        raise TopologyError(f"{call} takes a text, got {text!r}")
    return text
