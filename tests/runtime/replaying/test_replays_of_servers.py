"""Topologies that read and write servers are verified beside them: topics, streams, states of other kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

import trident
from spouts import TransactionalRedisStreamSpout
from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.delta import DeltaState
from states.redis import RedisState
from tests.harness.kafka_topics import Topics
from tests.harness.servers import Server
from tests.harness.topology_runs import run_all
from trident import TridentTopology
from trident.errors import ReplayFailedError
from trident.operations import Count

pytestmark = [pytest.mark.slow, pytest.mark.server]


def test_a_stream_of_redis_as_a_log_and_a_state_there(tmp_path: Path, redis_server: Server) -> None:
    url, name = f"redis://{redis_server.address}/0", tmp_path.name[-30:]
    client = redis.Redis.from_url(url)
    topology = TridentTopology(name)
    words = topology.new_stream("words", TransactionalRedisStreamSpout(url, name, "word: string", max_entries=2))
    words.group_by("word").persistent_aggregate(
        RedisState.transactional(url, prefix=f"{name}-counts"), Count(), "count"
    ).parallelism_hint(3)
    for word in ["the", "cow", "the", "moon", "the"]:
        client.xadd(name, {"word": word})
    log_dir = str(tmp_path / "log")
    run_all(topology, "in_process", log_dir=log_dir, history="7d")
    (done,) = trident.verify_state(topology, log_dir=log_dir)
    assert (done.txid, done.equal, list(done.wrong)) == (3, 3, [])
    client.xtrim(name, maxlen=1, approximate=False)
    with pytest.raises(ReplayFailedError, match="batch 1 .* at step 'words'"):
        trident.verify_state(topology, log_dir=log_dir)


@pytest.mark.long
@pytest.mark.parametrize("kind", [OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout])
def test_topics_of_kafka_are_read_again(kind: Any, tmp_path: Path, kafka_topics: Topics) -> None:
    topic = kafka_topics.create(2)
    topology = TridentTopology("words")
    words = topology.new_stream("words", kind(kafka_topics.bootstrap, topic, value="text", first_poll="earliest"))
    words.group_by("value").persistent_aggregate(DeltaState.opaque(str(tmp_path / "counts")), Count(), "count")
    log_dir = str(tmp_path / "log")
    for number in range(3):
        kafka_topics.produce(topic, [b"the", f"w{number}".encode(), b"the"])
        run_all(topology, "in_process", log_dir=log_dir, history="7d")
    (done,) = trident.verify_state(topology, log_dir=log_dir)
    assert (done.txid, done.equal, list(done.wrong)) == (3, 4, [])
    assert [each.after for each in trident.why(topology, "count", "the", log_dir=log_dir)] == [2, 4, 6]
    kafka_topics.delete_records(topic, 4)
    with pytest.raises(ReplayFailedError, match="batch 1 .* at step 'words'"):
        trident.verify_state(topology, log_dir=log_dir)
