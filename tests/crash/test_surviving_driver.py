"""What a driver does that lives on: when user code quits the program, when executors are killed, when it is replaced."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Config, TridentTopology
from trident.errors import FencedError, LogHeldError
from trident.log.log_interface import MemoryLog
from trident.operations import ReducerAggregator
from trident.run.running import start
from trident.tuples import TridentTuple

WAIT_S = 30


def config() -> Config:
    return Config(engine="in_process", retry_backoff_ms=0, poll_interval_ms=5, max_spout_pending=1)


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
