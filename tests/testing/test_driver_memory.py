"""TopologyTestDriver(in_memory=True): topologies over servers and tables run without them; what cannot be replaced is named."""

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from states.cassandra import CassandraState
from states.delta import DeltaState
from states.kafka import KafkaTopicState, ToTopic
from states.memcached import MemcachedState
from states.memory import LRUMemoryMapState, MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.crashing_stores import WithoutAttempts
from tests.harness.drpc_functions import words as asking
from tests.harness.topology_runs import Keep, RowsSpout, RowsState, dict_state
from tests.testing.test_driver import POINTS, of_words, word_count
from trident import TridentTopology
from trident.errors import (
    BatchFailedError,
    ConfigError,
    DRPCExecutionException,
    InexactPairingError,
    TopologyError,
    TridentError,
)
from trident.operations import Count, MapGet, SlidingDurationWindow, Split, Sum
from trident.spout import SpoutType
from trident.state import OpaqueMap, StateConf, StateSpec, StoreFacts
from trident.testing import TopologyTestDriver

NOWHERE: dict[str, Callable[[str], StateSpec]] = {
    "redis": lambda kind: getattr(RedisState, kind)("redis://127.0.0.1:1/0", cache=8),
    "redis fields": lambda kind: getattr(RedisState, kind)("redis://127.0.0.1:1/0", prefix="words", layout="fields"),
    "postgres": lambda kind: getattr(PostgresState, kind)("postgresql://127.0.0.1:1/counts", num_partitions=2),
    "cassandra": lambda kind: getattr(CassandraState, kind)(["127.0.0.1"], port=1, keyspace="counts"),
    "memcached": lambda kind: getattr(MemcachedState, kind)(["127.0.0.1:1"], serializer="json"),
    "delta": lambda kind: getattr(DeltaState, kind)("s3://nowhere/counts"),
    "map_state": lambda kind: dict_state({}, kind),
    "memory": lambda kind: getattr(MemoryMapState, kind)(),
}


