"""A store that does not answer is waited for, as a source is; one that refuses ends the topology at its first try."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from spouts import FeederBatchSpout
from states.cassandra import CassandraState
from states.delta import DeltaState
from states.kafka import KafkaTopicState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.servers import Server, free_ports, start_memcached, start_postgres, start_redis
from tests.harness.topology_runs import start
from tests.states.delta.delta_bucket import Bucket, storage
from trident import BatchFailedError, TridentTopology
from trident.errors import BackendError, StoreAwayError, can_heal
from trident.operations import Count
from trident.run.engine_choice import giving_up_if
from trident.state import StateSpec
from trident.state.interfaces import StateConf
from trident.steps.failures import failure_of

pytestmark = pytest.mark.server
QUICK: dict[str, Any] = {"retries": 0, "timeout_s": 1.0}
CONF = StateConf("t", "counts", (("word", "string"),), "bigint")
SPECS: dict[str, Callable[..., StateSpec]] = {
    "PostgreSQL": lambda at, **more: PostgresState.opaque(f"postgresql://trident@{at}/postgres", **{**QUICK, **more}),
    "Redis": lambda at, **more: RedisState.opaque(f"redis://{at}/0", **{**QUICK, **more}),
    "Memcached": lambda at, **more: MemcachedState.opaque([at], **{**QUICK, **more}),
}
STARTS: dict[str, Callable[[Path], Server]] = {
    "PostgreSQL": start_postgres,
    "Redis": lambda work: start_redis(work, "--appendonly", "yes", "--appendfsync", "always"),
    "Memcached": start_memcached,
}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, of the kind that it is given."""
    work = tmp_path / "server"
    work.mkdir()
    server = STARTS[request.param](work)
    yield server
    server.stop()


