"""The types of expressions, checked at the declaration: nothing mistyped reaches a worker."""

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, fields_of_struct, type_of_hint
from trident.operations.expressions import Expression
from trident.types import class_of, family_of, simple_type

_NUMBERS = {"number", "decimal"}


class _MistypedError(Exception):
    """What an operator takes; becomes a `TopologyError` that names expression and stream."""


def type_of(expression: Expression, fields: Fields, stream: str) -> str:
    """Return the type of what an expression gives; `TopologyError` for an unknown field, or an operand of a wrong type."""
    if expression.kind == "col":
        (name,) = expression.options
        known = fields.select([name], stream).types[0]
        if known is None:
            raise TopologyError(f"stream {stream!r}: the type of field {name!r} is not known")
        return known
    types = [type_of(operand, fields, stream) for operand in expression.operands]
    if expression.kind in EXACT and any(map(_is_decimal, types)):
        types = [exact_type(*one) for one in zip(expression.operands, types, strict=True)]
    try:
        return _RULES[expression.kind](types, expression.options)
    except _MistypedError as error:
        shown = " and ".join(
            f"{operand!r} is {type_}" for operand, type_ in zip(expression.operands, types, strict=True)
        )
        found = f", but {shown}" if shown else ""
        raise TopologyError(f"stream {stream!r}: cannot compute {expression!r}: {error}{found}") from None


EXACT = frozenset("+-*/%")
"""The operators for which a whole number beside a decimal is one."""


def exact_type(operand: Expression, type_: str) -> str:
    """Return the type of an operand beside a decimal, as in Spark: a whole number has its type's digits, a literal its own."""
    if class_of(type_) is not int:
        return type_
    digits = len(str(abs(operand.options[0]))) if operand.kind == "lit" else digits_of(type_)[0]
    return f"decimal({digits},0)"


Types = Sequence[str]
Options = tuple[Any, ...]
Rule = Callable[[Types, Options], str]
"""Returns the type of the result, of the operands' types and the options; raises `_MistypedError`."""

_NUMBER = (lambda type_: family_of(type_) in _NUMBERS, "a number")
_TEXT = ("string".__eq__, "a string")
_MOMENT = ("timestamp".__eq__, "a timestamp, which is a moment; a {0} is not")
_BOOLEANS = ("boolean".__eq__, "booleans, each comparison in parentheses")


def _takes(name: str, taken: tuple[Callable[[str], Any], str], result: str | None = None) -> Rule:
    """Return the rule of what takes one kind of operands and gives a type, that of the first unless it is said."""

    def rule(types: Types, options: Options) -> str:
        fits, said = taken
        if not all(map(fits, types)):
            raise _MistypedError(f"{name} takes {said.format(types[0])}")
        return result or types[0]

    return rule


