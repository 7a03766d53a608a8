"""A function for `foreachBatch` that keeps totals in PostgreSQL: `exactly_once`, and others beside it, in turns.

`python -m tests.benchmarks.query_function [KEYS] [BATCHES] [RUNS]`. One is written by hand: it adds the totals of a batch in
one transaction that also stores its number, and looks at that first. The other does nothing: beside it, small queries with
`trigger(availableNow=True)` are timed from `start()` to their end, each with a function that is made for it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from states.postgres import PostgresState
from tests.benchmarks._measuring import in_turns, seconds_of
from tests.harness.servers import start_postgres
from trident import exactly_once
from trident.operations import Count, Sum
from trident.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WARM = 3

Times = tuple[Sequence[float], Sequence[float]]


def by_hand(dsn: str) -> Callable[[DataFrame, int], None]:
    """Return the function that is idempotent by the number of its batch."""
    with psycopg.connect(dsn) as db:
        db.execute("CREATE TABLE totals (key BIGINT PRIMARY KEY, total BIGINT)")
        db.execute("CREATE TABLE done (batch BIGINT PRIMARY KEY)")

    def add(batch: DataFrame, batch_id: int) -> None:
        totals = batch.groupBy("key").sum("euros").collect()
        with psycopg.connect(dsn) as db:
            if db.execute("INSERT INTO done VALUES (%s) ON CONFLICT DO NOTHING", (batch_id,)).rowcount:
                db.cursor().executemany(
                    "INSERT INTO totals VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET total = totals.total + excluded.total",
                    totals,
                )

    return add


def both(other: Callable[[int], None], ours: Callable[[int], None], times: int) -> Times:
    """Return what each call takes, when it is warm."""
    turns = count(), count()
    calls = [lambda call=call, turn=turn: call(next(turn)) for call, turn in zip((other, ours), turns, strict=True)]
    took = in_turns({str(at): partial(seconds_of, call) for at, call in enumerate(calls)}, times, _WARM)
    return took["0"], took["1"]


def tell(what: str, names: tuple[str, str], took: Times) -> None:
    """Print the medians, and how the second compares with the first."""
    other, ours = map(statistics.median, took)
    least = min(took[0]) / min(took[1])
    print(
        f"{what}: {names[0]} {other * 1000:.0f} ms, {names[1]} {ours * 1000:.0f} ms, {other / ours:.2f} times as fast "
        f"({least:.2f} with the shortest of each)"
    )


def batches(spark: SparkSession, dsn: str, folder: str, keys: int, times: int) -> None:
    """Time batches, and compare the totals."""
    rows = spark.range(keys * 2).selectExpr(f"id % {keys} AS key", "id % 7 AS euros").cache()
    rows.count()
    add, state = by_hand(dsn), PostgresState.opaque(dsn, table="ours")
    with exactly_once(
        "ours", state, group_by="key", aggregate=Sum(), of="euros", value="total", log_dir=f"{folder}/log"
    ) as function:
        took = both(lambda batch: add(rows, batch), lambda batch: function(rows, batch), times)
        found = function.state().multi_get(range(keys))
    with psycopg.connect(dsn) as db:
        assert found == [total for (total,) in db.execute("SELECT total FROM totals ORDER BY key")]
    tell(f"{keys} keys a batch", ("by hand", "exactly_once"), took)


def runs(spark: SparkSession, dsn: str, folder: Path, times: int) -> None:
    """Time queries that read one new file and end."""
    (folder / "in").mkdir()
    state = PostgresState.opaque(dsn, table="runs")

    def run(checkpoint: str, function: Callable[[DataFrame, int], None]) -> None:
        (folder / f"in/{len(list(folder.glob('in/*')))}").write_text("the\ncow\n", encoding="utf-8")
        lines = spark.readStream.text(str(folder / "in")).writeStream.foreachBatch(function)
        query = lines.option("checkpointLocation", str(folder / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def empty(turn: int) -> None:
        run("empty", lambda batch, batch_id: None)

    def ours(turn: int) -> None:
        with exactly_once(
            "runs", state, group_by="value", aggregate=Count(), value="n", log_dir=f"{folder}/runs"
        ) as function:
            run("ours", function)

    tell("a run with availableNow", ("with an empty function", "exactly_once"), both(empty, ours, times))


def main(keys: int = 10_000, times: int = 10, runs_: int = 20) -> None:
    spark = spark_session("query-function", "local[2]")
    with tempfile.TemporaryDirectory(prefix="trident-bench-") as folder, start_postgres(Path(folder)) as server:
        dsn = f"postgresql://trident@127.0.0.1:{server.port}/postgres"
        batches(spark, dsn, folder, keys, times)
        runs(spark, dsn, Path(folder), runs_)
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
