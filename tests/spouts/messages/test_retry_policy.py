"""When a message comes again, and when never: pauses, limits, and the order of what waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.messages.deliveries import RetryPolicy
from trident.errors import ConfigError


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    policy = RetryPolicy(first_pause_s=0.5, longest_pause_s=3.0)
    assert [policy.pause_s(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.integers(1, 10**9), st.floats(0.001, 900), st.floats(0.001, 900))
def test_a_pause_is_never_outside_of_its_limits(failures: int, one: float, other: float) -> None:
    policy = RetryPolicy(first_pause_s=min(one, other), longest_pause_s=max(one, other))
    assert min(one, other) <= policy.pause_s(failures) <= policy.pause_s(failures + 1) <= max(one, other)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (RetryPolicy(), None),
        (RetryPolicy(dead_letters="d"), 10),
        (RetryPolicy(4, dead_letters="d"), 4),
        (RetryPolicy(1), 1),
    ],
)
def test_nothing_is_given_up_without_a_limit_or_a_place_for_it(policy: RetryPolicy, limit: int | None) -> None:
    assert policy.limit == limit
    assert policy.gives_up(10**9) is (limit is not None)
    if limit is not None:
        assert not policy.gives_up(limit - 1)
        assert policy.gives_up(limit)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_failures": 0}, "max_failures=0: give a whole number of at least 1"),
        ({"max_failures": 1.5}, "max_failures=1.5"),
        ({"first_pause_s": 0}, "first_pause_s=0"),
        ({"first_pause_s": 9, "longest_pause_s": 8}, "the longest pause no shorter than the first"),
        ({"dead_letters": ""}, "dead_letters='': give the name"),
    ],
)
def test_an_impossible_policy_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RetryPolicy(**options)