def counting(spec: StateSpec) -> tuple[TridentTopology, FeederBatchSpout, Any]:
    topology, feeder = TridentTopology("t"), FeederBatchSpout("word: string")
    counts = topology.new_stream("s", feeder).group_by("word").persistent_aggregate(spec, Count(), "n")
    return topology, feeder, counts


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "away", "back"),
    [
        ("PostgreSQL", Server.kill, Server.start),
        ("Redis", Server.kill, Server.start),
        ("Redis", Server.pause, Server.resume),
        ("Memcached", Server.pause, Server.resume),
    ],
    indirect=["server"],
    ids=["PostgreSQL killed", "Redis killed", "Redis hangs", "Memcached hangs"],
)
def test_a_store_that_is_away_is_waited_for_however_often_that_is_tried(
    server: Server, away: Callable[[Server], None], back: Callable[[Server], None], request: Any, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    kind = request.node.callspec.params["server"]
    topology, feeder, counts = counting(SPECS[kind](server.address))
    # Without cache a batch reads, too. Two tries end it, if they count.
    with start(topology, "in_process", log_dir=tmp_path / "log", max_batch_attempts=2) as running:
        feeder.feed([["a"], ["b"]])
        getattr(server, away.__name__)()
        feeder.feed_nowait([["a"]])
        until(lambda: running.status["failures"] >= 4 or not running.is_active, "it is tried more often than may fail")
        assert running.is_active
        waiting = running.status["waiting"]
        assert waiting.startswith(f"waiting for {kind} at {server.address}")
        assert " since 20" in waiting
        assert running.status["message"] == waiting
        assert running.pages.status().as_mapping()["status"] == "ACTIVE"
        assert f"topology t: {waiting}: batch 2" in caplog.text
        getattr(server, back.__name__)()
        running.process_all_available()
        assert running.status["waiting"] == ""
        assert running.state(counts).multi_get([("a",), ("b",)]) == [2, 1]


@pytest.mark.parametrize("server", ["Redis"], indirect=True)
def test_a_topology_whose_store_is_away_at_the_start_starts_when_it_is_back(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topology, feeder, counts = counting(SPECS["Redis"](server.address))
    server.kill()
    said = f"topology t: waiting for Redis at {server.address}"

    def bring_back() -> None:
        until(lambda: caplog.text.count(said) >= 3, "it is tried again")
        server.start()

    helper = threading.Thread(target=bring_back)
    helper.start()
    try:
        with start(topology, "in_process", log_dir=tmp_path / "log") as running:
            feeder.feed([["a"]])
            assert running.state(counts).multi_get([("a",)]) == [1]
    finally:
        helper.join()


@pytest.mark.parametrize("server", ["Redis"], indirect=True)
def test_a_store_that_stays_away_ends_the_topology_after_the_time_that_is_set(server: Server, tmp_path: Path) -> None:
    conf: dict[str, Any] = {"log_dir": tmp_path / "log", "store_wait_s": 0.3, "retry_backoff_max_ms": 50}
    topology, feeder, _ = counting(SPECS["Redis"](server.address))
    running = start(topology, "in_process", **conf)
    feeder.feed([["a"]])
    server.kill()
    feeder.feed_nowait([["a"]])
    said = r"waiting for Redis at .* since .*: longer than 0.3 seconds, store_wait_s"
    with pytest.raises(BatchFailedError, match=said) as told:
        running.await_termination(30)
    assert can_heal(told.value)  # the next start waits again
    with pytest.raises(StoreAwayError, match="is the server up"):
        start(topology, "in_process", **conf)


@pytest.mark.parametrize("server", ["Redis"], indirect=True)
def test_a_store_that_refuses_ends_the_topology_at_the_first_try(server: Server, tmp_path: Path) -> None:
    topology, feeder, _ = counting(SPECS["Redis"](server.address))
    running = start(topology, "in_process", log_dir=tmp_path / "log", retry_backoff_ms=60_000)
    feeder.feed([["a"]])
    with redis.Redis(port=server.port) as client:
        client.config_set("requirepass", "hush")
    with redis.Redis(port=server.port, password="hush") as client:
        client.client_kill_filter(skipme=True, _type="normal")
    feeder.feed_nowait([["a"]])
    with pytest.raises(BatchFailedError, match="failed once .* the server asks for a password") as told:
        running.await_termination(30)
    assert not can_heal(told.value)
    assert running.status["failures"] <= 2  # the first may be of the connection that was ended
    with pytest.raises(BackendError, match="the server asks for a password") as at_start:
        start(topology, "in_process", log_dir=tmp_path / "log")
    assert not can_heal(at_start.value)


def test_a_signal_ends_a_start_that_waits_for_a_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    topology, _, _ = counting(RedisState.opaque(f"redis://127.0.0.1:{port}/0", **QUICK))
    with giving_up_if(lambda: "waiting for Redis" in caplog.text), pytest.raises(StoreAwayError):
        topology.start(engine="in_process", log_dir=tmp_path / "log", retry_backoff_ms=60_000)


@pytest.mark.parametrize(
    ("server", "options", "said"),
    [
        pytest.param(
            "PostgreSQL", {"connect_timeout_s": 1}, r"no answer within 1\.2 s|timeout", marks=pytest.mark.long
        ),
        ("Redis", {"retries": 1, "backoff_s": 0.01}, "read 1 keys of .* on Redis {}: Timeout"),
        ("Memcached", {}, "timed out"),
    ],
    indirect=["server"],
    ids=["PostgreSQL", "Redis", "Memcached"],
)
def test_a_server_that_hangs_is_given_up_after_the_timeouts(
    server: Server, options: dict[str, Any], said: str, request: Any
) -> None:
    spec = SPECS[request.node.callspec.params["server"]](server.address, timeout_s=0.2, **options)
    state = spec.factory.make_state(CONF, 0, 1)
    state.begin_commit(1)
    state.multi_put([("a",)], [1])
    state.commit(1)
    server.pause()
    try:
        with pytest.raises(BackendError, match=said.format(server.address)) as told:
            state.multi_get([("a",)])
    finally:
        server.resume()
    assert told.value.retryable
    assert state.multi_get([("a",)]) == [1]
    state.close()


AT_A_CLOSED_PORT: dict[str, tuple[Callable[[int], StateSpec], str]] = {
    "Cassandra": (
        lambda port: CassandraState.opaque(["127.0.0.1"], port=port, connect_timeout_s=1.0),
        r"cannot open a session in Cassandra at 127\.0\.0\.1:{}: NoHostAvailable",
    ),
    "Kafka": (
        lambda port: KafkaTopicState.transactional(f"127.0.0.1:{port}", "out", timeout_s=1.0, connect_timeout_s=1.0),
        "Connection refused.*; are the brokers up, and are their addresses right",
    ),
    "Memcached": (
        lambda port: MemcachedState.opaque(f"127.0.0.1:{port}", **QUICK), "memcached server 127.0.0.1:{}: .*refused",
    ),
    "PostgreSQL": (
        lambda port: PostgresState.opaque(f"postgresql://me:hush@127.0.0.1:{port}/shop", **QUICK),
        r"refused.*is the server up, and is its address right\?",
    ),
    "Redis": (lambda port: RedisState.opaque(f"redis://me:hush@127.0.0.1:{port}/0", **QUICK), "refused"),
}  # fmt: skip


@pytest.mark.parametrize("kind", AT_A_CLOSED_PORT)
def test_the_error_of_a_store_that_is_away_names_it_without_secrets(kind: str) -> None:
    (port,), (spec, said) = free_ports(1), AT_A_CLOSED_PORT[kind]
    with pytest.raises(StoreAwayError, match=said.format(port)) as told:
        spec(port).factory.make_state(CONF, 0, 1).read_sentinel()
    assert told.value.retryable
    waits_for = failure_of("s/aggregate", told.value).waits_for
    assert kind in waits_for
    assert f":{port}" in waits_for
    assert "hush" not in waits_for + str(told.value)


def test_an_object_store_that_is_away_is_waited_for() -> None:
    bucket = Bucket()
    spec = DeltaState.opaque("s3://bucket/states/words", storage_options={**storage(bucket), "retry_timeout": "1s"})
    bucket.close()
    state = spec.factory.make_state(CONF, 0, 1)
    with pytest.raises(StoreAwayError) as told:
        state.read_sentinel()
    assert told.value.waits_for == "the object store of s3://bucket/states/words"
