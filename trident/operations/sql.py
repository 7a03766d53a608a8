"""SQL text as expressions: `"euros > 1 and shop in ('Oslo')"`, in Spark's dialect, read by sqlglot.

Names, precedence, nulls and the positions of `substring` are those of Spark SQL. Different from it: a cast or a text that does
not fit fails as its tuple would, also without ANSI mode; times are in UTC; regular expressions are RE2's; `1.5` is a double.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from trident.errors import TopologyError
from trident.extras import needs_package
from trident.moments import MOMENTS, moment_of
from trident.operations.expressions import (
    PARTS,
    UNITS,
    Expression,
    coalesce,
    col,
    concat,
    greatest,
    if_else,
    least,
    lit,
)

Node = Any
"""A node of sqlglot's tree."""


def sql(text: str) -> Expression:
    """Return the expression that an SQL text says: `select("shop", total=sql("price * n"))`; `where` takes the text itself.

    Raises
    ------
    TopologyError
        It is no SQL, or has what there is no expression for.
    """
    name, expression = named_sql(text)
    if name is not None:
        raise TopologyError(f"{text!r} names its column {name!r}; give it to select as it is, select({text!r})")
    return expression


def named_sql(text: str) -> tuple[str | None, Expression]:
    """Return the name that an SQL text gives with `AS`, None if it gives none, and its expression."""
    with needs_package("SQL text", "sql"):
        import sqlglot
        from sqlglot.errors import SqlglotError
    try:
        node = sqlglot.parse_one(text, read="spark")
    except SqlglotError as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise TopologyError(f"{text!r} is no SQL expression: {said}") from None
    alias = node.alias if type(node).__name__ == "Alias" else None
    try:
        return alias, _of(node.this if alias else node)
    except _Unknown as error:
        raise TopologyError(f"{text!r}: {error}") from None


class _Unknown(Exception):
    """What there is no expression for."""


def _of(node: Node) -> Expression:
    kind = type(node).__name__
    rule = _RULES.get(kind)
    if rule is not None:
        return rule(node)
    if kind == "Anonymous":
        return _function(node)
    raise _Unknown(_no_such(str(node.key)))


def _function(node: Node) -> Expression:
    name, given = node.name.lower(), node.expressions
    made = _FUNCTIONS.get(name)
    if made is None:
        raise _Unknown(_no_such(name))
    try:
        return made(*given)
    except TypeError:
        raise _Unknown(f"{name} does not take {len(given)} arguments") from None


def _no_such(name: str) -> str:
    near = difflib.get_close_matches(name, SQL_FUNCTIONS, n=1, cutoff=0.75)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SQL_FUNCTIONS)}"
    return f"there is no function {name} here{hint}"


def _literal(node: Node) -> Any:
    """Return a plain value that has to be written out."""
    expression = _of(node)
    if expression.kind == "negate" and expression.operands[0].kind == "lit":
        return -expression.operands[0].options[0]
    if expression.kind != "lit":
        raise _Unknown(f"{node.sql()} has to be a plain value")
    return expression.options[0]


def _number(node: Node) -> Expression:
    if node.is_string:
        return lit(node.this)
    return lit(float(node.this) if set(node.this) & set(".eE") else int(node.this))


def _column(node: Node) -> Expression:
    parts = [part.name for part in node.parts]
    made = col(parts[0])
    for part in parts[1:]:
        made = made.field(part)
    return made


def _cast(node: Node) -> Expression:
    type_ = node.args["to"].sql(dialect="spark").lower()
    value = _of(node.this)
    if type_.startswith("decimal") and value.kind == "lit" and isinstance(value.options[0], str):
        return lit(Decimal(value.options[0]))
    if type_ in MOMENTS and value.kind == "lit" and isinstance(value.options[0], str):
        return _moment(value.options[0], type_)
    return value.cast(type_)


def _moment(text: str, type_: str) -> Expression:
    """Return a literal; here the session is in UTC, so a `timestamp` that is written out needs no offset."""
    try:
        return lit(moment_of(text, type_, in_utc=True))
    except ValueError as error:
        raise _Unknown(str(error)) from None


def _case(node: Node) -> Expression:
    made = _of(node.args["default"]) if node.args.get("default") is not None else lit(None)
    for one in reversed(node.args["ifs"]):
        condition = _of(one.this) if node.this is None else _of(node.this) == _of(one.this)
        made = if_else(condition, _of(one.args["true"]), made)
    return made


def _substring(node: Node) -> Expression:
    start = _literal(node.args["start"])
    length = node.args.get("length")
    if not isinstance(start, int) or start < 1:
        raise _Unknown(f"substring begins to count at 1, got {start}")
    return _of(node.this).substring(start - 1, None if length is None else _literal(length))


