"""SQL text as expressions: `"euros > 1 and shop in ('Oslo')"`, in Spark's dialect, read by sqlglot.

A text means what it means in Spark with ANSI mode and its session in UTC, or it is refused, or a tuple fails: each function is
compared with Spark over awkward values. docs/streams.md has a table of what differs on purpose.
"""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from trident.errors import TopologyError
from trident.extras import needs_package
from trident.fields import Fields
from trident.moments import IN_SPARK, MOMENTS, moment_of
from trident.operations.expression_types import type_of
from trident.operations.expressions import Expression, coalesce, col, concat, greatest, if_else, least, lit
from trident.operations.sql_nodes import (
    Rule,
    SqlError,
    SqlNode,
    check_order,
    check_signs,
    check_words,
    no_such,
    spark_pattern,
    spark_replacement,
)


def sql(text: str) -> Expression:
    """Return the expression that SQL text stands for: `select("shop", total=sql("price * n"))`; `where` takes the text itself.

    Raises
    ------
    TopologyError
        It is not SQL, or uses something that no expression covers.
    """
    name, expression = named_sql(text)
    if name is not None:
        raise TopologyError(f"{text!r} names its column {name!r}; give it to select as it is, select({text!r})")
    return expression


def named_sql(text: str) -> tuple[str | None, Expression]:
    """Return the name that an SQL text gives with `AS`, None if it gives none, and its expression."""
    if not isinstance(text, str) or not text.strip():
        raise TopologyError(f"{text!r} is not an SQL expression: give text, such as 'euros * 2'")
    with needs_package("SQL text", "sql"):
        import sqlglot
        from sqlglot.errors import SqlglotError
    try:
        tokens = sqlglot.tokenize(text, read="spark")
        check_words(text, tokens, SQL_FUNCTIONS)
        check_signs(tokens)
        check_order(tokens)
        node = SqlNode(sqlglot.parse_one(text, read="spark"), RULES)
        if node.kind != "Alias":
            return None, node.expression()
        named = str(node.take("alias").name), node.of("this")
        node.end()
    except SqlglotError as error:
        said = re.sub(r" for <class '[^']*'>", "", str(error).partition("\n")[0].rstrip("."))
        raise TopologyError(f"{text!r} is not an SQL expression: {said}") from None
    except SqlError as error:
        raise TopologyError(f"{text!r}: {error}") from None
    return named


def _function(node: SqlNode) -> Expression:
    name, given = str(node.take("this")).lower(), node.nodes("expressions")
    made = _FUNCTIONS.get(name)
    if made is None:
        raise SqlError(no_such(name, SQL_FUNCTIONS))
    try:
        return made(*given)
    except TypeError:
        raise SqlError(f"{name} does not take {len(given)} arguments") from None


def _literal(node: SqlNode) -> Expression:
    text, is_text = str(node.take("this") or ""), node.take("is_string")
    if is_text:
        return lit(text)
    kind = float if set(text) & set("eE") else Decimal if "." in text else int
    try:
        number = kind(text)
    except (ValueError, ArithmeticError):  # sqlglot takes 1e3+7 and .1.5D for a number
        raise SqlError(f"{text} is not a number; write blanks around + and -") from None
    if isinstance(number, float) and math.isinf(number):
        raise SqlError(f"{text} is beyond the range of a double")
    return lit(number)


def _negative(node: SqlNode) -> Expression:
    value = node.of("this")
    number = value.options[0] if value.kind == "lit" else None
    if not isinstance(number, int | float | Decimal) or isinstance(number, bool):
        return -value
    # `-` would round a decimal to 28 digits
    return lit(number.copy_negate() if isinstance(number, Decimal) else -number)


def _column(node: SqlNode) -> Expression:
    first, *rest = [part.name for part in map(node.take, ("catalog", "db", "table", "this")) if part is not None]
    made = col(first)
    for part in rest:
        made = made.field(part)
    return made


def _cast(node: SqlNode) -> Expression:
    node.take("_type")
    type_, value = node.take("to").sql(dialect="spark").lower(), node.of("this")
    made = _literal_of(type_, value.options[0]) if value.kind == "lit" else None
    return _in_session(value.cast(type_)) if made is None else made


