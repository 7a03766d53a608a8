"""Whole jobs through a function for `foreachBatch`: everything at once, random ones, and processes that die in the middle."""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import col, expr, rand

from states.memory import MemoryMapState
from tests.harness.commands import environment, trident, write_module
from tests.harness.forked import run_python
from tests.harness.sqlite_map import sqlite_state
from trident import QueryBatches, TridentTopology, open_state
from trident.operations import Count, Sum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]

JOB = """
    from datetime import timedelta

    from tests.harness.sqlite_map import sqlite_state
    from trident import QueryBatches, TridentTopology
    from trident.operations import Count, Sum, TumblingDurationWindow

    def whole(euros):
        return int(euros)

    minute = TumblingDurationWindow.of(timedelta(minutes=1)).by_event_time("at_ms", delay=timedelta(0))
    topology = TridentTopology("orders")
    rows = topology.new_stream("rows", QueryBatches("shop: string, euros: string, at_ms: bigint"))
    orders = rows.each("euros", whole, "n: bigint")
    totals = orders.group_by("shop").persistent_aggregate(sqlite_state("db"), "n", Sum(), "total")
    rich = totals.new_values_stream().filter("total", lambda total: total > 10).group_by("shop")
    rich.persistent_aggregate(sqlite_state("db"), Count(), "times")
    calls = orders.group_by("shop").window(minute, sqlite_state("db"), Count(), "calls")
    calls.group_by("shop").persistent_aggregate(sqlite_state("db"), "calls", Sum(), "called")
"""
BATCHES = (
    [("oslo", "7", 1_000), ("bergen", "3", 2_000), ("oslo", "no number", 3_000)],
    [("oslo", "5", 4_000), ("bergen", "2", 59_999)],
    [("oslo", "1", 61_000), ("bergen", "9", 125_000)],
)
EXPECTED = {"total": [13, 14], "times": [2, 1], "called": [3, 2]}  # of oslo, bergen


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_states_a_window_new_values_dead_letters_and_their_readers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path, "orders_job", JOB)
    topology = runpy.run_path("orders_job.py")["topology"]  # its functions travel by value, as those of a program do
    settings: dict[str, Any] = {"log_dir": "log", "on_poison": "dead_letter", "retry_backoff_ms": 1}
    for batch, rows in enumerate(BATCHES):
        df = spark.createDataFrame(rows, "shop string, euros string, at_ms bigint")
        with topology.foreach_batch(**settings) as function:  # each time as in a new process
            function(df, batch)
            function(df, batch)
    for name, expected in EXPECTED.items():
        with open_state(topology, name, log_dir="log") as state:
            assert (name, state.multi_get(["oslo", "bergen"]), state.txid) == (name, expected, 3)
    read = trident(
        "get",
        "orders_job.py:topology",
        "total",
        "oslo",
        "--json",
        "--log-dir",
        "log",
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert json.loads(read.stdout)["values"] == [{"key": ["oslo"], "value": 13}], read
    listed = trident("dead-letters", "list", "log", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert "no number" in listed.stdout, listed


KEYS: dict[str, Callable[[int], Any]] = {
    "bigint": lambda n: n,
    "int": lambda n: n,
    "string": lambda n: f"k{n}",
    "double": lambda n: n / 2,
    "boolean": lambda n: n % 2 == 0,
    "binary": lambda n: bytes([n]),
}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(16))
def test_random_declarations_give_what_plain_python_gives(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(seed)
    type_ = draw.choice(list(KEYS))
    pool = [KEYS[type_](n) for n in range(draw.choice([1, 5, 40]))]
    topology = TridentTopology("drawn")
    stream: Any = topology.new_stream("rows", QueryBatches(f"k: {type_}, v: bigint"))
    if draw.random() < 0.5:
        stream = stream.partition_by("k").parallelism_hint(draw.randint(1, 8))
    least = draw.choice([0, 4])
    if least:
        stream = stream.filter("v", lambda v: v >= least)
    stores: list[Callable[[], Any]] = [MemoryMapState.opaque, lambda: sqlite_state(str(tmp_path / "db"))]
    store = draw.choice(stores)
    sums = stream.group_by("k").persistent_aggregate(store(), "v", Sum(), "sum").parallelism_hint(draw.randint(1, 8))
    exchanged = stream.group_by("k").aggregate("v", Sum(), "s: bigint").parallelism_hint(draw.randint(1, 8))
    groups = exchanged.group_by("k").persistent_aggregate(store(), Count(), "groups")
    counts = stream.persistent_aggregate(store(), Count(), "n")

    expected, seen, total = Counter[Any](), Counter[Any](), 0
    settings: dict[str, Any] = {"parallelism": draw.randint(1, 5), "log_dir": str(tmp_path / "log")}
    with topology.foreach_batch(**settings) as function:
        for batch in range(3):
            rows = [(draw.choice(pool), draw.randint(0, 9)) for _ in range(draw.choice([0, 1, 60]))]
            df = spark.createDataFrame(rows, f"k {type_}, v bigint").repartition(draw.randint(1, 5))
            function(df, batch)
            passed = [(key, value) for key, value in rows if value >= least]
            for key, value in passed:
                expected[key] += value
            seen.update({key for key, _ in passed})
            total += len(passed)
        assert function.state(sums).multi_get(pool) == [expected[key] if seen[key] else None for key in pool]
        assert function.state(groups).multi_get(pool) == [seen[key] or None for key in pool]
        assert (function.state(counts).get() or 0) == total


def drawn_rows(spark: SparkSession) -> DataFrame:
    """Return rows that are others each time they are evaluated."""
    moment = expr("unix_micros(current_timestamp())")
    keys = spark.range(100, numPartitions=2).select(((rand() * 1_000_000 + moment).cast("bigint") % 1000).alias("k"))
    return keys.withColumn("parity", col("k") % 2)


@pytest.mark.long
def test_a_python_worker_dies_below_a_plan_that_is_not_deterministic(spark: SparkSession, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def mortal(k: int) -> int:
        if k % 7 == 0 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return k

    topology = TridentTopology("random")
    rows = topology.new_stream("rows", QueryBatches("k: bigint, parity: bigint")).each("k", mortal, "same: bigint")
    store = sqlite_state(str(tmp_path / "db"))
    keys = rows.group_by("same").persistent_aggregate(store, Count(), "keys")
    parities = rows.group_by("parity").persistent_aggregate(store, Count(), "parities")
    with topology.foreach_batch(log_dir=str(tmp_path / "log"), retry_backoff_ms=1) as function:
        for batch in range(2):
            function(drawn_rows(spark), batch)
        assert died.exists()
        counts = function.state(keys).multi_get(range(1000))
        halves = function.state(parities).multi_get([0, 1])
    of_keys = [sum(n or 0 for n in counts[parity::2]) for parity in (0, 1)]
    assert (sum(of_keys), halves) == (200, of_keys)


LOST_EXECUTOR = """
import os, signal
from pathlib import Path

import psutil

from tests.harness.quick_java import QUICK_JVM
from tests.harness.sqlite_map import sqlite_state
from tests.run.test_whole_jobs import drawn_rows
from trident import QueryBatches, TridentTopology
from trident.operations import Count
from trident.spark.session import spark_session, stop_session

died = Path("died").absolute()


def mortal(k):
    if k % 7 == 0 and not died.exists():
        died.touch()
        next(one for one in psutil.Process().parents() if one.name() == "java").kill()
    return k


spark = spark_session("lost", "local-cluster[2,1,1024]", {"spark.executor.extraJavaOptions": QUICK_JVM})
topology = TridentTopology("random")
rows = topology.new_stream("rows", QueryBatches("k: bigint, parity: bigint")).each("k", mortal, "same: bigint")
rows = rows.partition_by("same").parallelism_hint(3)
keys = rows.group_by("same").persistent_aggregate(sqlite_state("db"), Count(), "keys")
parities = rows.group_by("parity").persistent_aggregate(sqlite_state("db"), Count(), "parities")
with topology.foreach_batch(log_dir="log", retry_backoff_ms=1) as function:
    for batch in range(2):
        function(drawn_rows(spark), batch)
    counts = function.state(keys).multi_get(range(1000))
    of_keys = [sum(n or 0 for n in counts[parity::2]) for parity in (0, 1)]
    print(died.exists(), sum(of_keys), function.state(parities).multi_get([0, 1]) == of_keys)
stop_session(spark)
"""

ENDED_SESSION = """
import threading, time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.harness.sqlite_map import sqlite_state
from trident import QueryBatches, TridentTopology
from trident.operations import Count

inside = Path("inside").absolute()


def slow(value):
    if not inside.exists():
        inside.touch()
        time.sleep(60)
    return value


def life():
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", QueryBatches("value: string")).each("value", slow, "word: string")
    lines.group_by("word").persistent_aggregate(sqlite_state("db"), Count(), "n")
    spark = SparkSession.builder.getOrCreate()
    function = topology.foreach_batch(log_dir="log", retry_backoff_ms=1)
    lines = spark.readStream.text("in").writeStream.foreachBatch(function)
    return spark, function, lines.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()


Path("in").mkdir()
Path("in/1.txt").write_text("cow\\nmoon\\ncow\\n")
spark, function, query = life()
while not inside.exists():
    assert query.isActive, query.exception()
    threading.Event().wait(0.01)
spark.stop()
spark, function, query = life()
query.awaitTermination()
print(function.state("n").multi_get(["cow", "moon"]), function.txid)
spark.stop()
"""


def lived(program: str, folder: Path) -> str:
    """Run a program; return what it says."""
    (folder / "job.py").write_text(program, encoding="utf-8")
    variables = environment(PYTHONPATH=str(ROOT), PYSPARK_SUBMIT_ARGS="--master local[2] pyspark-shell")
    done = run_python("job.py", cwd=folder, variables=variables, timeout_s=200)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_executor_dies_below_a_plan_that_is_not_deterministic(tmp_path: Path) -> None:
    assert lived(LOST_EXECUTOR, tmp_path) == "True 200 True\n"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_that_ends_within_a_batch_leaves_it_to_the_next(tmp_path: Path) -> None:
    assert lived(ENDED_SESSION, tmp_path) == "[2, 1] 1\n"
