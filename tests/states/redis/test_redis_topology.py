"""A whole topology on the Redis state: restarted, killed at no certain place, and exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis

from spouts import FixedBatchSpout
from states.redis import RedisState
from tests.harness.servers import Server, start_redis
from trident import TridentTopology
from trident.errors import StateMismatchError
from trident.operations import Count, Split

pytestmark = pytest.mark.server

LINES = ["the cow jumped over the moon", "the man went to the store", "four score and seven", "how many apples"]


def start(url: str, lines: list[str], log_dir: Path, **options: Any) -> Any:
    topology = TridentTopology("words")
    spout = FixedBatchSpout("line: string", 1, *[(line,) for line in lines])
    words = topology.new_stream("lines", spout).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(RedisState.opaque(url, num_partitions=2), Count(), "count")
    words.persistent_aggregate(RedisState.opaque(url), Count(), "total")
    return topology.start(engine="in_process", log_dir=str(log_dir), **options)


def counted(running: Any, lines: list[str]) -> None:
    running.process_all_available()
    expected = Counter(word for line in lines for word in line.split())
    found = running.state("count").multi_get([*expected, "absent"])
    assert dict(zip([*expected, "absent"], found, strict=True)) == {**expected, "absent": None}
    assert running.state("total").get() == sum(expected.values())


def test_a_word_count_goes_on_after_restarts_of_the_topology_and_of_redis(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    server = start_redis(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    try:
        url = f"redis://{server.address}"
        for upto in (2, 3, 4):
            with start(url, LINES[:upto], tmp_path / "log") as running:
                counted(running, LINES[:upto])
            server.kill()
            server.start()
        with redis.Redis(port=server.port) as client:
            assert client.hlen("words/count:sentinels") == 2
            assert client.exists("words/total:\x01\x91\xa8$GLOBAL$".encode("latin-1")) == 1
    finally:
        server.stop()


def test_a_redis_that_lost_its_data_is_refused_and_can_start_anew(tmp_path: Path, redis_server: Server) -> None:
    url = f"redis://{redis_server.address}"
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        with start(url, LINES, tmp_path / "log") as running:
            counted(running, LINES)
        client.flushall()
        with pytest.raises(StateMismatchError, match="the store has no commit at all"):
            start(url, LINES, tmp_path / "log")
        with start(url, [*LINES, "the cow"], tmp_path / "log", state_recovery="discard_totals") as running:
            running.process_all_available()
            assert running.state("count").multi_get(["the", "cow", "moon"]) == [1, 1, None]