def _in_session(cast: Expression) -> Expression:
    """Return a cast in a session of Spark in UTC, where a text that is a timestamp needs no offset."""
    return replace(cast, options=(*cast.options, "UTC")) if cast.options[0] in MOMENTS else cast


def _literal_of(type_: str, value: Any) -> Expression | None:
    """Return the literal that a cast of another one is, as in `1L`, `1.5BD` and `timestamp '2026-03-01'`, if it is one."""
    if type_ in MOMENTS and isinstance(value, str):
        try:  # the session is in UTC, so a timestamp that is written out needs no offset
            made = lit(moment_of(value, type_, in_utc=True))
        except ValueError as error:
            raise SqlError(str(error)) from None
        if re.search(IN_SPARK, value, re.ASCII) is None:
            raise SqlError(f"Spark does not read {value!r} as a {type_}; write its offset behind the seconds")
        return made
    if type_.startswith("decimal") and isinstance(value, str) and _DIGITS.fullmatch(value):
        made = lit(Decimal(value))
        return made if type_of(made, Fields(), "").replace(",", ", ") == type_ else None
    match type_, value:
        case "float", int() | float() | Decimal() if not -_GREATEST_FLOAT <= value <= _GREATEST_FLOAT:
            raise SqlError(f"{value} is beyond the range of a float")
        case "double", int() | float() | Decimal():
            return lit(float(value))
        case "bigint", int() if not isinstance(value, bool):
            return lit(value)
    return None


_GREATEST_FLOAT = 2**128 - 2**104
_DIGITS = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)  # not all that Python reads: 1_0


def _case(node: SqlNode) -> Expression:
    value, default = node.take("this"), node.take("default")
    made = node.inner(default).expression() if default is not None else lit(None)
    for one in reversed(node.nodes("ifs")):
        condition = one.of("this") if value is None else node.inner(value).expression() == one.of("this")
        made = if_else(condition, one.of("true"), made)
        one.end()
    return made


def _substring(node: SqlNode) -> Expression:
    start = node.literal("start")
    if not isinstance(start, int) or start < 1:
        raise SqlError(f"substring begins to count at 1, got {start}")
    return node.of("this").substring(start - 1, node.literal("length") if node.has("length") else None)


def _trim(node: SqlNode) -> Expression:
    sides = {"LEADING": "left", "TRAILING": "right", "BOTH": "both"}
    side = sides[str(node.take("position") or "BOTH").upper()]
    return node.of("this").trim(node.literal("expression", " "), side)


def _part(part: str) -> Rule:
    return lambda node: node.without_date_cast("this").date_part(part)


def _named_part(node: SqlNode, name: str, value: Expression) -> Expression:
    part = _PARTS.get(name.lower())
    if part is None:
        raise SqlError(f"{name} is not one of {', '.join(_PARTS)}, which {node} may take")
    return value.date_part(part)


def _truncated_date(node: SqlNode) -> Expression:
    unit = _unit(str(node.take("unit").name), {name: unit for name, unit in _UNITS.items() if unit in _OF_DATES})
    return node.of("this").cast("date").date_trunc(unit)


def _unit(name: str, known: dict[str, str]) -> str:
    if name.lower() not in known:
        raise SqlError(f"{name.lower()} is not one of {', '.join(known)}")
    return known[name.lower()]


def _convert_timezone(node: SqlNode) -> Expression:
    if node.has("source_tz"):
        raise SqlError("convert_timezone takes the zone to convert to and a timestamp here; moments are in UTC")
    return node.of("timestamp").in_zone(node.literal("target_tz"))


def _parse_by_pattern(node: SqlNode, read: Callable[[Expression, str], Expression]) -> Expression:
    """Return a reader of texts in a pattern, which have just the digits that it says."""
    given = str(node.take("format").this)
    made = given.replace("strict", "").replace("%-", "%")
    if not _PATTERN.fullmatch(made) or "%Y" not in made:
        raise SqlError("a pattern of dates has yyyy, and may have MM, MMM, dd, HH, hh a, mm, ss and marks between them")
    shape = re.sub(
        r"%-?\w(?:strict)?|.", lambda found: _SHAPES.get(found[0], re.escape(found[0])), given, flags=re.DOTALL
    )
    return replace(read(node.of("this"), made), options=(made, f"^{shape}$"))


