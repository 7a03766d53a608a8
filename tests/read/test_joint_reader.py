"""Several states are read as of one batch, from other processes, beside commits; what cannot be is refused by name."""

import threading
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FeederBatchSpout
from states.delta import DeltaState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import start
from trident import TridentTopology
from trident.errors import ConfigError, LogError, StateError, TopologyError, UnsupportedOperation
from trident.operations import Count, Sum
from trident.read.state_reader import snapshots_of
from trident.state import Snapshot, StateSpec, Winners

pytestmark = pytest.mark.slow

ROWS = "shop: string, euros: bigint"
SHOPS = ["oslo", "bergen", "tromsø"]


class Orders:
    """Two states of each shop; every order is one euro, so that both hold the same number after each batch."""

    def __init__(self, folder: Path, first: StateSpec, second: StateSpec, partitions: tuple[int, int] = (2, 3)) -> None:
        self.log_dir, self.spout = str(folder / "log"), FeederBatchSpout(ROWS)
        self.topology = TridentTopology("orders")
        orders = self.topology.new_stream("orders", self.spout).group_by("shop")
        self.revenue = orders.persistent_aggregate(first, "euros", Sum(), "revenue").parallelism_hint(partitions[0])
        self.sales = orders.persistent_aggregate(second, Count(), "sales").parallelism_hint(partitions[1])

    def running(self) -> Any:
        return start(self.topology, "in_process", log_dir=self.log_dir)

    def run(self, *rows: tuple[str, int]) -> None:
        """Commit a batch."""
        with self.running() as running:
            self.spout.feed(rows)
            running.process_all_available()

    def opened(self, *names: str) -> Any:
        return trident.open_states(self.topology, *(names or ("revenue", "sales")), log_dir=self.log_dir)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path, DeltaState.opaque(str(tmp_path / "a")), DeltaState.opaque(str(tmp_path / "b")))


def on_servers(folder: Path, redis: Server, postgres: Server) -> Orders:
    dsn = f"postgresql://trident@127.0.0.1:{postgres.port}/postgres"
    name = folder.name[-30:].replace("-", "_")
    return Orders(
        folder,
        RedisState.opaque(f"redis://127.0.0.1:{redis.port}/0", prefix=name),
        PostgresState.opaque(dsn, table=name),
    )


def read_until(ended: threading.Event, states: Any, least: int = 1) -> int:
    """Read both states until there is nothing to come; returns how often. They are equal, and never go back."""
    reads, last = 0, (0, 0)
    while not ended.is_set() or reads < least:
        found = states.multi_get({"revenue": SHOPS, "sales": SHOPS})
        assert found["revenue"] == found["sales"], (reads, states.txid)
        now = states.txid, sum(value or 0 for value in found["sales"])
        assert now >= last
        reads, last = reads + 1, now
    return reads


