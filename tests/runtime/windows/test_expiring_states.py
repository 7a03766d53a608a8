"""A window or a join over time is kept only in a state whose values do not expire before they are needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memcached import MemcachedState
from states.redis import RedisState
from trident import Stream, TopologyError, TridentTopology
from trident.operations import Count, SessionWindow, SlidingDurationWindow, TumblingCountWindow, TumblingDurationWindow
from trident.state import StateSpec

S = timedelta(seconds=1)
DAY = 86_400
WEEK = TumblingDurationWindow.of(timedelta(days=7))


def expiring(ttl_s: int) -> StateSpec:
    return RedisState.opaque("redis://nowhere", ttl_s=ttl_s, allow_short_ttl=True)


def a_stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatchSpout("k: string, at: timestamp", 1, ("a", None)))


def windowed(config: Any) -> Callable[[StateSpec], object]:
    return lambda state: a_stream().group_by("k").window(config, state, Count(), "n")


def joined(**options: Any) -> Callable[[StateSpec], object]:
    def declare(state: StateSpec) -> object:
        topology = TridentTopology("t")
        left, right = (
            topology.new_stream(name, FixedBatchSpout("k: string, at: timestamp", 1, ("a", None))) for name in "lr"
        )
        return topology.join_within(left, "k", right, "k", "k, l, r", times="at", state=state, **options)

    return declare


@pytest.mark.parametrize(
    ("declare", "needs"),
    [
        (windowed(TumblingDurationWindow.of(60 * S)), 60),
        (windowed(SlidingDurationWindow.of(60 * S, S)), 60),
        (windowed(SlidingDurationWindow.of(60.001 * S, S / 1000)), 61),
        (windowed(WEEK), 8 * DAY),
        (windowed(WEEK.by_event_time("at", S, 2 * S)), 8 * DAY + 3),
        (windowed(TumblingDurationWindow.of(60 * S).by_event_time("at", 5 * S, 7 * S)), 72),
        (windowed(SessionWindow.of(60 * S, "at", 5 * S)), 65),
        (joined(within=60 * S), 60),
        (joined(within=(S, 60 * S), delay=(50 * S, 5 * S)), 65),
        (joined(within=(-60 * S, S), delay=(5 * S, 50 * S)), 65),
        (joined(within=timedelta(days=7)), 8 * DAY),
    ],
)
def test_a_state_that_expires_before_a_window_or_join_is_complete_is_refused(
    declare: Callable[[StateSpec], object], needs: int
) -> None:
    with pytest.raises(TopologyError, match=rf"expire {needs - 1} seconds after they were written \(ttl_s\).* {needs}"):
        declare(expiring(needs - 1))
    with pytest.raises(TopologyError, match="whose values expire 1 seconds after"):
        declare(expiring(1))
    declare(expiring(needs))
    declare(RedisState.opaque("redis://nowhere"))


@pytest.mark.parametrize("ttl_s", [1, DAY, 20 * 365 * DAY])
def test_a_window_by_count_is_kept_where_nothing_expires(ttl_s: int) -> None:
    with pytest.raises(
        TopologyError, match=r"state 'n-window', whose values expire .* however long that takes: leave tt"
    ):
        windowed(TumblingCountWindow.of(3))(expiring(ttl_s))


def test_a_cache_in_front_may_expire_and_what_is_behind_it_may_not() -> None:
    declare = windowed(WEEK)
    declare(MemcachedState.cache_for(RedisState.opaque("redis://nowhere"), "nowhere", ttl_s=DAY))
    with pytest.raises(TopologyError, match="expire 86400 seconds after"):
        declare(MemcachedState.cache_for(RedisState.opaque("redis://nowhere", ttl_s=DAY), "nowhere"))