_SHAPES = {"%Y": r"\d{4}", "%b": "[A-Za-z]{3}", "%p": "[AaPp][Mm]"}
_SHAPES |= {f"%{one}strict": r"\d\d" for one in "mdHIMS"} | {f"%-{one}": r"\d\d?" for one in "mdHIMS"}
_PATTERN = re.compile(r"(?:%[YmbdHMS]|%I(?=.*%p)|%p|[^A-Za-z%'])+", re.DOTALL)


def _to_date(node: SqlNode) -> Expression:
    node.take("safe")
    if node.has("format"):
        return _parse_by_pattern(node, Expression.to_date)
    return _in_session(node.of("this").cast("date"))


def _json(node: SqlNode) -> Expression:
    path, steps = node.take("expression"), []
    for step in path.expressions:
        kind = type(step).__name__
        if kind == "JSONPathKey" and isinstance(step.this, str):
            steps.append(f".{step.this}")
        elif kind == "JSONPathSubscript" and isinstance(step.this, int):
            steps.append(f"[{step.this}]")
        elif kind != "JSONPathRoot":
            raise SqlError(f"{path.sql()} is not a plain path")
    return node.of("this").json("$" + "".join(steps))


def _in(node: SqlNode) -> Expression:
    values = node.nodes()
    if not values:
        raise SqlError("IN takes a list of values")
    return node.of("this").isin(*(one.plain() for one in values))


def _is(node: SqlNode) -> Expression:
    what = node.node("expression")
    if what.kind == "Null":
        return node.of("this").is_null()
    if what.kind != "Boolean":
        raise SqlError("IS takes NULL, TRUE or FALSE")
    return coalesce(node.of("this") == what.plain(), False)


def _like(node: SqlNode) -> Expression:
    made = node.of("this").like(node.literal("expression"))
    return ~made if node.take("negate") else made


def _same(left: Expression, right: Expression) -> Expression:
    return if_else(left.is_null() | right.is_null(), left.is_null() & right.is_null(), left == right)


def _regexp_extract(node: SqlNode) -> Expression:
    node.take("null_if_pos_overflow")
    return node.of("this").regexp_extract(spark_pattern(node.literal("expression")), node.literal("group", 1))


def _regexp_replace(node: SqlNode) -> Expression:
    pattern, replacement = spark_pattern(node.literal("expression")), node.literal("replacement")
    return node.of("this").regexp_replace(pattern, spark_replacement(pattern, replacement))


def _two(made: Callable[[Any, Any], Expression], *flags: str) -> Rule:
    def rule(node: SqlNode) -> Expression:
        node.take(*flags)
        return made(node.of("this"), node.of("expression"))

    return rule


def _one(made: Callable[[Expression], Expression]) -> Rule:
    return lambda node: made(node.of("this"))


def _with_literal(made: Callable[[Expression, Any], Expression], part: str = "expression") -> Rule:
    return lambda node: made(node.of("this"), node.literal(part))


def _several(made: Callable[..., Expression], *flags: str) -> Rule:
    def rule(node: SqlNode) -> Expression:
        node.take(*flags)
        return made(*([node.of("this")] if node.has("this") else []), *node.all_of())

    return rule


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Mod": operator.mod,
    "And": operator.and_, "Or": operator.or_, "EQ": operator.eq, "NEQ": operator.ne, "LT": operator.lt, "LTE": operator.le,
    "GT": operator.gt, "GTE": operator.ge,
}  # fmt: skip
_OF_ONE = ("abs", "floor", "ceil", "upper", "lower", "length", "explode")

