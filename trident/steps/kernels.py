"""Kernels of numbers and texts: what Arrow rounds, divides, compares, casts, finds or writes otherwise than Spark.

Each takes its operands, of which one at least is an array, then its options, and computes value by value only the few that
need it.
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.alignment import check_decimals, lossless_cast, read_in_spark, read_moments
from trident.arrow import arrow_type
from trident.operations.expression_types import digits_of, result_of_decimals
from trident.types import TYPES

Operands = Sequence[Any]
Kernel = Callable[..., Any]

_EXACT = Context(prec=90, rounding=ROUND_DOWN)
_ROUNDED = Context(prec=90, rounding=ROUND_HALF_UP)
_MANY = pa.decimal256(76, 37)
_EXACT_POWER = 1e22  # of ten, the largest that is a double


def by_value(made: Any, rows: Any, values: Any, function: Callable[[Any], Any]) -> Any:
    """Return what was made, with the rows of a mask computed from their values, one after the other."""
    if not pc.any(rows).as_py():
        return made
    return pc.replace_with_mask(made, rows, pa.array(list(map(function, values.filter(rows).to_pylist())), made.type))


def as_common_type(operands: Operands) -> list[Any]:
    """Convert numbers of several types to the type that holds them, and nulls of none; leave other values as they are."""
    types = [operand.type for operand in operands if not pa.types.is_null(operand.type)]
    operands = _with_typed_nulls(operands, types)
    decimals = [one for one in types if pa.types.is_decimal(one)]
    if len(set(types)) < 2 or not all(
        pa.types.is_integer(one) or pa.types.is_floating(one) or one in decimals for one in types
    ):
        return list(operands)
    if not decimals:
        return as_numbers(operands)
    if any(map(pa.types.is_floating, types)):
        return [as_float(operand, pa.float64()) for operand in operands]
    common = _common([*decimals, *(pa.decimal128(_DIGITS[one], 0) for one in types if one not in decimals)])
    return [pc.cast(as_decimal(operand), common) for operand in operands]


def _with_typed_nulls(operands: Operands, types: list[Any]) -> Operands:
    if not 0 < len(types) < len(operands):
        return operands
    return [one.cast(types[0]) if pa.types.is_null(one.type) else one for one in operands]


def _common(decimals: list[Any]) -> Any:
    whole, scale = (max(one) for one in zip(*((one.precision - one.scale, one.scale) for one in decimals), strict=True))
    return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else pa.decimal256(whole + scale, scale)


def as_numbers(operands: Operands) -> list[Any]:
    """Convert whole numbers to bigint, or all to double if one has a fraction; that rounds, as in Python."""
    whole = all(pa.types.is_integer(one.type) or pa.types.is_null(one.type) for one in operands)
    return [pc.cast(operand, pa.int64() if whole else pa.float64(), safe=False) for operand in operands]


def as_float(value: Any, type_: pa.DataType) -> Any:
    """Convert a number to the nearest float; Arrow itself misses it for some decimals."""
    return pc.cast(pc.cast(value, pa.string()) if pa.types.is_decimal(value.type) else value, type_, safe=False)


def as_decimal(value: Any, digits: int | None = None) -> Any:
    """Convert a whole number to a decimal with the digits of its type, or with so many."""
    if not pa.types.is_integer(value.type):
        return value
    found = pc.cast(value, pa.decimal128(20, 0))  # Arrow would need digits for every whole number of the type
    return pc.cast(found, pa.decimal128(digits or _DIGITS[value.type], 0))


def arithmetic(function: Callable[..., Any]) -> Kernel:
    """Return the kernel of `+`, `-`, `*` and the sign: exact, or an error."""
    return lambda *operands: function(*_of_one_kind(operands))


def _of_one_kind(operands: Operands) -> Operands:
    types = [operand.type for operand in operands]
    if not any(map(pa.types.is_decimal, types)):
        return as_numbers(operands)
    return as_common_type(operands) if any(map(pa.types.is_floating, types)) else operands


def quotient(*operands: Any) -> Any:
    """Divide doubles, or decimals, whose result has the digits that Spark gives it."""
    left, right = _of_one_kind(operands)
    if not pa.types.is_decimal(left.type):
        return pc.divide_checked(*(pc.cast(one, pa.float64(), safe=False) for one in (left, right)))
    type_ = arrow_type(result_of_decimals("/", [_ddl(left), _ddl(right)]))
    step = Decimal(1).scaleb(-type_.scale)
    return _of_decimals(left, right, type_, lambda a, b: _ROUNDED.quantize(_EXACT.divide(a, b), step))


def remainder(*operands: Any) -> Any:
    """The rest that has the sign of the dividend."""
    left, right = _of_one_kind(operands)
    if pa.types.is_decimal(left.type):
        type_ = arrow_type(result_of_decimals("%", [_ddl(left), _ddl(right)]))
        return _of_decimals(left, right, type_, _EXACT.remainder)
    if pa.types.is_integer(left.type):
        right = pc.if_else(pc.equal(right, -1), 1, right)  # the least number by -1 overflows
        return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))
    times = pc.divide_checked(left, right)  # finds a zero
    with np.errstate(invalid="ignore"):
        found = np.fmod(*(np.asarray(pc.fill_null(one, 1.0)) for one in _columns(left, right)))
    return pc.if_else(pc.is_valid(times), pa.array(found), None)


def _of_decimals(left: Any, right: Any, type_: pa.DataType, function: Callable[[Decimal, Decimal], Decimal]) -> Any:
    columns = _columns(left, right)
    if pc.any(pc.and_(pc.is_valid(columns[0]), pc.equal(columns[1], pa.scalar(Decimal(0), columns[1].type)))).as_py():
        raise pa.ArrowInvalid("divide by zero")
    rows = zip(*(one.to_pylist() for one in columns), strict=True)
    return pa.array([None if None in row else function(*row) for row in rows], type_)


def _columns(*operands: Any) -> list[Any]:
    """Return operands, of which one at least is an array, all as arrays."""
    count = next(len(one) for one in operands if not isinstance(one, pa.Scalar))
    return [pa.repeat(one, count) if isinstance(one, pa.Scalar) else one for one in operands]


def round_number(value: Any, digits: int) -> Any:
    """Round as the decimal text of the number says, halves away from zero."""
    if pa.types.is_integer(value.type):
        return value if digits >= 0 else pc.cast(_round_half_away(pc.cast(value, pa.int64()), digits), value.type)
    if pa.types.is_decimal(value.type):
        precision, scale = value.type.precision, value.type.scale
        kept, whole = min(scale, max(digits, 0)), precision - scale + 1
        return _within(value, lambda wide: _round_half_away(wide, min(digits, scale)), max(whole, 1 - digits), kept)
    double, power = pc.cast(value, pa.float64()), 10.0 ** abs(digits)
    size = pc.multiply(pc.abs(double), power if digits >= 0 else 10.0**digits)
    off = pc.abs(pc.subtract(pc.subtract(size, pc.floor(size)), 0.5))
    doubtful = pc.or_(pc.less(off, pc.multiply(size, 1e-15)), pc.greater(size, 1e15 if power <= _EXACT_POWER else 0.0))
    doubtful = pc.fill_null(pc.and_(doubtful, pc.and_(pc.is_finite(double), pc.less(size, 1e17))), False)
    whole = pc.floor(pc.add(size, 0.5))
    near = pc.divide(whole, power) if digits >= 0 else pc.multiply(whole, power)  # pc.round misses the nearest double
    near = pc.if_else(pc.less(double, 0.0), pc.negate(near), near)
    made = pc.add(pc.if_else(pc.less(size, 1e17), near, double), 0.0)  # -0.0 becomes 0.0
    step = Decimal(1).scaleb(-digits)
    made = by_value(made, doubtful, double, lambda one: float(_ROUNDED.quantize(Decimal(repr(one)), step)) + 0.0)
    return pc.cast(made, value.type)


def _round_half_away(value: Any, digits: int) -> Any:
    return pc.round(value, digits, round_mode="half_towards_infinity")


def to_whole(function: Callable[[Any], Any]) -> Kernel:
    """Return the kernel of `floor` or `ceil`."""

    def kernel(value: Any) -> Any:
        if pa.types.is_integer(value.type):
            return pc.cast(value, pa.int64())
        if pa.types.is_decimal(value.type):
            return _within(value, function, value.type.precision - value.type.scale + 1, 0)
        return pc.cast(function(value), pa.int64())

    return kernel


def _within(value: Any, function: Callable[[Any], Any], whole: int, scale: int) -> Any:
    """Apply to decimals with a digit more, and give so many digits."""
    made = function(
        pc.cast(value, pa.decimal256(max(value.type.precision, whole + value.type.scale) + 1, value.type.scale))
    )
    return pc.cast(made, pa.decimal128(min(38, whole + scale), scale))


def decimals_of_floats(value: Any, type_: pa.DataType) -> Any:
    """Round floats to decimals, as their shortest text as doubles has them."""
    value = pc.cast(value, pa.float64())
    try:
        wide = pc.cast(pc.cast(value, pa.string()), _MANY)
    except pa.ArrowInvalid:  # 1e-50, or too large
        return pa.array([_as_decimal(one, type_) for one in pc.cast(value, pa.string()).to_pylist()], type_)
    return pc.cast(_round_half_away(wide, type_.scale), type_)


def _as_decimal(text: str | None, type_: pa.DataType) -> Decimal | None:
    try:
        return None if text is None else _ROUNDED.quantize(Decimal(text), Decimal(1).scaleb(-type_.scale))
    except ArithmeticError:
        raise pa.ArrowInvalid(f"{text} does not fit {type_}") from None


def comparison(function: str) -> Kernel:
    """Return the kernel of a comparison in which NaN equals NaN and is greater than all else, as in keys."""
    compare, with_nan = _COMPARISONS[function]

    def kernel(*operands: Any) -> Any:
        left, right = as_common_type(operands)
        made = compare(left, right)
        if not pa.types.is_floating(left.type) or not any(pc.any(pc.is_nan(one)).as_py() for one in (left, right)):
            return made
        return with_nan(made, pc.is_nan(left), pc.is_nan(right))

    return kernel


_COMPARISONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any, Any], Any]]] = {
    "equal": (pc.equal, lambda made, left, right: pc.or_(made, pc.and_(left, right))),
    "not_equal": (pc.not_equal, lambda made, left, right: pc.and_not(made, pc.and_(left, right))),
    "less": (pc.less, lambda made, left, right: pc.or_(made, pc.and_not(right, left))),
    "less_equal": (pc.less_equal, lambda made, left, right: pc.or_(made, right)),
    "greater": (pc.greater, lambda made, left, right: pc.or_(made, pc.and_not(left, right))),
    "greater_equal": (pc.greater_equal, lambda made, left, right: pc.or_(made, left)),
}


def extreme(function: str) -> Kernel:
    """Return the kernel of `greatest` or `least`, which skip nulls; of equal values the first is given."""
    precedes = comparison(function)

    def kernel(*operands: Any) -> Any:
        best, *others = as_common_type(operands)
        for other in others:
            found = pc.or_(pc.fill_null(precedes(other, best), False), pc.is_null(best))
            best = pc.if_else(found, other, best)
        return best

    return kernel


def is_in(value: Any, *options: Any) -> Any:
    """Whether a value is one of some; None if it is null. Beside a double all are compared as doubles, as with `==`."""
    if any(isinstance(option, float) for option in options) and not pa.types.is_floating(value.type):
        value = as_float(value, pa.float64())
    wanted = [one for one in (_equal(option, value.type) for option in options) if one is not None]
    if pa.types.is_floating(value.type):
        value = pc.add(value, pa.scalar(0.0, value.type))  # -0.0 is 0.0
    return pc.if_else(pc.is_valid(value), pc.is_in(value, value_set=pa.array(wanted, value.type)), None)


def _equal(value: Any, type_: pa.DataType) -> Any:
    """Return the value of a type that equals another; None if there is none."""
    if pa.types.is_floating(type_):
        value = float(value) + 0.0
    elif pa.types.is_integer(type_) and isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    try:
        made = pa.scalar(value, type_).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    return made if made == value or value != value else None


def _ddl(value: Any) -> str:
    return f"decimal({value.type.precision},{value.type.scale})"


_DIGITS = {row.arrow: digits_of(row.name)[0] for row in TYPES.values() if row.python is int}


_PADDED = r"^[\x00-\x20]*(?:\+([0-9.iInN][^\x00-\x20]*)|([^\x00-\x20+][^\x00-\x20]*))[\x00-\x20]*$"
"""A number with a sign or with blanks around it, which Spark reads too."""


def cast(value: Any, type_: pa.DataType, *session: str) -> Any:
    """Convert an array to a type; `session`: the zone of a session of Spark, UTC, in which texts are read as moments."""
    if value.type == type_:
        return value
    if pa.types.is_string(type_):
        return _text(value)
    if pa.types.is_string(value.type):
        if session and pa.types.is_temporal(type_):
            return read_in_spark(value, type_, "cast")
        return _of_text(value, type_)
    if pa.types.is_date(type_):
        return pc.cast(without_zone(value), type_)
    if pa.types.is_decimal(value.type) and pa.types.is_floating(type_):
        return as_float(value, type_)
    if pa.types.is_decimal(type_) and pa.types.is_floating(value.type):
        return decimals_of_floats(value, type_)
    if pa.types.is_decimal(type_):
        return pc.cast(as_decimal(value), type_)
    try:
        return pc.cast(value, type_)
    except pa.ArrowInvalid:
        return lossless_cast(value, type_)  # Arrow refuses large numbers that are exact


def without_zone(value: Any) -> Any:
    """Return moments as what clocks show in UTC: else Arrow asks for a zone database of the machine, which may have none."""
    return pc.cast(value, pa.timestamp("us")) if pa.types.is_timestamp(value.type) else value


def _of_text(text: Any, type_: pa.DataType) -> Any:
    if pa.types.is_temporal(type_):
        return read_moments(text, type_, "cast")
    if pa.types.is_boolean(type_) or pa.types.is_binary(type_):
        return pc.cast(text, type_)
    try:
        made = pc.cast(text, type_)
    except pa.ArrowInvalid:
        made = pc.cast(pc.replace_substring_regex(text, _PADDED, r"\1\2"), type_)
    if pa.types.is_decimal(type_):
        check_decimals(text, made, "cast")
    # What Arrow reads as a number, and Spark does not: `0x1F`, `nan(1)`, `-nan`.
    if pa.types.is_integer(made.type):
        strange = [text.filter(pc.match_substring(text, mark)) for mark in "xX"]
    else:
        named = text.filter(pc.is_nan(made)) if pa.types.is_floating(made.type) else text.slice(0, 0)
        strange = [named.filter(pc.not_equal(pc.utf8_lower(pc.utf8_trim_whitespace(named)), "nan"))]
    for one in strange:
        if len(one):
            raise pa.ArrowInvalid(f"Failed to parse string: {one[0].as_py()!r} as {made.type}")
    return made


def _text(value: Any) -> Any:
    type_ = value.type
    if pa.types.is_timestamp(type_):
        return pc.utf8_rtrim(pc.utf8_rtrim(pc.cast(without_zone(value), pa.string()), "0"), ".")
    text = pc.cast(value, pa.string())
    if pa.types.is_decimal(type_):
        return by_value(text, pc.match_substring(text, "E"), value, lambda one: format(one, "f"))
    if not pa.types.is_floating(type_):
        return text
    size = pc.abs(value)
    plain = pc.or_(pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7)))
    pointed = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, ".0", ""))
    written = partial(text_of_float, exact=np.float32 if pa.types.is_float32(type_) else float)
    return by_value(pointed, pc.fill_null(pc.invert(plain), False), text, written)


def text_of_float(text: str, exact: Callable[[str], Any] = float) -> str:
    """Return the text that Java writes for a float, which is given as Python or Arrow writes it: `1.0E10`, `Infinity`."""
    if text.endswith(("inf", "nan")):
        return "NaN" if text.endswith("nan") else text.replace("inf", "Infinity")
    number = Decimal(text)
    sign, digits, _ = number.as_tuple()
    power, shown = number.adjusted(), "".join(map(str, digits)).rstrip("0")
    if not number or -3 <= power < 7:
        plain = format(number, "f")
        return plain if "." in plain else f"{plain}.0"
    if len(shown) == 1:  # Java writes two digits, the nearest: 4.9E-324
        shown, _, exponent = f"{abs(exact(text)):.1e}".partition("e")
        shown, power = shown.replace(".", ""), int(exponent)
    return f"{'-' * sign}{shown[0]}.{shown[1:]}E{power}"


def in_case(simple: Callable[[Any], Any], whole: Callable[[str], str]) -> Kernel:
    """Return the kernel of `upper` or `lower`: Python's where not all is ASCII, as a character may become several."""
    return lambda text: by_value(simple(text), pc.fill_null(pc.invert(pc.string_is_ascii(text)), False), text, whole)


