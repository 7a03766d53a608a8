"""Resident workers: what becomes of attempts when one is lost, hangs or is missing; what is refused; and their ends."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts import FixedBatchSpout
from spouts.spark import DataFrameSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.crash.case import ScriptedSpout, rows_of
from tests.crash.fuse import Fuse
from tests.harness.commands import until
from tests.harness.servers import Server
from tests.harness.topology_runs import run_all, start
from tests.run.random_topologies import check
from trident import Config, Stream, TridentTopology
from trident.engine import resident_runner
from trident.engine.resident_runner import ResidentRunner
from trident.errors import BatchFailedError, ConfigError, EnvironmentProblem
from trident.operations import Count, Sum
from trident.run.batch_replay import Replay
from trident.run.running import RunningTopology
from trident.spark.spark_resources import Slots
from trident.spout.interfaces import TransactionAttempt
from trident.state import StateSpec
from trident.web.running_pages import TridentPages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 24
Declare = Callable[[Stream], Stream]


def declared(steps: Declare, rows: int = ROWS) -> tuple[TridentTopology, Any]:
    """Count numbers, two a batch."""
    topology = TridentTopology("resident")
    numbers = topology.new_stream("numbers", FixedBatchSpout("n: int", 2, *[(n,) for n in range(rows)]))
    return topology, steps(numbers).group_by("n").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")


def no_job_is_left(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()  # which hears of an end a little later
    until(lambda: not list(tracker.getActiveJobsIds()), "Spark runs no job any more")


class Once:
    """Lets rows pass; at one of them, once, it does what it was made for."""

    def __init__(self, folder: Path, at: int, what: str) -> None:
        self.path, self.at, self.what = folder / f"{what}-{at}", at, what

    def __call__(self, n: int) -> bool:
        if n == self.at and not self.path.exists():
            self.path.write_text(str(os.getpid()))
            if self.what.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        return True


@pytest.mark.long
def test_an_attempt_fails_with_its_worker_in_any_stage_and_loses_none(spark: SparkSession, tmp_path: Path) -> None:
    first, second = Once(tmp_path, 7, "kill"), Once(tmp_path, 17, "kill")
    topology, counts = declared(
        lambda numbers: numbers.filter("n", first).partition_by("n").filter("n", second).parallelism_hint(2)
    )
    with start(topology, "spark", workers="resident", max_spout_pending=1) as running:
        running.process_all_available()
        assert running.state(counts).multi_get([(n,) for n in range(ROWS)]) == [1] * ROWS
        assert running.status["failures"] == 2
        assert "resident worker" in running.status["lastFailure"]
        assert "has ended" in running.status["lastFailure"]
        assert "batches are messages to tasks of Spark that stay, not jobs" in str(running.explain())
    assert {path.name for path in tmp_path.iterdir()} == {"kill-7", "kill-17"}
    no_job_is_left(spark)
    assert spark.sparkContext.parallelize(range(4), 2).sum() == 6  # its cores are free


def test_without_zeromq_the_start_says_what_to_install(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    for name in ("trident.engine.resident_runner", "trident.spark.mailbox", "trident.spark.worker_group"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(
        EnvironmentProblem, match=r'workers="resident" needs the package pyzmq .*trident-spark\[spark\]'
    ):
        run_all(declared(lambda numbers: numbers)[0], "spark", workers="resident")


def test_an_attempt_that_is_dropped_within_a_send_ends_and_holds_up_nothing(spark: SparkSession) -> None:
    """Python's collector may drop it in a thread that is sending to its worker, and so holds that connection's lock."""
    topology, counts = declared(lambda numbers: numbers)
    with start(topology, "spark", workers="resident") as running:
        running.process_all_available()
        runner: Any = running.opened.runner
        pool = runner.pool
        run = pool.begin(TransactionAttempt(99, 0))
        run.used.update(run.crew)
        run.sent[0] = {0: 1}
        dropped: list[Any] = [pool.keep(run)]
        dropped.append(dropped)  # a cycle, as an error's traceback is part of one
        with run.crew[0].peer._lock:
            del dropped
            gc.collect()
        until(lambda: run.number not in pool._runs, "the attempt that was dropped has ended")
        assert running.state(counts).multi_get([(0,)]) == [1]


@pytest.mark.long
def test_a_worker_that_hangs_is_not_waited_for_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    hangs = Once(tmp_path, 7, "hang")
    topology, counts = declared(lambda numbers: numbers.filter("n", hangs))
    with start(topology, "spark", workers="resident", message_timeout_s=1.0) as running:
        running.process_all_available()
        assert running.state(counts).multi_get([(n,) for n in range(ROWS)]) == [1] * ROWS
        assert running.status["failures"] >= 1
        until(lambda: not Path("/proc", hangs.path.read_text()).exists(), "the worker that hangs has ended")


@pytest.mark.long
def test_missing_cores_are_said_and_batches_go_on_without_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Slots, "total", property(lambda self: 3))
    monkeypatch.setattr(resident_runner, "_PATIENCE_S", 0.0)
    topology, counts = declared(lambda numbers: numbers)
    with caplog.at_level(logging.WARNING), start(topology, "spark", workers="resident", parallelism=3) as running:
        running.process_all_available()
        assert running.state(counts).multi_get([(n,) for n in range(ROWS)]) == [1] * ROWS
    assert " of 3 resident workers are there after 0 s; the others wait for a core of Spark" in caplog.text
    no_job_is_left(spark)


@pytest.mark.long
def test_two_topologies_share_the_cores_and_a_third_is_told_that_there_is_none(spark: SparkSession) -> None:
    (first, counts), (second, others) = declared(lambda numbers: numbers), declared(lambda numbers: numbers)
    settings: dict[str, Any] = {"workers": "resident", "parallelism": 1}
    with start(first, "spark", **settings) as one, start(second, "spark", **settings) as two:
        one.process_all_available()
        two.process_all_available()
        assert one.state(counts).multi_get([(0,)]) == two.state(others).multi_get([(0,)]) == [1]
        with pytest.raises(EnvironmentProblem, match=r"has 2 slots, of which 2 run other topologies"):
            start(declared(lambda numbers: numbers)[0], "spark", **settings)
        with pytest.raises(
            EnvironmentProblem, match=r"all 2 slots of local\[2\] are kept by workers of other topologies"
        ):
            start(declared(lambda numbers: numbers)[0], "spark")


def test_what_is_not_resident_is_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology, _ = declared(lambda numbers: numbers)
    with pytest.raises(ConfigError, match=r'workers="resident": engine="in_process" has no workers'):
        run_all(topology, "in_process", workers="resident")
    with pytest.raises(ConfigError, match=r'workers="resident": Spark Connect has no tasks that'):
        run_all(topology, "spark", workers="resident", master="sc://127.0.0.1:1")
    topology = TridentTopology("frame")
    rows = topology.new_stream("rows", DataFrameSpout(spark.range(3), tmp_path / "rows"))
    rows.persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    with pytest.raises(ConfigError, match=r"workers=\"resident\": stream 'rows' is read by Spark jobs of its own"):
        run_all(topology, "spark", workers="resident")


def test_random_topologies_give_what_plain_python_gives(spark: SparkSession) -> None:
    assert sum(case.compare() for case in check(range(4), "spark", workers="resident")) > 36


def test_large_batches_go_to_the_workers_and_verification_does_not(spark: SparkSession, tmp_path: Path) -> None:
    topology, counts = declared(lambda numbers: numbers.partition_by("n").parallelism_hint(3))
    settings: dict[str, Any] = {
        "workers": "resident",
        "auto_bytes": 0,
        "log_dir": str(tmp_path),
        "max_spout_pending": 1,
    }
    with start(topology, "auto", **settings) as running:
        running.process_all_available()
        assert running.state(counts).multi_get([(n,) for n in range(ROWS)]) == [1] * ROWS
        assert {each["engine"] for each in running.recent_progress} == {"spark"}
        assert "large batches are messages" in str(running.explain())
        assert TridentPages(running).topology()["engine"] == "auto, resident workers"
    with Replay(topology.graph(), Config.of(settings)) as replay:  # in this process, whatever the settings say
        assert sum(1 for _ in replay.until()) == ROWS // 2


def test_a_worker_that_cannot_be_prepared_fails_the_attempt_as_data(spark: SparkSession) -> None:
    class Unready:
        def prepare(self, conf: Any, context: Any) -> None:
            raise ConnectionError("the store is away")

        def is_keep(self, tuple: Any) -> bool:
            return True

    topology, _ = declared(lambda numbers: numbers.filter("n", Unready()))
    with pytest.raises(BatchFailedError, match="failed 2 times in step 'prepare': ConnectionError: the store is away"):
        run_all(topology, "spark", workers="resident", max_batch_attempts=2)


_STATES = ("words", "shelves")


@dataclass(frozen=True)
class ResidentLife:
    """The options of a topology that starts once, or is stopped on the way and started again.

    `spout`: as of `ScriptedSpout`.
    `kind`: of the states.
    `placed`: where each state commits.
    `hints`: how many partitions each state has, and the exchange before them.
    `kills`: at which of the steps of batches that the driver sees, counted from the first, a worker is killed.
    `stops_after`: how many batches the first start records; 0: all.
    `then`: the workers of the second start.
    """

    seed: int
    store: str = "memory"
    spout: str = "transactional"
    kind: str = "opaque"
    placed: tuple[str, str] = ("driver", "driver")
    hints: tuple[int, int, int] = (1, 1, 1)
    cache: int = 0
    pending: int = 1
    parallelism: int = 2
    batch_size: int = 10
    kills: tuple[int, ...] = ()
    stops_after: int = 0
    then: str = "resident"

    @staticmethod
    def drawn(seed: int) -> ResidentLife:
        rng = random.Random(f"life {seed}")
        store = rng.choice(["memory", "redis", "redis", "delta"])
        spout = rng.choice(["transactional", "repeating", "changing"])
        kinds = ["opaque", "transactional"] if spout == "transactional" else ["opaque"]
        places = ["driver"] if store == "memory" else ["driver", "executors"]
        drawn = ResidentLife(
            seed=seed, store=store, spout=spout, kind=rng.choice(kinds),
            placed=(rng.choice(places), rng.choice(places)),
            hints=(rng.randint(1, 8), rng.randint(1, 8), rng.randint(1, 8)),
            cache=rng.choice([0, 1, 100]) if store == "redis" else 0,
            pending=rng.randint(1, 8), parallelism=rng.choice([1, 2, 2]), batch_size=rng.choice([3, 10, 25]),
            kills=tuple(rng.sample(range(1, 40), rng.choice([0, 1, 2, 3]))),
            stops_after=0 if store == "memory" else rng.choice([0, 0, 1, 3]),
            then=rng.choice(["resident", "resident", "jobs"]),
        )  # fmt: skip
        return replace(drawn, hints=(1, 1, drawn.hints[2])) if store == "delta" else drawn

    def wrong(self, folder: Path, redis: int) -> tuple[list[str], int]:
        """Run it; return what the states hold that they must not, and how many attempts failed."""
        failures, found = 0, list[dict[Any, Any]]()
        starts = [(self.stops_after, "resident"), (0, self.then)] if self.stops_after else [(0, "resident")]
        for life, (most, workers) in enumerate(starts):
            with self._started(folder, redis, life, workers, most) as (running, enough):
                if most:
                    enough.wait(120)
                else:
                    running.process_all_available()
                    found = [dict(_entries(running, name)) for name in _STATES]
                failures += running.status["failures"]
        rows = rows_of(self.seed, self._rows)
        words, shelves = Counter[Any](), Counter[Any]()
        for row in rows:
            words[(row.word,)] += row.weight
            shelves[row.shelf, row.odd] += 1
        return [
            f"{name}: {sorted(held.items() ^ wanted.items(), key=repr)[:8]}"
            for name, held, wanted in zip(_STATES, found, (dict(words), dict(shelves)), strict=True)
            if held != wanted
        ], failures

    @property
    def _rows(self) -> int:
        return 12 * self.batch_size

    def _topology(self, folder: Path, redis: int, life: int) -> TridentTopology:
        topology = TridentTopology(f"life{self.seed}x{os.getpid()}")
        spout = ScriptedSpout(self.spout, self.seed, life, Fuse(), self._rows, self.batch_size)
        rows = topology.new_stream("rows", spout)
        words, shelves, exchange = self.hints
        routed = rows.partition_by("shelf").parallelism_hint(exchange).filter("weight", _is_positive)
        first, second = (self._spec(topology.name, name, folder, redis) for name in _STATES)
        rows.group_by("word").persistent_aggregate(first, "weight", Sum(), "sum", state_name="words").parallelism_hint(
            words
        ).placement(self.placed[0])
        routed.group_by("shelf", "odd").persistent_aggregate(
            second, Count(), "rows", state_name="shelves"
        ).parallelism_hint(shelves).placement(self.placed[1])
        return topology

    def _spec(self, topology: str, name: str, folder: Path, redis: int) -> StateSpec:
        spec: StateSpec
        if self.store == "redis":
            url = f"redis://127.0.0.1:{redis}/0"
            spec = getattr(RedisState, self.kind)(url, prefix=f"{topology}-{name}", cache=self.cache)
        elif self.store == "delta":
            spec = getattr(DeltaState, self.kind)(str(folder / name), fsync=False)
        else:
            spec = getattr(MemoryMapState, self.kind)()
        return spec

    @contextmanager
    def _started(
        self, folder: Path, redis: int, life: int, workers: str, most: int
    ) -> Iterator[tuple[RunningTopology, threading.Event]]:
        enough, seen = threading.Event(), Counter[str]()
        opened: list[RunningTopology] = []
        rng = random.Random(f"kills {self.seed} {life}")

        def observe(point: str, attempt: Any) -> None:
            seen.update([point])
            if seen["recorded"] >= most:
                enough.set()
            if seen.total() in self.kills and opened and workers == "resident":
                _kill_one(opened[0], rng)

        settings = {
            "workers": workers, "parallelism": self.parallelism, "max_spout_pending": self.pending,
            "log_dir": str(folder / "log"), "max_batch_attempts": 50,
        }  # fmt: skip
        with start(self._topology(folder, redis, life), "spark", observe, **settings) as running:
            opened.append(running)
            yield running, enough


def _is_positive(weight: int) -> bool:
    return weight >= 0


def _kill_one(running: RunningTopology, rng: random.Random) -> None:
    if there := _processes(running):
        with suppress(ProcessLookupError):
            os.kill(rng.choice(there), signal.SIGKILL)


def _processes(running: RunningTopology) -> list[int]:
    runner = running.opened.runner
    assert isinstance(runner, ResidentRunner)
    return [place.pid for place in runner.pool.places if place.run]


def _entries(running: RunningTopology, name: str) -> Iterator[tuple[Any, Any]]:
    yield from ((row[:-1], row[-1]) for row in running.state(name).get_tuples())


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(1, 25), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(25, 225))]
)
def test_all_options_count_each_row_once(seed: int, spark: SparkSession, redis_server: Server, tmp_path: Path) -> None:
    life = ResidentLife.drawn(seed)
    wrong, _ = life.wrong(tmp_path, redis_server.port)
    assert not wrong, f"{life}: {wrong}"


@pytest.mark.long
def test_an_oracle_that_expects_other_rows_finds_them(
    spark: SparkSession, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, rows = ResidentLife(seed=0, batch_size=3), rows_of
    monkeypatch.setattr(sys.modules[__name__], "rows_of", lambda seed, count: rows(seed, count + 1))
    wrong, failures = life.wrong(tmp_path, redis_server.port)
    assert [each.partition(":")[0] for each in wrong] == ["words", "shelves"]
    assert failures == 0
