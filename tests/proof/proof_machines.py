"""P3: Hypothesis machines over maps, log, readers, spouts' metadata and acker; the coordinator has one among its tests."""

import itertools
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from kazoo.client import KazooClient

from tests.harness.topology_runs import RowsState, start
from tests.log.log_homes import FileHome, Home, ZooKeeperHome, stored_home
from tests.log.test_log_drivers import ACTS, DRIVERS, Model, check_many
from tests.proof.proof_table import RowServers, Trial
from tests.run.test_coordinator import Coordinating
from tests.spout.partition_source import Source
from tests.spout.test_partitioned_engines import declared
from tests.state.test_crash_schedules import PAIRINGS, STORES, schedule_of
from tests.stores import drivers
from tests.stores.catalog import STORES as CATALOG
from tests.stores.catalog import Home as StoreHome
from tests.storm.test_tuple_trees import SPOUT, Told
from trident.errors import FencedError, StaleTransactionError, TridentError
from trident.spout import SpoutType
from trident.state import Snapshot, StateType
from trident.steps.key_columns import partitions_of
from trident.storm.execution.messages import Tracking

_STEPS = 30
_EXAMPLES = {
    "maps": 175,
    "coordinator": 250,
    "readers": 150,
    "spouts' metadata": 25,
    "acker": 250,
    "log in files": 100,
    "log in PostgreSQL": 15,
    "log in an object store": 10,
    "log in ZooKeeper": 25,
}
"""How many of a thousand examples each machine has: those in memory take milliseconds, those on servers up to a second."""

_SEEDS = st.integers(0, 1 << 32)


class Maps(RuleBasedStateMachine):
    """Attempts at batches over a map of any kind, on any store, with crashes in any call; the model is a dict of lists."""

    @initialize(store=st.sampled_from(sorted(STORES)), pairing=st.sampled_from(PAIRINGS), drawn=_SEEDS)
    def begin(self, store: str, pairing: tuple[StateType, bool], drawn: int) -> None:
        self.schedule, self.batch, self.is_new = schedule_of(store, *pairing, drawn), list[Any](), True
        self.schedule.open()

    @rule(drawn=_SEEDS)
    def attempt(self, drawn: int) -> None:
        schedule = self.schedule
        schedule.chance = random.Random(drawn)
        if self.is_new or schedule.changes:
            self.batch = schedule.new_batch()
        self.is_new = schedule.attempt(self.batch)


class Drivers(RuleBasedStateMachine):
    """Drivers that open, take over, append and end, on one log; `make_home` says where."""

    make_home: Callable[[], Home]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(type(self).make_home())

    @rule(what=st.sampled_from(ACTS), driver=st.integers(0, DRIVERS - 1))
    def step(self, what: str, driver: int) -> None:
        self.model.step(what, driver)

    def teardown(self) -> None:
        self.model.end()


class _Crash(Exception):
    """The attempt ends here."""


class Readers(RuleBasedStateMachine):
    """Readers of one state beside attempts that fail anywhere and drivers that are replaced; the model is a dict a snapshot."""

    batches = st.dictionaries(st.sampled_from(drivers.KEYS), st.one_of(st.none(), st.integers(1, 99)), min_size=1)

    def __init__(self) -> None:
        super().__init__()
        self.home = StoreHome(CATALOG["memory"], Path())
        self.driver = drivers.Driver(self.home, self.home.fresh_name("readers"), reach=self._reach)
        self.chunks, self.model = 0, drivers.Model()
        self.replaced: list[drivers.Driver] = []
        self.readers: list[Any] = []
        self.snapshots: list[tuple[Snapshot, list[int | None]]] = []

    def _reach(self, point: str) -> None:
        if point == "chunk" and self.chunks:
            self.chunks -= 1
            if not self.chunks:
                raise _Crash

    @rule(batch=batches)
    def commit(self, batch: Mapping[Any, int | None]) -> None:
        self.driver.commit(batch)
        drivers.apply(self.model, batch)

    @rule(batch=batches, chunks=st.integers(1, 4))
    def fail(self, batch: Mapping[Any, int | None], chunks: int) -> None:
        self.chunks = chunks
        try:
            self.driver.write(batch)
        except _Crash:
            pass
        finally:
            self.chunks = 0
        self.driver.fail()

    @rule()
    def take_over(self) -> None:
        self.replaced.append(self.driver)
        self.driver = self.driver.takeover()
        self.driver._reach = self._reach
        self.commit(drivers.one_key_of_each(self.home.store.partitions))

    @precondition(lambda self: self.replaced)
    @rule(batch=batches)
    def wake(self, batch: Mapping[Any, int | None]) -> None:
        with pytest.raises(FencedError):
            self.replaced[-1].write(batch)

    @rule()
    def open_reader(self) -> None:
        self.readers.append(self.driver.view())

    @rule()
    def take_snapshot(self) -> None:
        snapshot = self.driver.log.state.snapshot(self.driver.name)
        self.snapshots.append((snapshot, [self.model.get(key) for key in drivers.KEYS]))

    @rule()
    def read(self) -> None:
        drivers.check(self.driver, self.model, "a new reader")
        wanted = [self.model.get(key) for key in drivers.KEYS]
        for reader in self.readers:
            reader._snapshot = lambda: self.driver.log.state.snapshot(self.driver.name)
            assert reader.multi_get(drivers.KEYS) == wanted

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def read_what_was(self, data: st.DataObject) -> None:
        """A reader that is late sees its snapshot, or is told that it cannot; never anything else."""
        snapshot, wanted = data.draw(st.sampled_from(self.snapshots))
        instances = self.home.open(self.driver.name, True)
        places = partitions_of(drivers.KEYS, self.home.store.partitions)
        for partition, at in places.items():
            try:
                found = instances[partition].multi_get_at([drivers.KEYS[place] for place in at], snapshot)
            except StaleTransactionError:
                continue
            assert found == [wanted[place] for place in at]

    def teardown(self) -> None:
        for each in (*self.readers, *self.replaced, self.driver):
            each.close()


