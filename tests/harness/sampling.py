"""Which tests are long: those that work for seconds, need luck, or show again, with other values, what others show.

A test has the mark `long`, or `sample(n)`: then all of its cases but n have it. The n are chosen so that as many values
of its parameters as possible occur among them. `make full` runs the long tests too.
"""

from __future__ import annotations

from collections import defaultdict

import pytest


def mark(items: list[pytest.Item]) -> None:
    """Mark as long the cases of each test with `sample(n)` that are not among its n."""
    cases: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sample"):
            if not hasattr(item, "callspec"):
                raise pytest.UsageError(f"{item.nodeid} is one case, of which there is no sample")
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        sample = same[0].get_closest_marker("sample")
        assert sample is not None
        first = chosen([_values(item) for item in same], *sample.args)
        for number, item in enumerate(same):
            if number not in first:
                item.add_marker("long")


def _values(item: pytest.Function) -> dict[str, int]:
    """Return which value each parameter has; where several are combined, cases share the objects, not pytest's numbers."""
    return {name: id(value) for name, value in item.callspec.params.items()}


def chosen(cases: list[dict[str, int]], n: int) -> set[int]:
    """Return the numbers of n cases, each of which adds as many values of parameters as it can."""
    seen: set[tuple[str, int]] = set()
    left = dict(enumerate(cases))
    while left and len(cases) - len(left) < n:
        best = max(left, key=lambda number: len(left[number].items() - seen))
        seen |= left.pop(best).items()
    return set(range(len(cases))) - set(left)
