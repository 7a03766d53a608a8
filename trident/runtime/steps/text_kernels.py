"""Kernels of texts: regular expressions, JSON, and what Arrow does otherwise than Spark."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.runtime.steps.cast_kernels import text_of_float
from trident.runtime.steps.number_kernels import Kernel, Operands, Options, by_value


def in_case(simple: Callable[[Any], Any], whole: Callable[[str], str]) -> Kernel:
    """Return the kernel of `upper` or `lower`: Python's where not all is ASCII, as a character may become several."""

    def kernel(operands: Operands, options: Options) -> Any:
        (text,) = operands
        return by_value(simple(text), pc.fill_null(pc.invert(pc.string_is_ascii(text)), False), text, whole)

    return kernel


upper = in_case(pc.utf8_upper, str.upper)
lower = in_case(pc.utf8_lower, str.lower)


def trim(operands: Operands, options: Options) -> Any:
    """Cut characters off the ends."""
    (text,), (characters, side) = operands, options
    return {"both": pc.utf8_trim, "left": pc.utf8_ltrim, "right": pc.utf8_rtrim}[side](text, characters)


def replace(operands: Operands, options: Options) -> Any:
    """Replace each occurrence of a text; an empty one occurs nowhere."""
    return pc.replace_substring(operands[0], *options) if options[0] else operands[0]


def regexp_extract(operands: Operands, options: Options) -> Any:
    """Give what a group has found."""
    (text,), (pattern, group) = operands, options
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


def json_path(operands: Operands, options: Options) -> Any:
    """Give what is at a path of a JSON text."""
    return pa.array([_at_path(text, options) for text in operands[0].to_pylist()], pa.string())


def _at_path(text: str | None, path: Options) -> str | None:
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


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs)) if len(dict(pairs)) < len(pairs) else dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_JSON = json.JSONDecoder(object_pairs_hook=_first_wins, parse_constant=_refuse, strict=False)
