"""`StateChangesSpout`: one topology follows a state of another, each change once, whatever is replayed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import redis

import trident
from spouts import FeederBatchSpout, StateChangesSpout
from states.delta import DeltaState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import run_all, start
from tests.spouts.reading import begun
from trident import TridentTopology
from trident.errors import BatchFailedError, ChangesGoneError, ReplayMismatchError, TopologyError, UnsupportedOperation
from trident.operations import BaseFunction, Count, Sum
from trident.spout import TransactionAttempt
from trident.state import StateSpec

pytestmark = [pytest.mark.slow, pytest.mark.server]


@pytest.fixture(params=["postgres", "redis"])
def spec(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server, redis_server: Server) -> StateSpec:
    name = tmp_path.name[-30:].replace("-", "_")
    if request.param == "postgres":
        url = f"postgresql://trident@{postgres_server.address}/postgres"
        return PostgresState.opaque(url, table=name, changes="7d")
    return RedisState.opaque(f"redis://{redis_server.address}/0", prefix=name, changes="7d")


class Sales:
    """A topology with the revenue by shop, fed batch by batch."""

    def __init__(self, folder: Path, spec: StateSpec) -> None:
        self.log_dir, self.spout = str(folder / "sales"), FeederBatchSpout("shop: string, euros: bigint")
        self.topology = TridentTopology("sales")
        sales = self.topology.new_stream("sales", self.spout).group_by("shop")
        sales.persistent_aggregate(spec, "euros", Sum(), "revenue", state_name="revenue")

    def run(self, *batches: list[tuple[str, int]]) -> None:
        with start(self.topology, "in_process", log_dir=self.log_dir) as running:
            for batch in batches:
                self.spout.feed(batch)
                running.process_all_available()


class FailsOnce(BaseFunction):
    """Fails the first time that it sees a marked change, and never again."""

    failed = False

    def execute(self, tuple: Any, collector: Any) -> None:
        if tuple["after"] == 9 and not type(self).failed:
            type(self).failed = True
            raise trident.FailedException("once")
        collector.emit([tuple["after"] - (tuple["before"] or 0)])


def followed(sales: Sales, folder: Path, **options: Any) -> TridentTopology:
    topology = TridentTopology("followed")
    spout = StateChangesSpout(sales.topology, "revenue", sales.log_dir, **options)
    rows = topology.new_stream("changes", spout).each(("before", "after"), FailsOnce(), "more: bigint")
    more = DeltaState.opaque(str(folder / "more"))
    rows.group_by("shop").persistent_aggregate(more, "more", Sum(), "sum", state_name="more")
    rows.persistent_aggregate(DeltaState.opaque(str(folder / "count")), Count(), "count", state_name="count")
    return topology


@pytest.mark.sample(1)
def test_the_changes_of_a_state_add_up_to_it_in_another_topology(spec: StateSpec, tmp_path: Path) -> None:
    sales, FailsOnce.failed = Sales(tmp_path, spec), False
    sales.run([("oslo", 3), ("bergen", 1)], [("oslo", 6)], [("tromsø", 2)])
    topology = followed(sales, tmp_path, since=0, max_batches=1)
    for _ in range(2):  # the second start finds nothing new at first
        with start(topology, "in_process", log_dir=str(tmp_path / "followed")) as running:
            running.process_all_available()
            sales.run([("oslo", 5), ("bergen", 4)])
            running.process_all_available()
            with trident.open_state(sales.topology, "revenue", log_dir=sales.log_dir) as revenue:
                assert sorted(running.state("more").get_tuples()) == sorted(revenue.get_tuples())
    assert FailsOnce.failed
    with trident.open_state(topology, "count", log_dir=str(tmp_path / "followed")) as count:
        assert count.get() == 4 + 2 * 2


def test_the_fields_are_those_of_the_key_and_the_values(spec: StateSpec, tmp_path: Path) -> None:
    sales = Sales(tmp_path, spec)
    sales.run([("oslo", 3)])
    spout = StateChangesSpout(sales.topology, "revenue", sales.log_dir)
    assert str(spout.get_output_fields()) == "shop: string, before: bigint, after: bigint, batch: bigint"
    coordinator, chosen = begun(spout)  # it begins behind what is committed
    assert (chosen["until"], coordinator.traits(chosen).is_start_position) == (1, True)
    assert coordinator.initialize_transaction(2, chosen) is None
    sales.run([("oslo", 1)])
    definition = coordinator.initialize_transaction(2, chosen)
    assert (definition["after"], definition["until"]) == (1, 2)
    assert [part.table.to_pylist() for part in coordinator.parts(TransactionAttempt(1, 0), definition, 4)] == [
        [{"shop": "oslo", "before": 3, "after": 4, "batch": 2}]
    ]
    assert coordinator.lag(definition) == (0, "batches")
    coordinator.close()


def test_a_batch_has_its_own_changes_alone_also_where_none_were_made(spec: StateSpec, tmp_path: Path) -> None:
    sales = Sales(tmp_path, spec)
    sales.run([("oslo", 3)], [], [], [("oslo", 1)])
    coordinator, first = begun(StateChangesSpout(sales.topology, "revenue", sales.log_dir, since=1, max_batches=2))
    second = coordinator.initialize_transaction(2, first)
    rows = [coordinator.parts(TransactionAttempt(1, 0), one, 4) for one in (first, second)]
    assert (rows[0], [part.table.to_pylist()[0]["batch"] for part in rows[1]]) == ([], [4])
    with pytest.raises(ReplayMismatchError, match="up to batch 3 of another log: the topology began again"):
        coordinator.initialize_transaction(2, {**first, "log": "another"})
    coordinator.close()


def test_a_state_without_changes_is_refused_when_the_topology_starts(tmp_path: Path) -> None:
    sales = Sales(tmp_path, DeltaState.opaque(str(tmp_path / "table")))
    sales.run([("oslo", 3)])
    with pytest.raises(UnsupportedOperation, match="state 'revenue' of 'sales' keeps no changes"):
        followed(sales, tmp_path).start(engine="in_process", log_dir=str(tmp_path / "followed"))
    with pytest.raises(TopologyError, match="no state 'turnover'"):
        StateChangesSpout(sales.topology, "turnover")
    with pytest.raises(ValueError, match="max_batches=0"):
        StateChangesSpout(sales.topology, "revenue", max_batches=0)


@pytest.mark.sample(1)
def test_where_reading_began_is_kept_although_nothing_came_before_the_stop(spec: StateSpec, tmp_path: Path) -> None:
    sales = Sales(tmp_path, spec)
    sales.run([("oslo", 3)])
    topology = followed(sales, tmp_path)
    for _ in range(2):
        run_all(topology, "in_process", log_dir=str(tmp_path / "followed"))
        sales.run([("oslo", 5)])
    running = run_all(topology, "in_process", log_dir=str(tmp_path / "followed"))
    assert sorted(running.state("more").get_tuples()) == [("oslo", 10)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("behind", [True, False], ids=["as it was", "and went on"])
def test_a_leader_that_was_set_back_with_its_store_is_told(tmp_path: Path, redis_server: Server, behind: bool) -> None:
    """The copy's next start has the number of the start that was undone, so the attempts are the same too."""
    name = tmp_path.name[-30:]
    server = redis.Redis.from_url(f"redis://{redis_server.address}/0")
    spec = RedisState.opaque(f"redis://{redis_server.address}/0", prefix=name, changes="7d")
    sales = Sales(tmp_path, spec)
    sales.run([("oslo", 3)])
    shutil.copytree(sales.log_dir, tmp_path / "copy")
    kept: dict[Any, Any] = {key: server.dump(key) for key in server.scan_iter(match=f"{name}*")}
    topology = followed(sales, tmp_path, since=0)
    sales.run([("bergen", 1)])
    run_all(topology, "in_process", log_dir=str(tmp_path / "followed"))
    with trident.changes(sales.topology, "revenue", since=0, log_dir=sales.log_dir) as feed:
        feed.read()
        position, run = feed.position, feed.position.split("-")[2]
    shutil.rmtree(sales.log_dir)
    shutil.copytree(tmp_path / "copy", sales.log_dir)
    server.delete(*server.scan_iter(match=f"{name}*"))
    for key, value in kept.items():
        server.restore(key, 0, value)
    if not behind:
        Sales(tmp_path, spec).run([("tromsø", 2)], [("oslo", 1)])  # with a feeder that knows nothing of what was undone
    found = "ends with batch 1 now" if behind else rf"has a batch 2 \(start 2\) with the id (?!{run})"
    what = rf"read up to batch 2, which was 2 \(start 2\) with the id {run}; the log {found}"
    with (
        pytest.raises(BatchFailedError, match=f"{what}.*begin with another log and empty states"),
        start(topology, "in_process", log_dir=str(tmp_path / "followed")) as running,
    ):
        running.process_all_available()
    with (
        trident.changes(sales.topology, "revenue", since=position, log_dir=sales.log_dir) as feed,
        pytest.raises(ChangesGoneError, match="the log ends with batch 1" if behind else f"{what}.*snapshot"),
    ):
        feed.read()
    again = followed(sales, tmp_path / "again", since=0)  # the advice
    running = run_all(again, "in_process", log_dir=str(tmp_path / "again" / "log"))
    with trident.open_state(sales.topology, "revenue", log_dir=sales.log_dir) as revenue:
        assert sorted(running.state("more").get_tuples()) == sorted(revenue.get_tuples())
