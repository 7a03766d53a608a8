"""The walks: how many files a reader opens who follows a batch, a look-up, a query's batch, a start. They only get shorter."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.servers import Server
from trident import TridentState, TridentTopology, exactly_once
from trident.operations import Count, Split
from trident.run.running import RunningTopology
from trident.state import StateSpec

ROOT = Path(__file__).parents[1]
_PRODUCT = tuple(f"{ROOT / name}/" for name in ("trident", "states", "spouts"))


class Walk(NamedTuple):
    """How many files take part, and how often the next call, in the same thread, is in another file."""

    files: int
    changes: int


class Walker:
    """Follows the calls of this thread, and of all that start later, for as long as it is open."""

    def __init__(self) -> None:
        self._walks: dict[int, list[str]] | None = None

    @contextmanager
    def opened(self) -> Iterator[Walker]:
        before = sys.getprofile()
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield self
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    def walk(self, act: Callable[[], Any], alone: bool = False) -> Walk:
        """Return what runs until `act` returns, in all threads; `alone`: in this thread."""
        walks = self._walks = {}
        try:
            act()
        finally:
            self._walks = None
        me = threading.get_ident()
        seen = [list(each) for thread, each in list(walks.items()) if thread == me or not alone]
        changes = sum(a != b for each in seen for a, b in pairwise(each))
        return Walk(len({file for each in seen for file in each}), changes)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        walks = self._walks
        if walks is not None and event == "call" and frame.f_code.co_filename.startswith(_PRODUCT):
            walks.setdefault(threading.get_ident(), []).append(frame.f_code.co_filename)


def shortest(walks: list[Walk]) -> Walk:
    """Return the fewest files and changes of several walks: a busy machine adds looks at the clock, and nothing else."""
    return Walk(min(each.files for each in walks), min(each.changes for each in walks))


WARM_BATCH = Walk(45, 200)
LOOK_UP = Walk(12, 24)
START = Walk(77, 387)
EXACTLY_ONCE = Walk(40, 152)
SPARE = Walk(2, 12)
WARM = 3


def test_a_warm_batch_a_look_up_and_a_start_do_not_grow(redis_server: Server, tmp_path: Path) -> None:
    feeder, topology = FeederBatchSpout("sentence: string"), TridentTopology("walks")
    counts = _counted(topology, feeder, RedisState.opaque(f"redis://127.0.0.1:{redis_server.port}/0", prefix="walks"))
    settings: dict[str, Any] = {"engine": "in_process", "log_dir": str(tmp_path / "log")}
    with topology.start(**settings):  # what a process computes once counts with the first start
        pass
    running: list[RunningTopology] = []
    with Walker().opened() as walker:
        started = walker.walk(lambda: running.append(topology.start(**settings)), alone=True)
        with running[0]:
            batches = [walker.walk(lambda: feeder.feed([["the cat and the dog"]])) for _ in range(9 * WARM)]
            view = running[0].state(counts)
            keys = [("the",), ("cat",)]
            look_ups = [walker.walk(lambda: view.multi_get(keys)) for _ in range(2 * WARM)]
            assert view.multi_get(keys) == [18 * WARM, 9 * WARM]
    _check("START", started, START)
    _check("WARM_BATCH", shortest(batches[WARM:]), WARM_BATCH)
    _check("LOOK_UP", shortest(look_ups[WARM:]), LOOK_UP)


def test_a_batch_of_exactly_once_does_not_grow(spark: SparkSession) -> None:
    count = exactly_once("walks", MemoryMapState.opaque(), group_by="word", aggregate=Count(), value="count")
    rows = spark.createDataFrame([("a",), ("b",)], "word string")
    with count, Walker().opened() as walker:
        names = (f"{number:03}" for number in range(5 * WARM))
        batches = [walker.walk(lambda: count.write(rows, batch=next(names))) for _ in range(5 * WARM)]
    _check("EXACTLY_ONCE", shortest(batches[WARM:]), EXACTLY_ONCE)


def _counted(topology: TridentTopology, feeder: FeederBatchSpout, spec: StateSpec) -> TridentState:
    words = topology.new_stream("lines", feeder).each("sentence", Split(), "word: string")
    return words.group_by("word").persistent_aggregate(spec, Count(), "count")


def _check(name: str, found: Walk, most: Walk) -> None:
    assert found.files <= most.files, f"{name}: {found}, at most {most} are allowed"
    assert found.changes <= most.changes, f"{name}: {found}, at most {most} are allowed"
    lower = found.files + SPARE.files < most.files or found.changes + SPARE.changes < most.changes
    assert not lower, f"{name} is {found} now: write it in {Path(__file__).name}, in place of {most}"
