"""Expressions over columns, as data: `col("n") + 1`, `col("word").upper()`; for `Stream.select` and `Stream.where`.

An expression is checked against a stream's fields when it is declared (`trident.operations.expression_types`), and computed
for a whole batch at once where the tuples are. A null operand gives null, but for `is_null`, `is_not_null`, `coalesce`,
`if_else`, and `&` and `|` where the other side decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from trident.errors import TopologyError
from trident.fields import normal_type

_BINARY = re.compile(r"[-+*/&|<>=!]+")


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

    # ---- operators --------------------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: object) -> Expression:
        return _binary("+", other, self)

    def __sub__(self, other: object) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: object) -> Expression:
        return _binary("-", other, self)

    def __mul__(self, other: object) -> Expression:
        return _binary("*", self, other)

    def __rmul__(self, other: object) -> Expression:
        return _binary("*", other, self)

    def __truediv__(self, other: object) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return _binary("/", other, self)

    def __neg__(self) -> Expression:
        return Expression("negate", (self,))

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("!=", self, other)

    def __lt__(self, other: object) -> Expression:
        return _binary("<", self, other)

    def __le__(self, other: object) -> Expression:
        return _binary("<=", self, other)

    def __gt__(self, other: object) -> Expression:
        return _binary(">", self, other)

    def __ge__(self, other: object) -> Expression:
        return _binary(">=", self, other)

    def __and__(self, other: object) -> Expression:
        return _binary("&", self, other)

    def __rand__(self, other: object) -> Expression:
        return _binary("&", other, self)

    def __or__(self, other: object) -> Expression:
        return _binary("|", self, other)

    def __ror__(self, other: object) -> Expression:
        return _binary("|", other, self)

    def __invert__(self) -> Expression:
        return Expression("not", (self,))

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no truth value before there are tuples; write &, | and ~ for and, or and not, "
            "with each comparison in parentheses"
        )

    # ---- functions --------------------------------------------------------------------------------------------------

    def is_null(self) -> Expression:
        """Whether the value is null."""
        return Expression("is_null", (self,))

    def is_not_null(self) -> Expression:
        """Whether the value is not null."""
        return Expression("is_not_null", (self,))

    def cast(self, type: str) -> Expression:
        """The value as another type, written as DDL. Exact: a value that does not fit fails as its tuple would."""
        return Expression("cast", (self,), (normal_type(type),))

    def upper(self) -> Expression:
        """The text in upper case, character by character (so `ß` stays one character)."""
        return Expression("upper", (self,))

    def lower(self) -> Expression:
        """The text in lower case, character by character."""
        return Expression("lower", (self,))

    def trim(self) -> Expression:
        """The text without white space at either end."""
        return Expression("trim", (self,))

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

    def substring(self, start: int, length: int | None = None) -> Expression:
        """At most `length` characters from position `start` on, which begins at 0; all the rest without `length`."""
        for one in (start, length):
            if one is not None and (not isinstance(one, int) or isinstance(one, bool) or one < 0):
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
        if self.kind in ("coalesce", "if_else"):
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
    if not values:
        raise TopologyError("coalesce needs at least one value")
    return Expression("coalesce", tuple(map(_expression, values)))


def if_else(condition: Any, then: Any, otherwise: Any) -> Expression:
    """`then` where the condition is true, `otherwise` where it is false or null."""
    return Expression("if_else", tuple(map(_expression, (condition, then, otherwise))))


def _expression(value: object) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def _binary(kind: str, left: object, right: object) -> Expression:
    return Expression(kind, (_expression(left), _expression(right)))


def _text(call: str, text: object) -> str:
    if not isinstance(text, str):
        raise TopologyError(f"{call} takes a text, got {text!r}")
    return text
