"""Drivers that read partitioned sources are killed; what a driver or an executor does that lives on, or dies in a run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryBackingMap, MemoryData, MemoryMapState
from tests.crash.case import Case, Pairing
from tests.crash.driver_runs import DriverServer, run_here
from tests.harness.forked import die
from tests.harness.sqlite_map import sqlite_state
from tests.spout.folder_source import noted, numbers_in, spout_of, write
from trident import Config, TridentTopology
from trident.errors import BackendError, FencedError, LogHeldError
from trident.log.log_interface import MemoryLog
from trident.operations import Count, ReducerAggregator, Sum
from trident.run.running import start
from trident.spout import SpoutType
from trident.state import Key, OpaqueMap, Sentinel, StateConf, StateSpec
from trident.steps.key_columns import partition_of
from trident.tuples import TridentTuple

WAIT_S = 30


def config() -> Config:
    return Config(engine="in_process", retry_backoff_ms=0, poll_interval_ms=5, max_spout_pending=1)


@dataclass
class SlowStore:
    """Two partitions: the first one fails at once, in the first try; the second one answers only when it may."""

    data: list[MemoryData] = field(default_factory=lambda: [MemoryData(), MemoryData()])
    asked: threading.Event = field(default_factory=threading.Event)
    answers: threading.Event = field(default_factory=threading.Event)
    tried_again: threading.Event = field(default_factory=threading.Event)
    in_memory = True

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> OpaqueMap:
        data = self.data[partition_index]
        backing = MemoryBackingMap[Any](data) if conf.read_only else SlowMap(self, data, partition_index)
        return OpaqueMap(backing, "slow", partition_index)


class SlowMap(MemoryBackingMap[Any]):
    def __init__(self, store: SlowStore, data: MemoryData, partition: int) -> None:
        super().__init__(data)
        self.store, self.partition, self.tries = store, partition, 0

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        if sentinel.txid:  # no claim of the start
            self.tries += 1
            if self.tries > 1:
                self.store.tried_again.set()
        super().move_sentinel(sentinel, force)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        if self.partition == 1:
            self.store.asked.set()
            assert self.store.answers.wait(WAIT_S)
        elif self.tries == 1:
            assert self.store.asked.wait(WAIT_S)
            raise BackendError("no answer")
        return super().multi_get(keys)


def test_a_batch_is_not_tried_again_while_a_partition_is_still_at_the_last_try() -> None:
    keys = ["a", "b", "c", "d"]
    assert {partition_of((key,), 2) for key in keys} == {0, 1}
    store = SlowStore()
    topology = TridentTopology("slow")
    stream = topology.new_stream("rows", FixedBatchSpout("key", 8, *[(key,) for key in keys * 2]))
    stream.group_by("key").persistent_aggregate(StateSpec(store, 2), Count(), "n")
    with start(topology.graph(), config()) as running:
        assert store.asked.wait(WAIT_S)
        # The first partition fails now. A second try, on the same state objects, would be mixed up with the first.
        too_early = store.tried_again.wait(0.3)
        store.answers.set()
        running.process_all_available()
        assert running.state("n").multi_get([(key,) for key in keys]) == [2, 2, 2, 2]
    assert store.tried_again.is_set()
    assert not too_early


def quit_the_program(word: str) -> bool:
    raise SystemExit(f"cannot go on at {word}")


class QuittingReducer(ReducerAggregator[int]):
    """Runs where the state is, and ends the program at the number 2."""

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        if tuple[0] == 2:
            raise SystemExit("cannot go on")
        return curr + int(tuple[0])


def test_a_function_that_quits_the_program_ends_the_topology() -> None:
    topology = TridentTopology("quits")
    stream = topology.new_stream("rows", FixedBatchSpout("word", 1, ("a",)))
    stream.filter("word", quit_the_program).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    running = start(topology.graph(), config())
    with pytest.raises(SystemExit, match="cannot go on at a"):
        running.await_termination(WAIT_S)
    assert not running.is_active


def test_an_update_that_quits_the_program_ends_the_topology() -> None:
    topology = TridentTopology("quits")
    stream = topology.new_stream("rows", FixedBatchSpout(["word", "n"], 1, ("a", 1), ("a", 2)))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), "n", QuittingReducer(), "sum")
    running = start(topology.graph(), config())
    with pytest.raises(SystemExit, match="cannot go on"):
        running.await_termination(WAIT_S)
    assert (running.txid, running.is_active) == (1, False)


def test_a_memory_log_goes_on_in_the_next_epoch_and_fences_who_had_it() -> None:
    first = MemoryLog("crash")
    second = first.reopen()
    assert (second.epoch, second.state.incarnation) == (first.epoch + 1, first.state.incarnation)
    with pytest.raises(FencedError, match="this writer is epoch 1, but epoch 2 has taken over"):
        first.check_owner()
    with pytest.raises(LogHeldError, match="in memory is held by epoch 2, which is this very process"):
        second.reopen()
    third = second.reopen(takeover=True)
    third.check_owner()
    third.close()
    third.reopen().check_owner()


def test_a_driver_that_finds_later_batches_in_the_store_says_that_it_was_replaced(tmp_path: Path) -> None:
    # Paused between begin_commit and multi_get: what it meets first is the store, not the log.
    assert run_here(Case("P4", Pairing("transactional", "opaque"), how="park"), tmp_path).is_exact


ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_killed_executors_cost_no_tuple_and_double_none(tmp_path: Path) -> None:
    spark = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **spark, "SPARK_WORKER_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.crash.executors"]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PAIRINGS = [("transactional", "transactional"), ("transactional", "opaque"), ("opaque", "opaque")]


POINTS = {"logged": "processed", "committed": "committed", "recorded": "recorded"}
"""Where a driver dies: when the metadata are logged, when all states have committed, when the record is written."""


def topology_of(life: dict[str, Any], before: Any = None) -> TridentTopology:
    """Count each row by itself, and sum those of each partition."""
    folder, kind = Path(life["folder"]), SpoutType(life["spout"])
    spout = spout_of(kind, folder / "source", before=before) if before else spout_of(kind, folder / "source")
    topology = TridentTopology("t")
    stream = topology.new_stream("s", spout)
    rows, sums = (sqlite_state(str(folder / f"{name}.db"), life["state"]) for name in ("rows", "sums"))
    stream.group_by("partition", "n").persistent_aggregate(rows, Count(), "count", state_name="rows")
    stream.group_by("partition").persistent_aggregate(sums, "n", Sum(), "sum", state_name="sums")
    return topology


def config_of(life: dict[str, Any]) -> Config:
    return Config(
        engine="in_process",
        log_dir=str(Path(life["folder"], "log")),
        max_spout_pending=life["pending"],
        poll_interval_ms=1,
        retry_backoff_ms=1,
    )


def count_rows(life: dict[str, Any]) -> None:
    def before(partition: str, attempt: Any) -> None:
        if life["point"] == "reading" and attempt.txid == life["txid"] and partition == life["partition"]:
            die()

    def observe(step: str, attempt: Any) -> None:
        if POINTS.get(life["point"]) == step and attempt.txid == life["txid"]:
            die()

    with start(topology_of(life, before).graph(), config_of(life), None, observe) as running:
        running.process_all_available()
    Path(life["folder"], "done").touch()


@pytest.fixture(scope="module")
def drivers() -> Iterator[DriverServer]:
    drivers = DriverServer(count_rows)
    yield drivers
    drivers.close()


def life_of(folder: Path, spout: str, state: str, pending: int, **more: Any) -> dict[str, Any]:
    (folder / "source").mkdir(exist_ok=True)
    known = {"folder": str(folder), "spout": spout, "state": state, "pending": pending, "point": "", "txid": 0}
    return {**known, "partition": "part-b", **more}


def counted(life: dict[str, Any]) -> tuple[dict[Any, int], dict[str, int]]:
    """Return, from the states, how often each row counts, and the sum of each partition."""
    source = Path(life["folder"], "source")
    rows = [(path.name, int(line)) for path in sorted(source.glob("part-*")) for line in path.read_bytes().split()]
    names = list(numbers_in(source))
    with start(topology_of(life).graph(), config_of(life)) as running:
        counts, sums = (
            running.state("rows").multi_get(rows),
            running.state("sums").multi_get([(name,) for name in names]),
        )
    return dict(zip(rows, counts, strict=True)), dict(zip(names, sums, strict=True))


def assert_exact(life: dict[str, Any]) -> None:
    counts, sums = counted(life)
    assert {row: count for row, count in counts.items() if count != 1} == {}
    assert sums == numbers_in(Path(life["folder"], "source"))


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("point", ["reading", "logged", "committed", "recorded"])
@pytest.mark.parametrize(("spout", "state"), PAIRINGS)
def test_a_killed_driver_leaves_every_row_counted_once(
    spout: str, state: str, point: str, pending: int, drivers: DriverServer, tmp_path: Path
) -> None:
    life = life_of(tmp_path, spout, state, pending, point=point, txid=5)
    source = tmp_path / "source"
    for partition, size in (("a", 17), ("b", 20), ("c", 5)):
        write(source, partition, range(size))
    assert drivers.wait(drivers.start(life)) == {"ended": -signal.SIGKILL}
    assert not (tmp_path / "done").exists()
    write(source, "a", range(100, 109))  # a replay must not see them, a batch that is read again may
    write(source, "d", range(6))
    assert drivers.wait(drivers.start({**life, "point": ""})) == {"ended": 0}
    replayed = noted(source, "again-5-part-a"), noted(source, "again-5-part-b")
    is_replayed = spout == "transactional" and point in ("logged", "committed")
    assert replayed == ((1, 1) if is_replayed else (0, 0))
    assert_exact(life)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("spout", "state"), PAIRINGS)
def test_drivers_that_are_killed_at_random_count_every_row_once(
    spout: str, state: str, seed: int, drivers: DriverServer, tmp_path: Path
) -> None:
    rng = random.Random(f"{spout} {state} {seed}")
    life, source = life_of(tmp_path, spout, state, rng.choice([1, 3])), tmp_path / "source"
    kills, ended, more = 0, False, 60
    while not ended or more:
        if more:
            more -= 1
            write(source, rng.choice("abcdef"), [rng.getrandbits(40) for _ in range(rng.randrange(1, 60))])
        wait = {"kill_after_s": rng.uniform(0.05, 0.4)} if more else {}
        end = drivers.wait(drivers.start({**life, **wait}))
        ended = end == {"ended": 0}
        kills += end == {"ended": -signal.SIGKILL}
    assert kills > 10
    assert_exact(life)