def _part(part: str) -> Callable[[Node], Expression]:
    return lambda node: _undated(node).date_part(part)


def _undated(node: Node) -> Expression:
    """Return the operand of a part, which sqlglot makes a date."""
    inner = node.this
    return _of(inner.this if type(inner).__name__ == "TsOrDsToDate" and not inner.args.get("format") else inner)


def _truncated(node: Node) -> Expression:
    return _of(node.this).date_trunc(_unit(node.args["unit"].name, UNITS))


def _zoned(made: Callable[[Expression, Any], Expression]) -> Callable[[Node], Expression]:
    """Return the rule of from_utc_timestamp or to_utc_timestamp, which sqlglot makes a cast at a time zone."""

    def rule(node: Node) -> Expression:
        if type(node.this).__name__ != "Cast":
            raise _Unknown("Spark has no AT TIME ZONE: write from_utc_timestamp(at, 'Europe/Berlin')")
        return made(_of(node.this), _literal(node.args["zone"]))

    return rule


def _convert_timezone(node: Node) -> Expression:
    if node.args.get("source_tz") is not None:
        raise _Unknown("convert_timezone takes the zone to convert to and a timestamp here; moments are in UTC")
    return _of(node.args["timestamp"]).in_zone(_literal(node.args["target_tz"]))


def _unit(name: str, known: tuple[str, ...]) -> str:
    unit = {"mon": "month", "mm": "month", "yyyy": "year", "yy": "year", "dd": "day", "dayofweek": "day_of_week"}.get(
        name.lower(), name.lower()
    )
    if unit not in known:
        raise _Unknown(f"{unit} is none of {', '.join(known)}")
    return unit


def _format(node: Node) -> str:
    made = str(node.args["format"].this).replace("strict", "").replace("%-", "%")
    if not _PATTERN.fullmatch(made) or "%Y" not in made:
        raise _Unknown("a pattern of dates has yyyy, and may have MM, MMM, dd, HH, hh a, mm, ss and marks between them")
    return made


_PATTERN = re.compile(r"(?:%[YmbBdHMS]|%I(?=.*%p)|%p|[^A-Za-z%'])+", re.DOTALL)


def _to_date(node: Node) -> Expression:
    value = _of(node.this)
    return value.to_date(_format(node)) if node.args.get("format") else value.cast("date")


def _json_path(node: Node) -> str:
    steps = []
    for step in node.expression.expressions:
        kind = type(step).__name__
        if kind == "JSONPathKey" and isinstance(step.this, str):
            steps.append(f".{step.this}")
        elif kind == "JSONPathSubscript" and isinstance(step.this, int):
            steps.append(f"[{step.this}]")
        elif kind != "JSONPathRoot":
            raise _Unknown(f"{node.expression.sql()} is no plain path")
    return "$" + "".join(steps)


def _in(node: Node) -> Expression:
    if not node.expressions:
        raise _Unknown("IN takes a list of values")
    return _of(node.this).isin(*map(_literal, node.expressions))


def _is(node: Node) -> Expression:
    what = type(node.expression).__name__
    if what == "Null":
        return _of(node.this).is_null()
    if what != "Boolean":
        raise _Unknown("IS takes NULL, TRUE or FALSE")
    return coalesce(_of(node.this) == node.expression.this, False)


def _like(node: Node) -> Expression:
    made = _of(node.this).like(_literal(node.expression))
    return ~made if node.args.get("negate") else made


def _same(left: Expression, right: Expression) -> Expression:
    return if_else(left.is_null() | right.is_null(), left.is_null() & right.is_null(), left == right)


def _two(made: Callable[[Any, Any], Expression]) -> Callable[[Node], Expression]:
    return lambda node: made(_of(node.this), _of(node.expression))


def _one(made: Callable[[Expression], Expression]) -> Callable[[Node], Expression]:
    return lambda node: made(_of(node.this))


def _with_text(made: Callable[[Expression, Any], Expression]) -> Callable[[Node], Expression]:
    return lambda node: made(_of(node.this), _literal(node.expression))


def _several(made: Callable[..., Expression]) -> Callable[[Node], Expression]:
    return lambda node: made(*([_of(node.this)] if node.this is not None else []), *map(_of, node.expressions))


def _digits(node: Node) -> Expression:
    digits = node.args.get("decimals")
    return _of(node.this).round(0 if digits is None else _literal(digits))


