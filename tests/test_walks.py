"""The walks: how many files a reader opens who follows a batch, a look-up, a query's batch, a start. They only get shorter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.walks import Walk, Walker, shortest
from trident import TridentState, TridentTopology, exactly_once
from trident.operations import Count, Split
from trident.runtime.running import RunningTopology
from trident.state import StateSpec

WARM_BATCH = Walk(49, 235)
LOOK_UP = Walk(14, 25)
START = Walk(87, 392)
EXACTLY_ONCE = Walk(46, 176)
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
            batches = [walker.walk(lambda: feeder.feed([["the cat and the dog"]])) for _ in range(3 * WARM)]
            view = running[0].state(counts)
            keys = [("the",), ("cat",)]
            look_ups = [walker.walk(lambda: view.multi_get(keys)) for _ in range(2 * WARM)]
            assert view.multi_get(keys) == [6 * WARM, 3 * WARM]
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
