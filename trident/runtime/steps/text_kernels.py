"""Kernels of texts: casts from and to them, regular expressions, JSON, and what Arrow does otherwise than Spark.

Texts are read and written as Spark does, and a value that does not fit is an error.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.moment_columns import read_in_spark, read_moments
from trident.runtime.steps.number_kernels import Kernel, as_decimal, as_float, by_value, decimals_of_floats

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


def in_case(simple: Callable[[Any], Any], whole: Callable[[str], str]) -> Kernel:
    """Return the kernel of `upper` or `lower`: Python's where not all is ASCII, as a character may become several."""
    return lambda text: by_value(simple(text), pc.fill_null(pc.invert(pc.string_is_ascii(text)), False), text, whole)


upper = in_case(pc.utf8_upper, str.upper)
lower = in_case(pc.utf8_lower, str.lower)


def trim(text: Any, characters: str, side: str) -> Any:
    """Cut characters off the ends."""
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

    def named(part: re.Match[str]) -> str:
        return f"(?P<group{next(numbers)}>" if part[0] == "(" else part[0]

    return _GROUPS.sub(named, pattern)


_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|\(", re.DOTALL)
"""What is escaped, a class of characters, and both kinds of parentheses that open."""


# ---- JSON ---------------------------------------------------------------------------------------------------------------


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