upper = in_case(pc.utf8_upper, str.upper)
lower = in_case(pc.utf8_lower, str.lower)


def trim(text: Any, characters: str, side: str) -> Any:
    return {"both": pc.utf8_trim, "left": pc.utf8_ltrim, "right": pc.utf8_rtrim}[side](text, characters)


def replace(text: Any, part: str, replacement: str) -> Any:
    """Replace each occurrence of a text; an empty one occurs nowhere."""
    return pc.replace_substring(text, part, replacement) if part else text


def regexp_extract(text: Any, pattern: str, group: int) -> Any:
    found = pc.struct_field(pc.extract_regex(text, f"(?P<whole>{_named_groups(pattern)})"), [group])
    return pc.if_else(pc.is_valid(text), pc.fill_null(found, ""), None)


def _named_groups(pattern: str) -> str:
    """Return a regular expression with a name for each of its groups, which Arrow asks for."""
    numbers = itertools.count(1)

    def name_group(part: re.Match[str]) -> str:
        return f"(?P<group{next(numbers)}>" if part[0] == "(" else part[0]

    return _GROUPS.sub(name_group, pattern)


_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|\(", re.DOTALL)
"""What is escaped, a class of characters, and both kinds of parentheses that open."""


def json_path(texts: Any, *path: Any) -> Any:
    return pa.array([_at_path(text, path) for text in texts.to_pylist()], pa.string())


def _at_path(text: str | None, path: Sequence[Any]) -> str | None:
    try:
        value = None if text is None else _JSON.decode(text)
        for step in path:
            value = value[step] if isinstance(value, dict if isinstance(step, str) else list) else None
    except (ValueError, KeyError, IndexError):
        return None
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(name)}:{_json(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return text_of_float(repr(value)) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_JSON = json.JSONDecoder(  # of equal names the first wins
    object_pairs_hook=lambda pairs: dict(reversed(pairs)) if len(dict(pairs)) < len(pairs) else dict(pairs),
    parse_constant=_refuse,
    strict=False,
)