@pytest.mark.parametrize("least", [50, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_two_stores_are_seen_as_of_one_batch_beside_commits(
    least: int, tmp_path: Path, redis_server: Server, postgres_server: Server
) -> None:
    orders, ended = on_servers(tmp_path, redis_server, postgres_server), threading.Event()
    batches = max(40, least // 20)

    def commit() -> None:
        try:
            for number in range(batches):
                orders.spout.feed_nowait([(SHOPS[(number + at) % 3], 1) for at in range(1 + number % 4)])
            running.process_all_available()
        finally:
            ended.set()

    with orders.running() as running:
        orders.spout.feed([(shop, 1) for shop in SHOPS])
        running.process_all_available()
        with orders.opened() as states:
            writer = threading.Thread(target=commit)
            writer.start()
            reads = read_until(ended, states, least)
            writer.join()
            assert reads >= least
            assert states.read(lambda at: sorted(at["revenue"].get_tuples()) == sorted(at["sales"].get_tuples()))
            assert states.txid == batches + 1


def test_a_read_that_commits_overtake_is_made_again(orders: Orders) -> None:
    with orders.running() as running:

        def two_more() -> None:
            for _ in range(2):
                orders.spout.feed([("oslo", 1)])
                running.process_all_available()

        two_more()
        calls: list[int] = []

        def read(at: Any) -> tuple[int, int]:
            (revenue,) = at["revenue"].multi_get(["oslo"])
            calls.append(revenue)
            if len(calls) == 1:
                two_more()
            return revenue, at["sales"].multi_get(["oslo"])[0]

        with orders.opened() as states:
            assert states.read(read) == (4, 4)
            assert (calls, states.txid) == ([2, 4], 4)


def test_a_read_asks_the_log_once_and_is_of_one_batch_though_the_log_goes_on() -> None:
    class Committed:
        txid = asked = 0

        def now(self) -> Any:
            self.asked += 1
            return self

        def snapshot(self, name: str) -> Snapshot:
            before = self.txid
            self.txid = max(self.txid, 1)  # a commit, just after the first look
            return Snapshot(before, Winners())

    log = Committed()
    found = snapshots_of(log.now, ["revenue", "sales"])
    assert ([each.txid for each in found.values()], log.asked) == ([1, 1], 1)


def test_a_read_within_a_read_is_refused(orders: Orders) -> None:
    orders.run(("oslo", 1))
    with orders.opened() as states:
        with pytest.raises(StateError, match="within read.*Read the states that the function is given"):
            states.read(lambda at: states.multi_get({"sales": ["oslo"]}))
        assert states.multi_get({"sales": ["oslo"]}) == {"sales": [1]}


def test_other_partitions_after_a_restart_are_followed(orders: Orders, tmp_path: Path) -> None:
    specs = (DeltaState.opaque(str(tmp_path / "a")), DeltaState.opaque(str(tmp_path / "b")))
    orders.run(*((shop, 1) for shop in SHOPS))
    with orders.opened() as states:
        assert states.multi_get({"sales": SHOPS}) == {"sales": [1, 1, 1]}
        again = Orders(tmp_path, *specs, partitions=(4, 1))
        again.run(*((shop, 1) for shop in SHOPS))
        assert states.multi_get({"sales": SHOPS, "revenue": SHOPS}) == {"sales": [2, 2, 2], "revenue": [2, 2, 2]}


@pytest.mark.long
def test_frames_are_of_one_batch(orders: Orders, spark: Any) -> None:
    orders.run(("oslo", 1), ("bergen", 1))
    with orders.opened() as states:
        frames = states.to_dataframes(spark)
        columns = {name: frame.columns for name, frame in frames.items()}
        assert columns == {"revenue": ["shop", "revenue"], "sales": ["shop", "sales"]}
        assert frames["revenue"].join(frames["sales"], "shop").where("revenue = sales").count() == 2


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        (("revenue", "revenue"), ConfigError, r"\['revenue', 'revenue'\].*name one or more, each once"),
        (("revenue", "nothing"), TopologyError, "nothing"),
    ],
)
def test_what_is_not_there_is_said(names: tuple[str, ...], error: type[Exception], said: str, orders: Orders) -> None:
    with pytest.raises(error, match=said):
        orders.opened(*names)


def test_no_state_no_log_and_an_unopened_state_are_said(orders: Orders) -> None:
    with pytest.raises(ConfigError, match="name one or more"):
        trident.open_states(orders.topology, log_dir=orders.log_dir)
    with pytest.raises(LogError, match="there is no transaction log"):
        orders.opened()
    orders.run(("oslo", 1))
    with orders.opened("revenue") as states, pytest.raises(StateError, match=r"\['sales'\].*\['revenue'\]"):
        states.multi_get({"sales": ["oslo"]})


def test_a_state_that_is_not_opaque_is_refused(tmp_path: Path) -> None:
    orders = Orders(tmp_path, DeltaState.opaque(str(tmp_path / "a")), DeltaState.transactional(str(tmp_path / "b")))
    with start(orders.topology, "in_process", log_dir=orders.log_dir):
        pass
    said = "state 'sales' is transactional: .*open_state, or declare it opaque"
    with pytest.raises(UnsupportedOperation, match=said):
        orders.opened()