RULES: dict[str, Rule] = {
    "Anonymous": _function,
    "Column": _column,
    "Dot": lambda node: node.of("this").field(node.take("expression").name),
    "Literal": _literal,
    "Boolean": lambda node: lit(bool(node.take("this"))),
    "Null": lambda node: lit(None),
    "Paren": _one(lambda one: one),
    **{name: _two(made) for name, made in _OPERATORS.items()},
    "Div": _two(operator.truediv, "safe", "typed"),
    "Neg": _negative,
    "NullSafeEQ": _two(_same),
    "Not": _one(lambda one: ~one),
    "In": _in,
    "Is": _is,
    "Between": lambda node: node.of("this").between(node.of("low"), node.of("high")),
    "Like": _like,
    "RegexpLike": lambda node: node.of("this").rlike(spark_pattern(node.literal("expression"))),
    "Case": _case,
    "If": lambda node: if_else(node.of("this"), node.of("true"), node.of("false")),
    "Coalesce": _several(coalesce),
    "Nullif": _two(lambda a, b: if_else(a == b, lit(None), a)),
    "Greatest": _several(greatest, "ignore_nulls"),
    "Least": _several(least, "ignore_nulls"),
    "Cast": _cast,
    "TryCast": _cast,
    **{name.title(): _one(operator.methodcaller(name)) for name in _OF_ONE},
    "Round": lambda node: node.of("this").round(node.literal("decimals", 0)),
    "Trim": _trim,
    "Substring": _substring,
    "Left": lambda node: node.of("this").substring(0, node.literal("expression")),
    "Concat": _several(concat, "safe"),
    "DPipe": _two(concat, "safe"),
    "Contains": _with_literal(Expression.contains),
    "StartsWith": _with_literal(Expression.starts_with),
    "EndsWith": _with_literal(Expression.ends_with),
    "Replace": lambda node: node.of("this").replace(node.literal("expression"), node.literal("replacement", "")),
    "RegexpExtract": _regexp_extract,
    "RegexpReplace": _regexp_replace,
    "JSONExtractScalar": _json,
    "TsOrDsToDate": _to_date,
    "StrToTime": lambda node: _parse_by_pattern(node, Expression.to_timestamp),
    "TimestampTrunc": lambda node: node.of("this").date_trunc(_unit(str(node.take("unit").name), _UNITS)),
    "DateTrunc": _truncated_date,
    "AtTimeZone": _with_literal(Expression.from_utc_timestamp, "zone"),
    "FromTimeZone": _with_literal(Expression.to_utc_timestamp, "zone"),
    "ConvertTimezone": _convert_timezone,
    "Extract": lambda node: _named_part(node, str(node.take("this").name), node.of("expression")),
    **{name.title(): _part(name) for name in ("year", "quarter", "month", "day", "hour", "minute", "second")},
    "DayOfWeek": _part("day_of_week"),
    "DayOfYear": _part("day_of_year"),
    "DayOfMonth": _part("day"),
    "WeekOfYear": _part("week"),
}
"""What a node of sqlglot's tree becomes, by its class."""

_FUNCTIONS: dict[str, Callable[..., Expression]] = {
    "bigint": lambda one: one.expression().cast("bigint"),
    "smallint": lambda one: one.expression().cast("smallint"),
    "tinyint": lambda one: one.expression().cast("tinyint"),
    "isnull": lambda one: one.expression().is_null(),
    "isnotnull": lambda one: one.expression().is_not_null(),
    "date_part": lambda part, one: _named_part(part, str(part.plain()), one.expression()),
    "btrim": lambda one, characters=None: one.expression().trim(" " if characters is None else characters.plain()),
}
_PARTS = {
    "year": "year", "quarter": "quarter", "month": "month", "mon": "month", "week": "week", "day": "day", "hour": "hour",
    "minute": "minute", "dayofweek": "day_of_week", "dow": "day_of_week", "doy": "day_of_year",
}  # fmt: skip
"""What `extract` gives, as `year` and its like do; a second has a fraction there."""
_UNITS: dict[str, str] = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
}  # fmt: skip
_OF_DATES = ("year", "quarter", "month", "week")

SQL_FUNCTIONS = (
    "abs", "cast", "ceil", "ceiling", "char_length", "character_length", "coalesce", "concat", "contains", "date", "date_part",
    "date_trunc", "day", "dayofmonth", "dayofweek", "dayofyear", "endswith", "explode", "extract", "floor", "get_json_object",
    "greatest", "hour", "if", "ifnull", "isnotnull", "isnull", "lcase", "least", "left", "len", "length", "lower", "minute",
    "mod", "month", "nullif", "nvl", "quarter", "regexp_extract", "regexp_like", "regexp_replace", "replace", "round",
    "second", "startswith", "substr", "substring", "to_date", "to_timestamp", "trim", "ltrim", "rtrim", "btrim", "trunc",
    "ucase", "upper", "weekofyear", "year", "bigint", "boolean", "double", "float", "int", "smallint", "string", "tinyint",
    "timestamp",
    "convert_timezone", "from_utc_timestamp", "to_utc_timestamp",
)  # fmt: skip
"""The functions that there are, by Spark's names; tests/steps compares each with Spark."""
