"""A topology of computed keys in a driver of its own, which `scale.py` watches: `python -m tests.benchmarks._scale_run {...}`.

It starts Spark, says `idle` and waits for a line, so that its memory can be told before and after. At the end it prints the
figures of its batches.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyspark

from states.delta import DeltaState
from states.redis import RedisState
from tests.benchmarks._drawn import DrawnKeys
from trident import Config, TridentCollector, TridentTopology, TridentTuple
from trident.operations import BaseStateUpdater, Count
from trident.run import running
from trident.spark.session import spark_session, stop_session
from trident.spout.interfaces import TransactionAttempt
from trident.state import CombinerUpdates

_CHECKED = 1_000  # keys whose counts are compared


class Tally(BaseStateUpdater[Any]):
    """For `partition_persist`: writes how many tuples a partition got, under the word of the first one."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.multi_update([(tuples[0][0],)], CombinerUpdates(max, [len(tuples)]))


class Clocked:
    """An observer: seconds, and the seconds of processor time of this process, of each batch."""

    def __init__(self) -> None:
        self._at, self._cpu = time.perf_counter(), time.process_time()
        self.seconds: list[float] = []
        self.cpu_s: list[float] = []

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Note the end of a batch; what was before it belongs to it, so one batch may be in flight."""
        if point == "succeeded":
            now, cpu = time.perf_counter(), time.process_time()
            self.seconds.append(now - self._at)
            self.cpu_s.append(cpu - self._cpu)
            self._at, self._cpu = now, cpu


def run(
    store: str, address: str, spout: dict[str, Any], settings: dict[str, Any], partitions: int = 2,
    persist: bool = False, engine: str = "spark", checked: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Run the batches of a `DrawnKeys(**spout)` into a state on `store` at `address`, and return the figures.

    With `checked`, the counts are compared with those that the spout must give.
    """
    drawn = DrawnKeys(**spout)
    topology = TridentTopology("scale")
    spec = DeltaState.opaque(address) if store == "delta" else RedisState.opaque(address)
    words = topology.new_stream("words", drawn)
    if persist:
        counts = words.partition_persist(spec, Tally()).parallelism_hint(partitions)
    else:
        counts = words.group_by("word").persistent_aggregate(spec, Count(), "count").parallelism_hint(partitions)
    clocked = Clocked()
    config = Config.of({"max_spout_pending": 1, "engine": engine, **settings})
    with running.start(topology.graph(), config, None, clocked) as started:
        started.process_all_available()
        assert started.status["failures"] == 0, started.status
        rows = [batch["numInputRows"] for batch in started.recent_progress]
        assert set(rows) == {drawn.rows}, rows
        if checked and not persist and not drawn.skew:
            step = max(1, drawn.distinct // _CHECKED)
            keys = [(word,) for word in drawn.words(np.arange(0, drawn.distinct, step)).to_pylist()]
            found = started.state(counts).multi_get(keys)
            assert set(found) == {drawn.count_of_each()}, set(found)
        progress = started.recent_progress
    return {
        "seconds": clocked.seconds,
        "driver_cpu_s": clocked.cpu_s,
        "commit_ms": [batch["durationMs"]["commit"] for batch in progress],
        "keys": [sum(batch["stateKeysUpdated"].values()) for batch in progress],
    }


def collected_bytes(context: Any) -> int:
    """Return the bytes of all task results that came to the driver, as Spark counted them."""
    jvm, none = context._jvm, context._jvm.java.util.ArrayList()
    no_quantiles = context._gateway.new_array(jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(none, False, False, no_quantiles, none)
    return sum(int(stages.apply(at).resultSize()) for at in range(stages.size()))


def main() -> None:
    """Start Spark, wait for the word, run."""
    task = json.loads(sys.argv[1])
    master, conf = task.pop("master", None), task.pop("spark_conf", {})
    spark = None
    if task.get("engine", "spark") == "spark":
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        spark = spark_session("trident-scale", master, conf)
        spark.sparkContext.parallelize(range(64), 2).map(lambda number: number + 1).collect()
    print("idle", flush=True)
    sys.stdin.readline()
    before = collected_bytes(spark.sparkContext) if spark is not None else 0
    figures = run(**task)
    if spark is not None:
        figures["collected_bytes"] = collected_bytes(spark.sparkContext) - before
        stop_session(spark)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