class Partitions(RuleBasedStateMachine):
    """A source whose partitions grow, go and come back, read by drivers whose readings and commits fail: each row once."""

    names = st.sampled_from(["a", "b", "c"])

    @initialize(
        transactional=st.booleans(), limit=st.integers(1, 5), pending=st.sampled_from([1, 3]), arrow=st.booleans()
    )
    def begin(self, transactional: bool, limit: int, pending: int, arrow: bool) -> None:
        self.source = Source(limit=limit, before=lambda partition: self._reach("reading"), arrow=arrow)
        self.folder, self.next, self.failures = tempfile.TemporaryDirectory(), 0, list[str]()
        kind = SpoutType.TRANSACTIONAL if transactional else SpoutType.OPAQUE
        self.kind, self.pending = kind, pending
        self.kept: list[dict[Any, Any]] = [{}, {}]
        self.running = self.started()

    def started(self) -> Any:
        """Start a driver on the same source, states and log."""
        state = "transactional" if self.kind is SpoutType.TRANSACTIONAL else "opaque"
        return start(
            declared(self.source, self.kind, state, RowsState(), self.kept), "in_process",
            lambda point, attempt: self._reach(point),
            log_dir=self.folder.name, max_batch_attempts=1000, retry_backoff_ms=0, max_spout_pending=self.pending,
        )  # fmt: skip

    def _reach(self, point: str) -> None:
        if point in self.failures:
            self.failures.remove(point)
            raise OSError(f"no {point}")

    @rule(name=names, rows=st.integers(0, 8))
    def grow(self, name: str, rows: int) -> None:
        self.source.rows.setdefault(name, []).extend(range(self.next, self.next + rows))
        self.next += rows

    @rule(name=names)
    def come_or_go(self, name: str) -> None:
        self.source.gone ^= {name}

    @rule(point=st.sampled_from(["reading", "committing", "committed"]))
    def fail_once(self, point: str) -> None:
        self.failures.append(point)

    @rule()
    def restart(self) -> None:
        self.running.stop()
        self.running = self.started()

    @rule()
    def run(self) -> None:
        running = threading.Thread(target=self._drain, daemon=True)
        running.start()
        while running.is_alive():
            running.join(0.01)
            if self.running.status[
                "waiting"
            ]:  # a batch is to be replayed that has rows of a partition which is not there
                self.source.gone.clear()
        self.running.process_all_available()
        here = {name: rows for name, rows in self.source.rows.items() if name not in self.source.gone}
        self._counts(here, (1,))
        self._counts(self.source.rows, (1, None))

    def _drain(self) -> None:
        with suppress(TridentError):  # the next call raises it as well
            self.running.process_all_available()

    def _counts(self, rows: Mapping[str, list[int]], allowed: tuple[int | None, ...]) -> None:
        keys = [(name, number) for name, numbers in rows.items() for number in numbers]
        found = dict(zip(keys, self.running.state("rows").multi_get(keys), strict=True))
        assert {key: count for key, count in found.items() if count not in allowed} == {}

    def teardown(self) -> None:
        if hasattr(self, "running"):
            try:
                self.source.gone.clear()
                self.run()
            finally:
                self.running.stop()
                self.folder.cleanup()


