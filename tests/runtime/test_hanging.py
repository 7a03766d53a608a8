"""Code of the user's that never returns: the topology ends and says where, and the process can end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.runtime.support import QUICK, dict_state
from tests.state.faults import DictMap
from trident import TridentTopology
from trident.errors import BatchFailedError
from trident.operations import CombinerAggregator, Count
from trident.runtime.daemon_pool import DaemonPool
from trident.state import map_state
from trident.state.interfaces import Key

LIMITS: dict[str, Any] = {**QUICK, "engine": "in_process", "message_timeout_s": 0.1, "max_batch_attempts": 2}
let_go = threading.Event()


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    let_go.clear()
    yield
    let_go.set()


def hangs(word: str) -> str:
    if word == "b":
        let_go.wait()
    return word


class HangingSum(CombinerAggregator[int]):
    def init(self, row: Any) -> int:
        return 1

    def combine(self, left: int, right: int) -> int:
        if left:  # not in the batch's own sum, which begins with zero
            let_go.wait()
        return left + right

    def zero(self) -> int:
        return 0


def words(*texts: str) -> tuple[TridentTopology, Any]:
    topology = TridentTopology("t")
    return topology, topology.new_stream("in", FixedBatchSpout("word: string", 1, *[[text] for text in texts]))


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("call", ["each", "filter", "map"])
def test_a_function_that_hangs_is_named_with_its_tuple(call: str, pending: int) -> None:
    topology, stream = words("a", "b")
    steps = {"each": ("word", hangs, "v"), "filter": ("word", hangs), "map": (lambda row: (hangs(row[0]),),)}
    getattr(stream, call)(*steps[call]).project("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    running = topology.start({**LIMITS, "max_spout_pending": pending})
    with pytest.raises(BatchFailedError) as raised:
        running.process_all_available()
    error = raised.value
    assert (error.txid, error.attempts, error.step) == (2, 1 if pending == 1 else 2, f"in/{call}")
    assert "message_timeout_s=0.1 seconds; it is still on tuple [word='b'] in " in error.cause
    assert f"{__file__}:" in error.cause
    running.stop()
    assert not running.is_active
    assert running.txid == 1


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_combiner_that_hangs_in_a_commit_ends_the_topology(tmp_path: Path, partitions: int, pending: int) -> None:
    topology, stream = words("a", "a")
    state = dict_state({}, partitions=partitions)
    stream.group_by("word").persistent_aggregate(state, HangingSum(), "n")
    running = topology.start({**LIMITS, "max_spout_pending": pending}, log_dir=str(tmp_path))
    with pytest.raises(
        BatchFailedError, match=r"batch 2 failed once in step 'in/aggregate': no end within .* in combine, "
    ):
        running.process_all_available()
    assert running.txid == 1


class SlowMap(DictMap):
    """Takes its time with the first put, longer than user code may."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if not self.entries:
            let_go.wait(0.5)
        super().multi_put(keys, values)


def test_a_store_that_is_slow_ends_nothing(tmp_path: Path) -> None:
    topology, stream = words("a", "b")
    store = SlowMap()
    stream.group_by("word").persistent_aggregate(map_state(lambda *_: store, "opaque"), Count(), "n")
    with topology.start(LIMITS, log_dir=str(tmp_path)) as running:
        running.process_all_available()
        assert running.txid == 2


PROGRAM = """
import sys, time

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count


def hangs(word):
    time.sleep(1e6)


def topology():
    t = TridentTopology("t")
    words = t.new_stream("in", FixedBatchSpout("word: string", 1, ["a"], ["b"]))
    words.filter("word", hangs).persistent_aggregate(MemoryMapState(), Count(), "n")
    return t


if __name__ == "__main__":
    limits = {"message_timeout_s": 0.2, "max_batch_attempts": 2, "retry_backoff_ms": 1}
    with topology().start(limits, engine="in_process") as running:
        running.process_all_available()
"""


@pytest.mark.parametrize("pending", [1, 3])
def test_a_run_whose_function_hangs_ends_with_exit_code_1(tmp_path: Path, pending: int) -> None:
    Path(tmp_path, "program.py").write_text(PROGRAM, encoding="utf-8")
    limits = f"message_timeout_s=0.2 max_batch_attempts=2 retry_backoff_ms=1 max_spout_pending={pending}"
    options = [word for limit in limits.split() for word in ("--conf", limit)]
    command = [sys.executable, "-m", "trident.cli", "run", "program.py:topology", "--engine", "in_process", "--once"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "in step 'in/filter': " in said
    assert "it is still on tuple [word='a'] in hangs" in said


def test_a_program_ends_though_a_function_of_its_topology_hangs(tmp_path: Path) -> None:
    Path(tmp_path, "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "BatchFailedError: batch 1 failed 2 times in step 'in/filter'" in done.stderr


ENDLESS = """
import sys

from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count

topology = TridentTopology("t")
spout = FixedBatchSpout("word: string", 1, ["a"], cycle=True)
topology.new_stream("in", spout).group_by("word").persistent_aggregate(DeltaState.opaque("state"), Count(), "n")
running = topology.start(engine="in_process", log_dir="log", max_spout_pending=int(sys.argv[1]))
while running.txid < 20:
    pass
"""


@pytest.mark.parametrize("pending", [1, 3])
def test_a_program_that_stops_no_topology_ends_as_if_it_did(tmp_path: Path, pending: int) -> None:
    command = [sys.executable, "-c", ENDLESS, str(pending)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# ---- the pool --------------------------------------------------------------------------------------------------------


def test_a_pool_starts_no_thread_while_one_is_idle_and_no_more_than_it_may() -> None:
    pool = DaemonPool(2, "pool-test")
    for number in range(5):
        assert pool.submit(lambda number=number: number).result(10) == number
    running = [one.name for one in threading.enumerate() if one.name.startswith("pool-test")]
    assert len(running) <= 2
    hung = [pool.submit(let_go.wait) for _ in range(4)]
    running = [one.name for one in threading.enumerate() if one.name.startswith("pool-test")]
    assert sorted(running) == ["pool-test_0", "pool-test_1"]
    let_go.set()
    assert [future.result(10) for future in hung] == [True] * 4
    pool.shutdown()
    assert not any(one.name.startswith("pool-test") for one in threading.enumerate())


def test_a_pool_hands_on_what_a_function_raises_and_takes_nothing_after_its_end() -> None:
    pool = DaemonPool(1, "pool-test")
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(10)
    assert list(pool.map(str, range(3))) == ["0", "1", "2"]
    blocked, waiting = pool.submit(let_go.wait), pool.submit(str)
    while not blocked.running():
        threading.Event().wait(0.001)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="the pool pool-test was shut down"):
        pool.submit(str)
    let_go.set()
    pool.shutdown()
    assert waiting.cancelled()
