"""From bolts over a Redis stream into a Trident topology."""

from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from spouts import RedisStreamBolt, TransactionalRedisStreamSpout
from states.memory import MemoryMapState
from tests.harness.servers import Server
from tests.harness.topology_runs import run_all
from trident import TridentTopology
from trident.errors import ConfigError
from trident.operations import Count
from trident.storm import StormTopology, TopologyBuilder
from trident.storm.testing import MockedSpout, complete_topology

WORDS = ["the", "cow", "the", "moon", "the"]


def writing(bolt: Any) -> StormTopology:
    builder = TopologyBuilder()
    builder.set_spout("words", MockedSpout("word: string, n: bigint, ok: boolean"))
    builder.set_bolt("write", bolt, 2).shuffle_grouping("words")
    return builder.create_topology()


def test_a_trident_stream_goes_on_over_the_queue_of_a_bolt_topology(redis_server: Server, tmp_path: Path) -> None:
    url, stream = f"redis://127.0.0.1:{redis_server.port}/0", f"words-{uuid4().hex}"
    rows = [[word, at, at % 2 == 0] for at, word in enumerate(WORDS)]
    done = complete_topology(writing(RedisStreamBolt(url, stream, "word, n, ok")), {"words": rows})
    assert (done.acked["words"], done.errors) == ([0, 1, 2, 3, 4], ())

    topology = TridentTopology("counting")
    read = topology.new_stream(
        "words", TransactionalRedisStreamSpout(url, stream, "word: string, n: bigint, ok: boolean")
    )
    read.group_by("word", "ok").persistent_aggregate(MemoryMapState(), Count(), "count")
    running = run_all(topology, "in_process", log_dir=str(tmp_path))
    found = {tuple(row[:2]): row[2] for row in running.state("count").get_tuples()}
    assert found == Counter((word, at % 2 == 0) for at, word in enumerate(WORDS))


def test_nulls_are_left_out_and_the_stream_is_trimmed(redis_server: Server) -> None:
    url, stream = f"redis://127.0.0.1:{redis_server.port}/0", f"words-{uuid4().hex}"
    rows = [[None, at, None] for at in range(500)]
    done = complete_topology(writing(RedisStreamBolt(url, stream, "word, n", max_entries=10)), {"words": rows})
    assert len(done.acked["words"]) == 500
    with redis.Redis(port=redis_server.port) as client:
        assert client.xlen(stream) < 400  # Redis trims whole nodes of its list
        assert client.xrevrange(stream, count=1)[0][1].keys() == {b"n"}


def test_a_key_that_is_no_stream_is_refused(redis_server: Server) -> None:
    name = f"text-{uuid4().hex}"
    with redis.Redis(port=redis_server.port) as client:
        client.set(name, "x")
    bolt = RedisStreamBolt(f"redis://127.0.0.1:{redis_server.port}/0", name, "word")
    with pytest.raises(Exception, match="prepare") as caught:
        complete_topology(writing(bolt), {"words": [["a", 1, True]]})
    assert "is a string and not a stream" in str(caught.value.__cause__)


@pytest.mark.parametrize("given", [("", "word"), ("stream", [])])
def test_wrong_options_are_refused(given: tuple[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give the name of a stream, and at least one field"):
        RedisStreamBolt("redis://localhost", *given)
    with pytest.raises(ConfigError, match="max_entries=0"):
        RedisStreamBolt("redis://localhost", "stream", "word", max_entries=0)