@pytest.fixture(autouse=True)
def _no_connection(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def connect(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"connected to {address}")

    if "redis_server" not in request.fixturenames:
        monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("store", NOWHERE)
def test_a_state_of_any_store_runs_without_it_and_a_replay_is_exact(store: str, point: str) -> None:
    declared, promise = NOWHERE[store]("opaque"), SpoutType.TRANSACTIONAL if store == "memcached" else SpoutType.OPAQUE
    for _ in range(2):  # each driver begins with nothing
        with of_words(declared, promise, in_memory=True) as driver:
            driver.feed("lines", "the cow the moon")
            driver.run()
            driver.feed("lines", "the dish")
            driver.fail_at(point)
            failed, done = driver.run()
            assert (failed.committed, done.committed) == (False, True)
            assert sorted(done.new_values["count"]) == [("dish", 1), ("the", 3)]
            assert driver.state("count").multi_get(["the", "cow", "dish", "sun"]) == [3, 1, 1, None]


@pytest.mark.parametrize("kind", ["transactional", "non_transactional"])
@pytest.mark.parametrize("store", NOWHERE)
def test_the_kind_of_a_state_and_its_value_rule_stay(store: str, kind: str) -> None:
    with of_words(NOWHERE[store](kind), in_memory=True, allow_inexact=True) as driver:
        driver.feed("lines", "a")
        driver.fail_at("commit:count")
        driver.run()
        assert driver.state("count").multi_get(["a"]) == [1 if kind == "transactional" else 2]
    refused, _ = word_count(NOWHERE[store](kind), SpoutType.OPAQUE)
    with pytest.raises(InexactPairingError):
        TopologyTestDriver(refused, in_memory=True)


@pytest.mark.parametrize("cached", [False, True])
def test_a_serializer_that_keeps_no_attempts_is_inexact_as_it_is_on_its_server(cached: bool) -> None:
    spec = RedisState.opaque("redis://127.0.0.1:1", serializer=WithoutAttempts())
    with pytest.raises(InexactPairingError, match="attempt"):
        of_words(MemcachedState.cache_for(spec, "127.0.0.1:1") if cached else spec, SpoutType.OPAQUE, in_memory=True)


def test_what_a_serializer_cannot_write_fails_as_it_does_on_its_server() -> None:
    topology = TridentTopology("t")
    topology.new_stream("s", RowsSpout("n: decimal(9,2)", {})).persistent_aggregate(
        RedisState.opaque("redis://127.0.0.1:1", serializer=OnlyWhole()), "n", Sum(), "sum"
    )
    with TopologyTestDriver(topology, in_memory=True, max_batch_attempts=1) as driver:
        driver.feed("s", Decimal("1.50"))
        with pytest.raises(BatchFailedError, match="only whole numbers"):
            driver.step()


class OnlyWhole:
    """A serializer of a user's."""

    def serialize(self, obj: Any) -> bytes:
        raise ValueError("only whole numbers")

    def deserialize(self, data: bytes) -> Any:
        raise ValueError("only whole numbers")


@pytest.mark.parametrize("partitions", [1, 3])
def test_keys_of_several_partitions_and_of_any_type(partitions: int) -> None:
    topology = TridentTopology("t")
    fields = "n: double, at: date, who: string, cents: decimal(9,2), x: bigint"
    sums = (
        topology.new_stream("s", RowsSpout(fields, {}))
        .group_by("n, who, cents")
        .persistent_aggregate(PostgresState.opaque("postgresql://127.0.0.1:1/x"), "x", Sum(), "sum")
        .parallelism_hint(partitions)
    )
    with TopologyTestDriver(topology, in_memory=True) as driver:
        driver.feed(
            "s", (0.0, None, "é", Decimal("1.50"), 1), (-0.0, None, "é", Decimal("1.5"), 2), (1.5, None, None, None, 4)
        )
        driver.run()
        assert sorted(driver.state(sums).get_tuples(), key=str) == [(0.0, "é", Decimal("1.5"), 3), (1.5, None, None, 4)]


def test_single_values_several_aggregates_windows_joins_and_states_behind_states() -> None:
    def redis() -> StateSpec:
        return RedisState.opaque("redis://127.0.0.1:1")

    topology = TridentTopology("shop")
    sales = topology.new_stream("sales", RowsSpout("shop: string, euros: int, at: timestamp_ntz", {}))
    per_shop = sales.group_by("shop").persistent_aggregate(
        redis(), {"revenue": Sum("euros"), "orders": Count()}, "sales"
    )
    total = sales.persistent_aggregate(redis(), "euros", Sum(), "total")
    of_new = per_shop.new_values_stream().persistent_aggregate(DeltaState.opaque("s3://nowhere/n"), Count(), "updates")
    windowed = sales.window(
        SlidingDurationWindow.of(timedelta(seconds=2), timedelta(seconds=2)), redis(), "euros", Sum(), "sum"
    )
    kept = sales.partition_persist(redis(), ["shop"], PutOnes(), "shop: string", state_name="kept").parallelism_hint(2)
    with TopologyTestDriver(topology, in_memory=True) as driver:
        driver.feed("sales", ("north", 5, None), ("north", 2, None), ("south", 1, None))
        driver.fail_at("commit:total")
        driver.run()
        driver.clock.advance(2)
        driver.run()
        assert driver.state(per_shop).multi_get(["north"]) == [{"revenue": 7, "orders": 2}]
        assert (driver.state(total).get(), driver.state(of_new).get()) == (8, 2)
        assert [row for rows in driver.captured(windowed).values() for row in rows] == [(8,)]
        assert driver.state(kept).multi_get(["north", "south", "east"]) == [1, 1, None]


class PutOnes(Keep):
    """An updater of a user's, which chooses the keys."""

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        keys = list(dict.fromkeys(row.values for row in tuples))
        state.multi_put(keys, [1] * len(keys))


def test_what_is_in_memory_already_stays_as_it_is() -> None:
    topology, counts = word_count(LRUMemoryMapState(1))
    kept = RowsState()
    topology.new_stream("s", RowsSpout("x: string", {})).partition_persist(
        kept, ["x"], Keep(), "x: string", state_name="kept"
    )
    with TopologyTestDriver(topology, in_memory=True) as driver:
        driver.feed("lines", "a", "b")
        driver.feed("s", "row")
        driver.run()
        assert driver.state(counts).multi_get(["a"]) == [None]  # it forgets
        assert kept.rows == [("row",)]


def test_it_gives_what_the_server_gives(redis_server: Any, tmp_path: Path) -> None:
    for number, spec in enumerate(
        [RedisState.opaque(f"redis://127.0.0.1:{redis_server.port}"), DeltaState.opaque(tmp_path / "counts")]
    ):
        topology, counts = word_count(spec, SpoutType.OPAQUE)
        topology.name = f"same-{number}"
        asking(topology.new_drpc_stream("words"), counts)
        given = []
        for in_memory in (True, False):
            with TopologyTestDriver(topology, in_memory=in_memory) as driver:
                driver.feed("lines", "the cow", "the moon")
                driver.fail_at("put:count")
                driver.step()
                driver.replay("lines", "the moon")
                driver.run()
                driver.feed("lines", "a b", "a")
                driver.fail_at("record")
                driver.run()
                answer = driver.drpc("words", "the moon a")
                given.append(
                    (driver.new_values(counts), sorted(driver.state(counts).get_tuples()), driver.txid, answer)
                )
        assert given[0][0]
        assert given[0] == given[1]


@pytest.mark.parametrize("spec", [MemoryMapState(), NOWHERE["postgres"]("opaque")])
def test_it_starts_no_thread(spec: StateSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} was started")

    topology, counts = word_count(spec, partitions=2)
    asking(topology.new_drpc_stream("words"), counts)
    monkeypatch.setattr(threading.Thread, "start", start)
    with TopologyTestDriver(topology, in_memory=True, max_spout_pending=2) as driver:
        driver.feed("lines", "a b c")
        driver.fail_at("record")
        driver.run()
        assert driver.drpc("words", "a b") == [[2]]


def prices() -> tuple[TridentTopology, Any]:
    topology = TridentTopology("prices")
    static = topology.new_static_state(RedisState.transactional("redis://127.0.0.1:1", prefix="prices"), "prices")
    priced = topology.new_stream("sold", RowsSpout("what: string", {})).state_query(
        static, "what", MapGet(), "price: int"
    )
    topology.new_drpc_stream("price").state_query(static, "args", MapGet(), "price: int").project("price")
    return topology, priced


def test_a_static_state_is_filled_by_the_test() -> None:
    topology, priced = prices()
    with TopologyTestDriver(topology, in_memory=True) as driver:
        driver.fill("prices", {"tea": 3, ("milk",): 1})
        driver.feed("sold", "tea", "milk", "salt")
        driver.run()
        assert driver.captured(priced)[1] == [("tea", 3), ("milk", 1), ("salt", None)]
        assert driver.drpc("price", "tea") == [[3]]
        assert driver.state("prices").multi_get(["tea", "salt"]) == [3, None]
        driver.fill("prices", {"tea": 4})
        assert [driver.drpc("price", what) for what in ("tea", "milk")] == [[[4]], [[None]]]


@pytest.mark.parametrize("spec", [MemoryMapState(), NOWHERE["redis"]("opaque")])
def test_requests_see_the_last_committed_batch_at_each_point(spec: Any) -> None:
    for point in POINTS:
        topology, counts = word_count(spec, partitions=2)
        asking(topology.new_drpc_stream("words"), counts)
        with TopologyTestDriver(topology, in_memory=True) as driver:
            assert driver.drpc("words", "the cow") == [[0]]
            driver.feed("lines", "the cow the moon")
            driver.run()
            assert driver.drpc("words", "the cow") == [[3]]
            driver.feed("lines", "the cow")
            driver.fail_at(point)
            failed = driver.step()
            assert failed is not None
            assert (failed.committed, driver.drpc("words", "the cow")) == (False, [[3]])
            assert driver.state(counts).multi_get(["the", "cow"]) == [2, 1]
            driver.step()
            assert driver.drpc("words", "the cow") == [[5]]


def test_what_a_request_needs_is_closed_with_the_driver_and_opened_by_the_next_one() -> None:
    life: list[str] = []

    class Noted(Split):
        def prepare(self, conf: Any, context: Any) -> None:
            life.append("prepare")

        def cleanup(self) -> None:
            life.append("cleanup")

    topology, _ = word_count(MemoryMapState())
    topology.new_drpc_stream("split").each("args", Noted(), "word").project("word")
    with TopologyTestDriver(topology) as driver:
        assert life == []
        assert [driver.drpc("split", args) for args in ("a b", "", "c")] == [[["a"], ["b"]], [], [["c"]]]
        driver.feed("lines", "a")
        driver.fail_at("record")
        driver.step()
        assert driver.drpc("split", "d") == [["d"]]
    assert life == ["prepare", "cleanup"] * 2


def test_a_request_that_fails_names_step_and_cause_and_the_next_one_is_answered() -> None:
    topology, _ = word_count(MemoryMapState())
    topology.new_drpc_stream("inverse").each("args", lambda args: 1 / int(args), "y: double").project("y")
    with TopologyTestDriver(topology) as driver:
        with pytest.raises(DRPCExecutionException, match="ZeroDivisionError") as failed:
            driver.drpc("inverse", "0")
        assert failed.value.function == "inverse"
        assert driver.drpc("inverse", "4") == [[0.25]]
        with pytest.raises(DRPCExecutionException, match=r"topology 'words' has the functions \['inverse'\]"):
            driver.drpc("other", "0")
        for args in (5, "\ud800"):
            with pytest.raises(DRPCExecutionException, match="the arguments (must be|are not)"):
                driver.drpc("inverse", args)  # type: ignore[arg-type]
    with pytest.raises(TridentError, match="is closed"):
        driver.drpc("inverse", "4")


class OwnState:
    """A state of a user's, and its factory."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        raise AssertionError("it is not opened")


class OwnMaps:
    """Makes maps, which on a server would connect; says so or not."""

    kind = "opaque"

    def __init__(self, facts: StoreFacts) -> None:
        self.facts = facts

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> OpaqueMap:
        raise AssertionError("it is not opened")


def test_states_that_are_no_maps_of_a_kind_are_refused_by_name() -> None:
    topology, _ = word_count(OwnMaps(StoreFacts()))
    rows = topology.new_stream("s", RowsSpout("x: string", {}))
    rows.partition_persist(OwnState(), ["x"], Keep(), "x: string", state_name="kept")
    rows.partition_persist(KafkaTopicState.transactional("127.0.0.1:1", "out"), ["x"], ToTopic("x"), state_name="topic")
    with pytest.raises(ConfigError) as refused:
        TopologyTestDriver(topology, in_memory=True)
    text = str(refused.value)
    assert text.startswith(
        "topology 'words' cannot run with in_memory=True: states 'count' (OwnMaps), 'kept' (OwnState), "
        "'topic' (KafkaTopicState) are not known as a map of a kind"
    )
    assert "Declare the topology in a function that takes the state" in text


def test_a_factory_may_say_that_its_states_are_maps() -> None:
    with of_words(OwnMaps(StoreFacts(is_map=True)), in_memory=True) as driver:
        driver.feed("lines", "a a")
        driver.run()
        assert driver.state("count").multi_get(["a"]) == [2]


def test_without_a_kind_a_map_is_refused() -> None:
    spec = StateSpec(OwnMaps(StoreFacts(is_map=True)))
    spec.factory.kind = None  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"state 'count' \(OwnMaps\) is not known as a map of a kind"):
        of_words(spec, in_memory=True)


def test_a_log_that_outlasts_the_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"in_memory=True with log_dir='.*log': states in memory end .* leave log_dir out"
    ):
        of_words(MemoryMapState(), in_memory=True, log_dir=str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


def test_only_a_static_state_in_memory_is_filled() -> None:
    topology, _ = prices()
    topology.new_stream("s", RowsSpout("x: string", {})).group_by("x").persistent_aggregate(
        MemoryMapState(), Count(), "n"
    )
    with TopologyTestDriver(topology, in_memory=True) as driver:
        with pytest.raises(TridentError, match=r"fill\('n'\): streams write it; feed them instead"):
            driver.fill("n", {"a": 1})
        with pytest.raises(TopologyError, match=r"has no state 'price'; it has \['prices', 'n'\]"):
            driver.fill("price", {"a": 1})
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(TridentError, match="the driver does not have in_memory=True"),
    ):
        driver.fill("prices", {"tea": 3})
