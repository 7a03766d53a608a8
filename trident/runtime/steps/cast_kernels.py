"""The kernel of casts: texts are read and written as Spark does, and a value that does not fit is an error."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.moment_columns import read_in_spark, read_moments
from trident.runtime.steps.number_kernels import as_decimal, as_float, by_value, decimals_of_floats


def cast(value: Any, type_: pa.DataType, *session: str) -> Any:
    """Convert an array to a type; `session`: the zone of a session of Spark, UTC, in which texts are read as moments."""
    if value.type == type_:
        return value
    if pa.types.is_string(type_):
        return _text(value)
    if pa.types.is_string(value.type):
        return (
            read_in_spark(value, type_, "cast") if session and pa.types.is_temporal(type_) else _of_text(value, type_)
        )
    if pa.types.is_date(type_):
        return pc.cast(without_zone(value), type_)
    if pa.types.is_decimal(value.type) and pa.types.is_floating(type_):
        return as_float(value, type_)
    if pa.types.is_decimal(type_) and pa.types.is_floating(value.type):
        return decimals_of_floats(value, type_)
    return pc.cast(as_decimal(value) if pa.types.is_decimal(type_) else value, type_)


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
    _check_read(text, made)
    return made


def _check_read(text: Any, made: Any) -> None:
    """Refuse what Arrow reads as a number, and Spark does not: `0x1F`, `nan(1)`, `-nan`."""
    if pa.types.is_integer(made.type):
        strange = [text.filter(pc.match_substring(text, mark)) for mark in "xX"]
    else:
        named = text.filter(pc.is_nan(made)) if pa.types.is_floating(made.type) else text.slice(0, 0)
        strange = [named.filter(pc.not_equal(pc.utf8_lower(pc.utf8_trim_whitespace(named)), "nan"))]
    for one in strange:
        if len(one):
            raise pa.ArrowInvalid(f"Failed to parse string: {one[0].as_py()!r} as {made.type}")


_PADDED = r"^[\x00-\x20]*(?:\+([0-9.iInN][^\x00-\x20]*)|([^\x00-\x20+][^\x00-\x20]*))[\x00-\x20]*$"
"""A number with a sign or with blanks around it, which Spark reads too."""


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
    return by_value(pointed, pc.fill_null(pc.invert(plain), False), text, text_of_float)


def text_of_float(text: str) -> str:
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
        shown, _, exponent = f"{abs(float(text)):.1e}".partition("e")
        shown, power = shown.replace(".", ""), int(exponent)
    return f"{'-' * sign}{shown[0]}.{shown[1:]}E{power}"