def _lit(types: Types, options: Options) -> str:
    (value,) = options
    if value is None:
        return "void"
    if isinstance(value, datetime.datetime) and value == value:  # not NaT
        return "timestamp_ntz" if value.tzinfo is None else "timestamp"
    if isinstance(value, Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        scale = max(0, -int(exponent))
        precision = max(len(digits) + max(0, int(exponent)), scale, 1)
        if precision > 38:
            raise _MistypedError("a decimal has at most 38 digits")
        return f"decimal({precision},{scale})"
    type_ = type_of_hint(type(value))
    if type_ is None or isinstance(value, Decimal):
        raise _MistypedError(f"a literal is a plain value such as a text or a number, not {type(value).__name__}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise _MistypedError("a whole number has 64 bits")
    return type_


def _number(types: Types) -> str:
    return "bigint" if all(class_of(type_) is int for type_ in types) else "double"


def _arithmetic(symbol: str, count: str) -> Rule:
    def rule(types: Types, options: Options) -> str:
        families = set(map(family_of, types))
        if not families <= _NUMBERS:
            raise _MistypedError(f"{symbol} takes {count}")
        if "decimal" not in families or float in map(class_of, types):
            return "double" if symbol == "/" or "decimal" in families else _number(types)
        return result_of_decimals(symbol, types)

    return rule


def result_of_decimals(symbol: str, types: Types) -> str:
    """Return the type of an exact result, as Spark does; a quotient of more than 38 digits loses the last behind its point."""
    if len(types) == 1:
        return types[0]
    (p1, s1), (p2, s2) = map(digits_of, types)
    if symbol == "/":
        scale, whole = max(6, s1 + p2 + 1), p1 - s1 + s2
        precision, scale = whole + scale, scale if whole + scale <= 38 else max(38 - whole, min(scale, 6))
        return f"decimal({min(38, precision)},{scale})"
    scale = s1 + s2 if symbol == "*" else max(s1, s2)
    precision = p1 + p2 + 1 if symbol == "*" else max(p1 - s1, p2 - s2) + scale + 1
    if symbol == "%":
        precision = min(p1 - s1, p2 - s2) + scale
    if precision > 38:
        raise _MistypedError(f"{symbol} would give {precision} digits, more than 38; cast to fewer, or to double")
    return f"decimal({precision},{scale})"


def digits_of(type_: str) -> tuple[int, int]:
    """Return the digits of a decimal or a whole number, and how many are behind the point."""
    known = simple_type(type_)
    assert known is not None, type_
    return 20 if type_ == "bigint" else sum(known.digits), known.digits[1]


def _round(types: Types, options: Options) -> str:
    type_ = _takes("round", _NUMBER)(types, options)
    if not _is_decimal(type_):
        return type_
    (precision, scale), (digits,) = digits_of(type_), options
    kept, whole = min(scale, max(digits, 0)), precision - scale + 1
    return f"decimal({min(38, max(whole, 1 - digits) + kept)},{kept})"


def _to_whole(name: str) -> Rule:
    def rule(types: Types, options: Options) -> str:
        type_ = _takes(name, _NUMBER)(types, options)
        if not _is_decimal(type_):
            return "bigint"
        precision, scale = digits_of(type_)
        return f"decimal({min(38, precision - scale + 1)},0)"

    return rule


def _isin(types: Types, options: Options) -> str:
    for value in options:
        _comparison("isin")((*types, _lit((), (value,))), ())
    return "boolean"


def _of_time(name: str, result: str | None = None) -> Rule:
    def rule(types: Types, options: Options) -> str:
        has_time = types[0] in ("timestamp", "timestamp_ntz")
        if not has_time and types[0] != "date":
            raise _MistypedError(f"{name} takes a date or a timestamp")
        if not has_time and options[0] in ("hour", "minute", "second"):
            raise _MistypedError(f"a date has no {options[0]}")
        return result or types[0]

    return rule


def _date_trunc(types: Types, options: Options) -> str:
    if options[1] is not None:
        return _takes("date_trunc with a zone", _MOMENT)(types, options)
    return _of_time("date_trunc")(types, options)


def _extreme(name: str) -> Rule:
    def rule(types: Types, options: Options) -> str:
        if not all(map(simple_type, types)):
            raise _MistypedError(f"{name} takes values that have an order")
        return _common(name, types)

    return rule


def _is_decimal(type_: str) -> bool:
    return family_of(type_) == "decimal"


def _comparison(symbol: str) -> Rule:
    def rule(types: Types, options: Options) -> str:
        left, right = types
        families = {family_of(left), family_of(right)}
        if simple_type(left) is None or not (left == right or len(families) == 1 or families == _NUMBERS):
            raise _MistypedError(f"{symbol} compares two numbers or two plain values of the same type")
        return "boolean"

    return rule


def _cast(types: Types, options: Options) -> str:
    target, *_ = options
    (source,) = types
    known = simple_type(source)
    if source not in ("void", target) and (known is None or family_of(target) not in known.casts.split()):
        raise _MistypedError(f"there is no cast to {target}")
    return str(target)


def _field(types: Types, options: Options) -> str:
    (type_,), (name,) = types, options
    fields = fields_of_struct(type_)
    if not len(fields):
        raise _MistypedError("field takes a struct")
    if name not in fields:
        raise _MistypedError(f"there is no field {name!r}; there are {', '.join(fields.names)}")
    return str(fields.type_of(name))


def _explode(types: Types, options: Options) -> str:
    raise _MistypedError("explode must be a whole column of select, not a part of another expression")


def _common(name: str, types: Types) -> str:
    if len(set(types)) == 1 and types[0] != "void":
        return types[0]
    rest = [type_ for type_ in types if type_ != "void"]
    if len(set(rest)) == 1:
        return rest[0]
    families = set(map(family_of, rest))
    if not rest or not families <= _NUMBERS:
        raise _MistypedError(f"{name} takes values of one type, or numbers")
    if "decimal" not in families or float in map(class_of, rest):
        return _number(rest)
    whole, scale = (max(one) for one in zip(*((p - s, s) for p, s in map(digits_of, rest)), strict=True))
    if whole + scale > 38:
        raise _MistypedError(f"{name} would give {whole + scale} digits, more than 38; cast to fewer, or to double")
    return f"decimal({whole + scale},{scale})"


def _if_else(types: Types, options: Options) -> str:
    if types[0] != "boolean":
        raise _MistypedError("if_else takes a boolean first")
    return _common("if_else", types[1:])


_RULES: dict[str, Rule] = {
    "lit": _lit,
    **{symbol: _arithmetic(symbol, "two numbers") for symbol in ("+", "-", "*", "/", "%")},
    "negate": _arithmetic("-", "a number"),
    **{symbol: _comparison(symbol) for symbol in ("==", "!=", "<", "<=", ">", ">=")},
    **{symbol: _takes(symbol, _BOOLEANS) for symbol in ("&", "|")},
    "not": _takes("~", _BOOLEANS),
    **{name: lambda types, options: "boolean" for name in ("is_null", "is_not_null")},
    **{name: _takes(name, _TEXT, "string") for name in ("upper", "lower", "trim", "substring")},
    **{name: _takes(name, _TEXT, "boolean") for name in ("contains", "starts_with", "ends_with", "like", "rlike")},
    **{name: _takes(name, _TEXT, "string") for name in ("regexp_extract", "regexp_replace", "replace", "json")},
    "to_date": _takes("to_date", _TEXT, "date"),
    "to_timestamp": _takes("to_timestamp", _TEXT, "timestamp"),
    "isin": _isin,
    "abs": _takes("abs", _NUMBER),
    "round": _round,
    **{name: _to_whole(name) for name in ("floor", "ceil")},
    "date_part": _of_time("date_part", "int"),
    "date_trunc": _date_trunc,
    "in_zone": _takes("in_zone", _MOMENT, "timestamp_ntz"),
    **{name: _takes(name, _MOMENT, "timestamp") for name in ("from_utc_timestamp", "to_utc_timestamp")},
    "concat": _takes("concat", ("string".__eq__, "strings")),
    **{name: _extreme(name) for name in ("greatest", "least")},
    "length": _takes("length", _TEXT, "bigint"),
    "split": _takes("split", _TEXT, "array<string>"),
    "cast": _cast,
    "explode": _explode,
    "field": _field,
    "coalesce": lambda types, options: _common("coalesce", types),
    "if_else": _if_else,
}
