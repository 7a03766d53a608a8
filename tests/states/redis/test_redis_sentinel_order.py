"""The kit's table of cases for the order of sentinels, put to the Lua of the Redis state on a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from states.redis import RedisBackingMap, RedisOptions
from tests.harness.servers import Server
from tests.storekit.sentinel_cases import SENTINEL_CASES, SentinelCase
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel

pytestmark = pytest.mark.server

LAYOUTS: tuple[dict[str, Any], ...] = ({}, {"hash_key": "tally"}, {"ttl_s": 90_000, "hash_key": "tally"})


def writer(server: Server, layout: dict[str, Any]) -> RedisBackingMap:
    return RedisBackingMap(RedisOptions(f"redis://{server.address}", **layout), StateConf("contract", "counts"))


def fields(sentinel: Sentinel | None) -> tuple[Any, ...] | None:
    """All five fields: `==` of sentinels compares the commit alone."""
    return None if sentinel is None else tuple(sentinel)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["strings", "hash", "hash that expires"])
@pytest.mark.parametrize("case", SENTINEL_CASES, ids=[case.meaning for case in SENTINEL_CASES])
def test_a_move_keeps_the_order_of_sentinels(redis_server: Server, case: SentinelCase, layout: dict[str, Any]) -> None:
    own, other = writer(redis_server, layout), writer(redis_server, layout)

    def put(sentinel: Sentinel | None) -> None:
        with redis.Redis(port=redis_server.port) as raw:
            raw.flushall()
        other.read_sentinel()
        if sentinel is not None:
            other.move_sentinel(sentinel, force=True)

    put(case.seen)
    assert fields(own.read_sentinel()) == fields(case.seen)
    put(case.found)
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