class _Tree:
    def __init__(self) -> None:
        self.open: set[int] = set()
        self.begun = self.failed = False
        self.age = 0


class Ackers(RuleBasedStateMachine):
    """News of a few trees in any order, doubled and late; the model has the set of open edges where the acker has their xor."""

    roots = st.integers(1, 3)
    edges = st.sets(st.integers(0, 5), max_size=3)

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()
        self.trees: dict[int, _Tree] = {}
        self.acked: list[int] = []
        self.failed: list[int] = []

    def _tree(self, root: int) -> _Tree:
        tree = self.trees.setdefault(root, _Tree())
        tree.age = 0
        return tree

    def _end(self, root: int, told: list[int]) -> None:
        del self.trees[root]
        told.append(root)

    @rule(root=roots, edges=edges)
    def begin(self, root: int, edges: set[int]) -> None:
        self.told.hear(Tracking(begun=[root, sum(1 << edge for edge in edges), SPOUT]))
        tree = self._tree(root)
        if tree.begun:
            return
        if tree.failed:
            self._end(root, self.failed)
            return
        tree.begun, tree.open = True, tree.open ^ edges
        if not tree.open:
            self._end(root, self.acked)

    @rule(root=roots, edges=edges)
    def answer(self, root: int, edges: set[int]) -> None:
        self.told.hear(Tracking(acked=[root, sum(1 << edge for edge in edges)]))
        tree = self._tree(root)
        tree.open ^= edges
        if tree.begun and not tree.open:
            self._end(root, self.acked)

    @rule(root=roots)
    def fail(self, root: int) -> None:
        self.told.hear(Tracking(failed=[root]))
        tree = self._tree(root)
        tree.failed = True
        if tree.begun:
            self._end(root, self.failed)

    @rule()
    def rotate(self) -> None:
        for tree in self.trees.values():
            tree.age += 1
        old = [root for root, tree in self.trees.items() if tree.age == 3]
        assert self.told.acker.rotate() == len(old)
        for root in old:
            del self.trees[root]

    @rule()
    def compare(self) -> None:
        self.teardown()

    def teardown(self) -> None:
        assert self.told.acked == [(SPOUT, root) for root in self.acked]
        assert self.told.failed == [(SPOUT, root) for root in self.failed]
        assert len(self.told.acker) == len(self.trees)


_MACHINES: dict[str, type[RuleBasedStateMachine]] = {
    "maps": Maps,
    "coordinator": Coordinating,
    "readers": Readers,
    "spouts' metadata": Partitions,
    "acker": Ackers,
}


def machines(work: Path, drawn: int) -> Iterator[Trial]:
    """Give each machine in turn, the log's on its four homes, again and again with other seeds."""
    numbers = itertools.count(1)
    with RowServers(work) as servers:

        def stored(home: str) -> Callable[[], Home]:
            return lambda: stored_home(f"{servers.log_at(home)}/{next(numbers)}")

        on_servers = {"PostgreSQL": stored("postgres"), "an object store": stored("s3")}
        homes = {"files": lambda: FileHome(work / f"log-{next(numbers)}"), **on_servers}
        every = {**_MACHINES, **{f"log in {home}": _of(make) for home, make in homes.items()}}
        for at in itertools.count(drawn):
            for name, machine in every.items():
                yield Trial(name, partial(run_machine, machine, at, _EXAMPLES[name]))
            yield Trial("log in ZooKeeper", partial(_in_zookeeper, servers, at, _EXAMPLES["log in ZooKeeper"]))


def _of(make_home: Callable[[], Home]) -> type[Drivers]:
    return type("DriversThere", (Drivers,), {"make_home": staticmethod(make_home)})


def run_machine(
    machine: type[RuleBasedStateMachine], drawn: int, examples: int, shrinks: bool = True
) -> Mapping[str, int]:
    """Run so many examples of a machine from a seed; one that fails is made small, which may take minutes."""
    quiet = settings(
        max_examples=examples, stateful_step_count=_STEPS, deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
    )  # fmt: skip
    run_state_machine_as_test(seed(drawn)(machine), settings=quiet)
    return {"cases": examples}


def _in_zookeeper(servers: RowServers, drawn: int, examples: int) -> Mapping[str, int]:
    """Run histories that are drawn by their seeds: Hypothesis does not allow that the client's threads draw as well."""
    hosts = servers["zookeeper"].hosts
    client = KazooClient(hosts)
    client.start()
    try:
        check_many(ZooKeeperHome(hosts, f"/proof-{drawn}", client), range(drawn * examples, (drawn + 1) * examples))
    finally:
        client.stop()
        client.close()
    return {"cases": examples}
