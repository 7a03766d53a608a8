"""What two runs have left, compared: floats up to rounding, because a sum of them depends on its order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 5
_LONGEST = 120
_ROUNDING = 1e-9


Found = Mapping[str, Mapping[Any, Any]]
"""What is in each place: by key, the value."""


def differences(wanted: Found, found: Found, said: tuple[str, str] = ("expected", "found")) -> list[str]:
    """Return a line for each place that differs, with some of its keys; `said` stands before a value of each."""
    lines: list[str] = []
    for place in {**wanted, **found}:
        wrong = list(_wrong(wanted.get(place, {}), found.get(place, {}), *said))
        if wrong:
            more = f", and {len(wrong) - _SHOWN} keys more" if len(wrong) > _SHOWN else ""
            lines.append(f"{place}: {'; '.join(wrong[:_SHOWN])}{more}")
    return lines


def _wrong(expected: Mapping[Any, Any], found: Mapping[Any, Any], one: str, other: str) -> Iterator[str]:
    for key in {**expected, **found}:
        if key not in found or key not in expected or not is_same(expected[key], found[key]):
            left, right = (_short(each[key]) if key in each else "nothing" for each in (expected, found))
            yield f"{_of(key)}{one} {left}, {other} {right}"


def _of(key: Any) -> str:
    return f"{key!r}: " if key != () else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def is_same(left: Any, right: Any) -> bool:
    """Whether two values are equal, floats in them up to rounding; NaN is NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return (left != left and right != right) or math.isclose(left, right, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same(one, right[key]) for key, one in left.items())
    if isinstance(left, Sequence) and isinstance(right, Sequence) and not isinstance(left, (str, bytes)):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right)