_RULES: dict[str, Callable[[Node], Expression]] = {
    "Column": _column,
    "Dot": lambda node: _of(node.this).field(node.expression.name),
    "Literal": _number,
    "Boolean": lambda node: lit(node.this),
    "Null": lambda node: lit(None),
    "Paren": _one(lambda one: one),
    "Add": _two(lambda a, b: a + b),
    "Sub": _two(lambda a, b: a - b),
    "Mul": _two(lambda a, b: a * b),
    "Div": _two(lambda a, b: a / b),
    "Mod": _two(lambda a, b: a % b),
    "Neg": _one(lambda one: -one),
    "EQ": _two(lambda a, b: a == b),
    "NEQ": _two(lambda a, b: a != b),
    "NullSafeEQ": _two(_same),
    "LT": _two(lambda a, b: a < b),
    "LTE": _two(lambda a, b: a <= b),
    "GT": _two(lambda a, b: a > b),
    "GTE": _two(lambda a, b: a >= b),
    "And": _two(lambda a, b: a & b),
    "Or": _two(lambda a, b: a | b),
    "Not": _one(lambda one: ~one),
    "In": _in,
    "Is": _is,
    "Between": lambda node: _of(node.this).between(_of(node.args["low"]), _of(node.args["high"])),
    "Like": _like,
    "RegexpLike": _with_text(Expression.rlike),
    "Case": _case,
    "If": lambda node: if_else(_of(node.this), _of(node.args["true"]), _of(node.args["false"])),
    "Coalesce": _several(coalesce),
    "Nullif": _two(lambda a, b: if_else(a == b, lit(None), a)),
    "Greatest": _several(greatest),
    "Least": _several(least),
    "Cast": _cast,
    "TryCast": _cast,
    "Abs": _one(Expression.abs),
    "Round": _digits,
    "Floor": _one(Expression.floor),
    "Ceil": _one(Expression.ceil),
    "Upper": _one(Expression.upper),
    "Lower": _one(Expression.lower),
    "Trim": _one(Expression.trim),
    "Length": _one(Expression.length),
    "Substring": _substring,
    "Left": lambda node: _of(node.this).substring(0, _literal(node.expression)),
    "Concat": _several(concat),
    "DPipe": _two(concat),
    "Contains": _with_text(Expression.contains),
    "StartsWith": _with_text(Expression.starts_with),
    "EndsWith": _with_text(Expression.ends_with),
    "Replace": lambda node: _of(node.this).replace(_literal(node.expression), _literal(node.args["replacement"])),
    "RegexpExtract": lambda node: _of(node.this).regexp_extract(
        _literal(node.expression), _literal(node.args["group"]) if node.args.get("group") else 1
    ),
    "RegexpReplace": lambda node: _of(node.this).regexp_replace(
        _literal(node.expression), _literal(node.args["replacement"])
    ),
    "JSONExtractScalar": lambda node: _of(node.this).json(_json_path(node)),
    "TsOrDsToDate": _to_date,
    "StrToTime": lambda node: _of(node.this).to_timestamp(_format(node)),
    "TimestampTrunc": _truncated,
    "DateTrunc": _truncated,
    "AtTimeZone": _zoned(Expression.from_utc_timestamp),
    "FromTimeZone": _zoned(Expression.to_utc_timestamp),
    "ConvertTimezone": _convert_timezone,
    "Extract": lambda node: _of(node.expression).date_part(_unit(node.this.name, PARTS)),
    "Explode": _one(Expression.explode),
    **{name.title().replace("_", ""): _part(name) for name in PARTS},
    "DayOfWeek": _part("day_of_week"),
    "DayOfYear": _part("day_of_year"),
    "DayOfMonth": _part("day"),
    "WeekOfYear": _part("week"),
}

_FUNCTIONS: dict[str, Callable[..., Expression]] = {
    "isnull": lambda one: _of(one).is_null(),
    "isnotnull": lambda one: _of(one).is_not_null(),
    "date_part": lambda part, one: _of(one).date_part(_unit(_literal(part), PARTS)),
}

SQL_FUNCTIONS = (
    "abs", "cast", "ceil", "char_length", "coalesce", "concat", "contains", "convert_timezone", "date", "date_part",
    "date_trunc", "day", "dayofmonth", "dayofweek", "dayofyear", "endswith", "explode", "extract", "floor",
    "from_utc_timestamp", "get_json_object", "greatest", "hour", "if", "ifnull", "isnotnull", "isnull", "lcase",
    "least", "left", "length", "lower", "minute", "mod", "month", "nullif", "nvl", "quarter", "regexp_extract",
    "regexp_replace", "replace", "round", "second", "startswith", "substr", "substring", "to_date", "to_timestamp",
    "to_utc_timestamp", "trim", "trunc", "ucase", "upper", "weekofyear", "year",
)  # fmt: skip
"""The functions that there are, by Spark's names."""
