"""The table of cases for the order of sentinels in every bucket of a Redis cluster; tests/stores puts it to one server."""

from __future__ import annotations

from typing import Any

import pytest

from states.redis import RedisBackingMap, RedisOptions
from tests.states.redis.redis_cluster import Cluster
from tests.storekit.sentinel_cases import SENTINEL_CASES, SentinelCase
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel

pytestmark = pytest.mark.server

cases = pytest.mark.parametrize("case", SENTINEL_CASES, ids=[case.meaning for case in SENTINEL_CASES])


@pytest.mark.sample(3)
@cases
def test_the_copies_in_a_cluster_keep_the_order(cluster: Cluster, case: SentinelCase) -> None:
    check(case, RedisOptions(cluster.url))


def check(case: SentinelCase, options: RedisOptions) -> None:
    conf = StateConf("contract", "counts")
    own, other = RedisBackingMap(options, conf), RedisBackingMap(options, conf)
    put(other, case.seen)
    assert fields(own.read_sentinel()) == fields(case.seen)
    put(other, case.found)
    if case.error is None:
        own.move_sentinel(case.own, case.force)
        own.multi_put([("the",)], [b"1"])
        assert fields(other.read_sentinel()) == fields(case.own)
    else:
        with pytest.raises(case.error, match="partition 0"):
            own.move_sentinel(case.own, case.force)
        assert fields(other.read_sentinel()) == fields(case.found)
    for each in (own, other):
        each.close()


def put(backing: RedisBackingMap, sentinel: Sentinel | None) -> None:
    backing.reset()
    if sentinel is not None:
        backing.move_sentinel(sentinel, force=True)


def fields(sentinel: Sentinel | None) -> tuple[Any, ...] | None:
    """All six fields: `==` of sentinels compares the commit alone."""
    return None if sentinel is None else tuple(sentinel)
