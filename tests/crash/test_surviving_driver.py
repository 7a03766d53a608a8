"""What a driver does that lives on: when user code quits the program, when executors are killed, when it is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryBackingMap, MemoryData, MemoryMapState
from trident import Config, TridentTopology
from trident.errors import BackendError, FencedError, LogHeldError
from trident.log.log_interface import MemoryLog
from trident.operations import ReducerAggregator
from trident.run.running import start
from trident.state import Key, OpaqueMap, Sentinel, StateConf
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


class QuittingReducer(ReducerAggregator[int]):
    """Runs where the state is, and ends the program at the number 2."""

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return curr + quit_at_two(tuple[0])


def quit_at_two(n: int) -> int:
    if n == 2:
        raise SystemExit("cannot go on")
    return n


@pytest.mark.parametrize("where", ["a function", "an update"])
def test_code_that_quits_the_program_ends_the_topology(where: str) -> None:
    topology = TridentTopology("quits")
    stream = topology.new_stream("rows", FixedBatchSpout(["word", "n"], 1, ("a", 1), ("a", 2)))
    if where == "a function":
        stream = stream.each("n", quit_at_two, "m: bigint")
    grouped = stream.group_by("word")
    grouped.persistent_aggregate(MemoryMapState(), "n", QuittingReducer(), "sum")
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
