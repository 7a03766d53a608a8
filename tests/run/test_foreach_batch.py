"""`topology.foreach_batch(…)` and `exactly_once(…)`: what they run, what they promise and what they refuse."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, expr, rand, udf, window

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.crashing_stores import DictMap, FailsOnce
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import counted, dict_state, keep
from trident import QueryBatches, TridentTopology, exactly_once, open_state
from trident.errors import (
    BatchFailedError,
    CheckpointMismatchError,
    ConfigError,
    InexactPairingError,
    SpoutError,
    TopologyError,
    TridentError,
)
from trident.observe import TopologyListener
from trident.one_aggregate import ExactlyOnce
from trident.operations import Count, Last, Sum
from trident.run.dead_letters import DeadLetters, waiting
from trident.run.foreach_batch import ForeachBatch
from trident.run.handed_batches import NAMES_KEPT, definition_of_name
from trident.state import StateConf, map_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = "shop: string, customer: string, euros: bigint"
ROWS = [("oslo", "ann", 3), ("bergen", "bob", 5), ("oslo", "bob", 7), ("oslo", "cid", 11)]
QUICK: dict[str, Any] = {"retry_backoff_ms": 1}


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, ORDERS)


def declared() -> tuple[TridentTopology, Any]:
    topology = TridentTopology("orders")
    return topology, topology.new_stream("orders", QueryBatches(ORDERS))


def counting(state: Any = None, **more: Any) -> ExactlyOnce:
    """Count the orders of each shop, if nothing else is said."""
    given = {"group_by": "shop", "aggregate": Count(), "value": "n", **more}
    return exactly_once("orders", state or MemoryMapState.opaque(), **given)


def contents(function: ForeachBatch, state: Any, keys: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(keys, function.state(state).multi_get(list(keys)), strict=True))


def test_several_states_of_different_stores(orders: DataFrame, redis_server: Server, tmp_path: Path) -> None:
    topology, stream = declared()
    state = RedisState.opaque(f"redis://127.0.0.1:{redis_server.port}/0", prefix=str(tmp_path))
    euros = stream.group_by("shop").persistent_aggregate(state, "euros", Sum(), "total")
    by = stream.group_by("customer").persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "orders")
    every = stream.persistent_aggregate(MemoryMapState.opaque(), "euros", Sum(), "all")
    with topology.foreach_batch(log_dir=str(tmp_path / "log")) as function:
        for batch in range(3):
            function(orders, batch)
            function(orders, batch)  # Spark has lost its mark
        assert contents(function, euros, ["oslo", "bergen"]) == {"oslo": 63, "bergen": 15}
        assert contents(function, by, ["ann", "bob"]) == {"ann": 3, "bob": 6}
        assert function.state(every).get() == 78
        assert function.txid == 3


def test_a_notebook_shows_what_a_function_does(orders: DataFrame, tmp_path: Path) -> None:
    function = counting(sqlite_state(str(tmp_path / "db")), log_dir=str(tmp_path / "log"))
    assert f"not open: a batch opens it{_CELLS}log{_CELL}{tmp_path}/log" in function._repr_html_()
    with function:
        function(orders, 0)
        html = function._repr_html_()
        assert f"last batch{_CELL}1, 4 tuples" in html
        assert f"state n{_CELL}2 keys in the last batch, committed by the driver" in html
        assert "state n, 2 rows, after batch 1" in html
    assert "not open" in function._repr_html_()
    topology, stream = declared()
    stream.group_by("shop").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    with topology.foreach_batch() as whole:
        whole(orders, 0)
        assert whole._repr_html_().startswith("<div><table")
        assert f"topology{_CELL}orders" in whole._repr_html_()


_CELL = '</td><td style="padding:2px 8px;vertical-align:top;text-align:left">'
_CELLS = _CELL.replace("</td>", "</td></tr><tr>")


def test_a_batch_without_rows_is_a_batch(orders: DataFrame) -> None:
    with counting(group_by=()) as function:
        function(orders.where("false"), 0)
        function(orders, 1)
        assert (function.txid, function.state().get()) == (2, 4)


def test_columns_of_every_name_and_more_than_are_read(spark: SparkSession) -> None:
    df = spark.createDataFrame([("x", 1, [1.5])], "`a.b` string, `c``d` bigint, other array<double>")
    topology = TridentTopology("odd")
    kept = keep(topology.new_stream("rows", QueryBatches(["c`d: bigint", "a.b: string"])))
    with topology.foreach_batch() as function:
        function(df, 0)
    assert kept.rows == [(1, "x")]


def test_a_column_of_only_nulls_and_narrower_ones_are_what_is_declared(spark: SparkSession) -> None:
    df = spark.sql("select 'x' as k, null as n, 1 as i, null as other, struct(1 as a) as w")
    topology = TridentTopology("nulls")
    kept = keep(topology.new_stream("rows", QueryBatches("k: string, n: struct<a:int>, i: bigint")))
    with topology.foreach_batch() as function:
        function(df, 0)
    assert kept.rows == [("x", None, 1)]
    assert str(QueryBatches(df.schema).fields) == "k: string, n: string, i: int, other: string, w: struct<a:int>"
    wide = TridentTopology("struct")
    keep(wide.new_stream("rows", QueryBatches("w: struct<b:int,a:int>")))
    with pytest.raises(TopologyError, match="Spark casts a struct by position"):
        wide.foreach_batch()(df, 0)


def test_a_state_of_one_value_of_a_group_of_columns(orders: DataFrame) -> None:
    with counting(group_by=["shop", "customer"], aggregate=Sum(), of="euros") as function:
        function(orders, 0)
        assert function.state().multi_get([("oslo", "ann"), ("oslo", "bob"), ("oslo", "x")]) == [3, 7, None]


def test_an_attempt_evaluates_the_query_once(orders: DataFrame, spark: SparkSession) -> None:
    calls = spark.sparkContext.accumulator(0)

    note = udf(lambda shop: (calls.add(1), shop)[1], "string")  # type: ignore[func-returns-value]
    topology, stream = declared()
    for name in ("one", "two", "three"):
        grouped = stream.group_by("shop")
        grouped.aggregate("euros", Sum(), "e").group_by("shop").persistent_aggregate(
            MemoryMapState.opaque(), "e", Sum(), "total", state_name=name
        )
    with topology.foreach_batch() as function:
        function(orders.withColumn("shop", note("shop")), 0)
    assert calls.value == len(ROWS)


@pytest.mark.long
def test_a_query_that_is_not_deterministic_counts_the_rows_of_one_attempt(spark: SparkSession, tmp_path: Path) -> None:
    """What the first attempts wrote is of other rows: all of it is taken back."""
    entries: list[dict[Any, Any]] = [{}, {}]
    failures = [1, 1]

    def second(conf: StateConf, partition: int, partitions: int) -> FailsOnce:
        return FailsOnce(entries[1], failures)

    topology = TridentTopology("random")
    stream = topology.new_stream("rows", QueryBatches("k: bigint, parity: bigint"))
    keys = stream.group_by("k").persistent_aggregate(dict_state(entries[0]), Count(), "n", state_name="keys")
    stream.group_by("parity").persistent_aggregate(map_state(second, "opaque"), Count(), "n", state_name="parities")

    def planned() -> DataFrame:
        rows = spark.range(50).select((rand() * 1_000_000).cast("bigint").alias("k"))  # planned again, it draws others
        return rows.withColumn("parity", col("k") % 2)

    with topology.foreach_batch(log_dir=str(tmp_path), max_batch_attempts=1) as function:
        for _ in range(2):
            with pytest.raises(BatchFailedError, match="the answer was lost"):
                function(planned(), 0)
        function(planned(), 0)
        function(planned(), 1)
        drawn = [key[0] for key in entries[0] if len(key) == 1 and isinstance(key[0], int)]
        assert len(drawn) > 150, "the keys of all attempts are there"
        counts = {key: n for key, n in contents(function, keys, drawn).items() if n}
        parities = contents(function, "parities", [0, 1])
    assert sum(counts.values()) == 100
    assert parities == counted(key % 2 for key, n in counts.items() for _ in range(n))


def test_transactional_states_need_a_promise(orders: DataFrame) -> None:
    with pytest.raises(InexactPairingError):
        counting(MemoryMapState.transactional())(orders, 0)
    with counting(MemoryMapState.transactional(), deterministic=True) as function:
        function(orders, 0)
        function(orders, 0)
        assert function.state().multi_get(["oslo"]) == [3]


def test_a_named_batch_is_written_once(orders: DataFrame, tmp_path: Path) -> None:
    def function() -> ExactlyOnce:
        return counting(sqlite_state(str(tmp_path / "db")), log_dir=str(tmp_path / "log"))

    for _ in range(2):  # the scheduler starts the job again
        with function() as daily:
            daily.write(orders, batch="2026-11-24")
            assert daily.state().multi_get(["oslo"]) == [3]
    with function() as daily:
        assert daily.write(orders, batch="2026-11-25")
        assert not daily.write(orders, batch="2026-11-24")
        assert daily.write(orders, batch="2026-11-23"), "a day that was left out is written late"
        assert daily.state().multi_get(["oslo"]) == [9]
        with pytest.raises(CheckpointMismatchError, match="batches that were written by name"):
            daily(orders, 0)


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_batch_is_named_by_a_text(name: Any, orders: DataFrame) -> None:
    with pytest.raises(ValueError, match="name the batch by a text"):
        counting().write(orders, batch=name)


def streamed(spark: SparkSession, folder: Path, rows: int = 4) -> DataFrame:
    (folder / "in").mkdir()
    (folder / "in/1.txt").write_text("".join(f"{row}\n" for row in range(rows)), encoding="utf-8")
    return spark.readStream.text(str(folder / "in"))


def test_what_raises_stops_the_query_and_the_next_start_replays(spark: SparkSession, tmp_path: Path) -> None:
    bad = [True]

    def whole(value: str) -> int:
        return int(value) // (0 if bad and value == "3" else 1)

    def started() -> tuple[Any, ForeachBatch]:
        topology = TridentTopology("numbers")
        numbers = topology.new_stream("lines", QueryBatches("value: string")).each("value", whole, "n: bigint")
        numbers.persistent_aggregate(sqlite_state(str(tmp_path / "db")), "n", Sum(), "total")
        function = topology.foreach_batch(log_dir=str(tmp_path / "log"), **QUICK)
        writer = lines.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start(), function

    lines = streamed(spark, tmp_path)
    query, function = started()
    with pytest.raises(StreamingQueryException, match=r"BatchFailedError.*batch 1[\s\S]*ZeroDivisionError"):
        query.awaitTermination()
    with pytest.raises(TridentError, match="is not open"):
        _ = function.txid
    bad.clear()
    query, function = started()
    query.awaitTermination()
    assert (function.txid, function.state("total").get()) == (1, 6)
    function.close()


def test_a_batch_of_a_run_is_given_once_or_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    lines, split, topology = streamed(spark, tmp_path), str(tmp_path / "split"), TridentTopology("numbers")
    by_value = topology.new_stream("lines", QueryBatches("value: string")).group_by("value")
    by_value.persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n", state_name="n")
    function = topology.foreach_batch(log_dir=str(tmp_path / "log"), **QUICK)

    def give(df: Any, batch: Any) -> None:
        function(df.where("value < 3"), batch)
        function(
            df.where("value > 2" if Path(split).exists() else "value < 3"), batch
        )  # as a retry of the whole function does

    def run() -> None:
        writer = lines.writeStream.foreachBatch(give).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with function:
        run()
        with open_state(topology, "n", log_dir=str(tmp_path / "log")) as counts:
            assert counts.multi_get(["0", "2", "3"]) == [1, 1, None]
        (tmp_path / "in/2.txt").write_text("0\n3\n", encoding="utf-8")
        Path(split).touch()
        with pytest.raises(StreamingQueryException, match=r"batch 1 twice in one run of a query, with other rows"):
            run()


def test_a_query_that_cannot_be_evaluated_says_what_spark_says(spark: SparkSession) -> None:
    df = spark.range(3).select(expr("raise_error('no such shop')").cast("string").alias("shop"))
    with counting(**QUICK) as function:
        with pytest.raises(BatchFailedError, match="no such shop"):
            function(df, 0)
        function(spark.createDataFrame([("oslo",)], "shop string"), 0)
        assert function.state().multi_get(["oslo"]) == [1]


def test_dead_letters_are_kept_and_put_back(spark: SparkSession, tmp_path: Path) -> None:
    good = ["1", "2"]
    topology = TridentTopology("numbers")
    lines = topology.new_stream("lines", QueryBatches("value: string"))
    fails = tmp_path / "fails"
    fails.touch()

    def whole(value: str) -> int:
        if value not in good and fails.exists():
            raise ValueError(f"no number: {value}")
        return len(value)

    numbers = lines.each("value", whole, "n: bigint").partition_by("value")
    total = numbers.persistent_aggregate(sqlite_state(str(tmp_path / "db")), "n", Sum(), "total")
    df = spark.createDataFrame([("1",), ("three",), ("2",)], "value string")
    with topology.foreach_batch(log_dir=str(tmp_path / "log"), on_poison="dead_letter", **QUICK) as function:
        function(df, 0)
        assert function.state(total).get() == 2
        log = function.run.opened.log.state
        assert waiting(log) == 1
        folder = DeadLetters(function.config.dead_letter_folder("numbers"))
        assert ["no number: three" in str(letter) for letter in folder.all(log)] == [True]
        fails.unlink()
        folder.request(log, {1: [[0, 1]]})
        function(df.where("false"), 1)
        assert function.state(total).get() == 7
        assert waiting(function.run.opened.log.state) == 0


def test_stop_ends_the_query_within_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    reached = tmp_path / "reached"

    def slow(value: str) -> int:
        reached.touch()
        time.sleep(60)
        return 1

    topology = TridentTopology("slow")
    lines = topology.new_stream("lines", QueryBatches("value: string")).each("value", slow, "n: int")
    lines.persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n", state_name="n")
    function = topology.foreach_batch(log_dir=str(tmp_path / "log"))
    writer = streamed(spark, tmp_path, 1).writeStream.foreachBatch(function)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    deadline = time.monotonic() + 60
    while not reached.exists():
        assert time.monotonic() < deadline
        assert query.isActive, query.exception()
        threading.Event().wait(0.01)
    begun = time.monotonic()
    query.stop()
    assert time.monotonic() - begun < 30
    assert query.exception() is None or pyspark.__version__ < "4"  # 3.5 takes a stop within foreachBatch for a failure
    with pytest.raises(TridentError, match="is not open"):
        _ = function.txid


class _Told(TopologyListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def note(self, event: Any) -> None:
        self.events.append((type(event).__name__, event.txid))

    on_topology_started = on_batch_committed = on_topology_terminated = note


def test_figures_and_listeners(orders: DataFrame) -> None:
    told = _Told()
    with counting(listeners=[told]) as function:
        function(orders, 0)
        function(orders, 1)
        progress = function.recent_progress
        status = function.run.pages.status()
    assert [(each["batchId"], each["numInputRows"]) for each in progress] == [(1, 4), (2, 4)]
    assert (status.name, status.kind, status.state) == ("orders", "trident", "ACTIVE")
    assert told.events == [
        ("TopologyStarted", 0),
        ("BatchCommitted", 1),
        ("BatchCommitted", 2),
        ("TopologyTerminated", 2),
    ]


def test_explain_says_where_what_runs() -> None:
    text = counting(schema=ORDERS).explain()
    assert "spout QueryBatches (opaque)" in text
    assert "aggregated in each task first" in text
    assert "an attempt evaluates the DataFrame once" in text


def test_a_function_pickles_small_and_holds_no_session(orders: DataFrame, tmp_path: Path) -> None:
    with counting(sqlite_state(str(tmp_path / "db")), log_dir=str(tmp_path / "log")) as function:
        function(orders, 0)
        data = cloudpickle.dumps(function)
    assert len(data) < 10_000
    with pickle.loads(data) as again:
        again(orders, 0)
        assert again.state().multi_get(["oslo"]) == [3]
        again(orders, 1)
        assert again.state().multi_get(["oslo"]) == [6]


def test_columns_that_do_not_fit_are_named_before_anything_is_opened(orders: DataFrame, tmp_path: Path) -> None:
    topology, stream = declared()
    stream.group_by("shop").persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n")
    function = topology.foreach_batch(log_dir=str(tmp_path / "log"))
    with pytest.raises(TopologyError, match="reads the column 'customer', and the query has shop, euros"):
        function(orders.drop("customer"), 0)
    with pytest.raises(
        TopologyError, match="reads the column 'euros' as bigint, and the query has it as string: cast it"
    ):
        function(orders.withColumn("euros", col("euros").cast("string")), 0)
    assert not (tmp_path / "log").exists()


def test_what_is_no_batch_of_the_columns_is_refused(orders: DataFrame, spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    for group_by, given, said in (
        ("town", orders, "no column 'town' in the query, which has shop, customer, euros"),
        ((), orders.select(), "the query has no columns, and rows without any are lost"),
        ((), rates, "give the function to its writeStream.foreachBatch"),
    ):
        with pytest.raises(TopologyError, match=said):
            counting(group_by=group_by)(given, 0)


def test_one_query_one_stream() -> None:
    topology, stream = declared()
    keep(stream)
    topology.new_stream("more", QueryBatches(ORDERS))
    with pytest.raises(TopologyError, match="it has 2 streams of queries"):
        topology.foreach_batch()
    topology, stream = declared()
    keep(topology.merge(stream, topology.new_stream("rows", FixedBatchSpout(ORDERS, 1, *ROWS))))
    with pytest.raises(TopologyError, match="the stream 'rows' has a source of its own"):
        topology.foreach_batch()


@pytest.mark.parametrize(
    "setting",
    [{"engine": "in_process"}, {"max_spout_pending": 4}, {"state_placement": "executors"}, {"workers": "resident"}],
)
def test_settings_of_batches_are_not_set_here(setting: dict[str, Any]) -> None:
    topology, stream = declared()
    keep(stream)
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} is not set here"):
        topology.foreach_batch(**setting)


def test_a_function_that_is_called_twice_at_once(orders: DataFrame, tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def waits(conf: StateConf, partition: int, partitions: int) -> DictMap:
        inside.set()
        assert done.wait(60)
        return DictMap({})

    function = counting(map_state(waits, "opaque"), log_dir=str(tmp_path))
    first = threading.Thread(target=function, args=(orders, 0))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(TridentError, match="two queries use one function"):
            function(orders, 0)
    finally:
        done.set()
        first.join()
        function.close()


def test_names_that_are_forgotten_are_refused() -> None:
    last = None
    for number in range(NAMES_KEPT + 3):
        last = definition_of_name(f"{number:04}", last)
    assert definition_of_name("0002", last) is None, "the greatest of those that are forgotten"
    assert definition_of_name("0402", last) is None
    with pytest.raises(SpoutError, match="whether it was written cannot be known"):
        definition_of_name("0001", last)


def totals_of(folder: Path, aggregate: Any, **more: Any) -> Any:
    """Return a function that aggregates the counts which a query gives."""
    return exactly_once(
        "totals", MemoryMapState.opaque(), group_by="shop", aggregate=aggregate, of="count", value="n",
        log_dir=str(folder / "log"), **more, **QUICK,
    )  # fmt: skip


def run_query(spark: SparkSession, folder: Path, function: Any, mode: str, make: Any) -> None:
    """Run a query over two files, a batch each: in both two orders of oslo and one of bergen."""
    (folder / "in").mkdir(exist_ok=True, parents=True)
    for name in "12":
        (folder / "in" / name).write_text("oslo\nbergen\noslo\n", encoding="utf-8")
    shops = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in")).withColumnRenamed("value", "shop")
    writer = make(shops).writeStream.outputMode(mode).foreachBatch(function).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


def counts_of(shops: DataFrame) -> DataFrame:
    return shops.groupBy("shop").count()


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_totals_of_a_query_are_not_added_up(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    function = totals_of(tmp_path, Sum())
    with pytest.raises(StreamingQueryException, match=f"in output mode '{mode}': such a row may be a total"):
        run_query(spark, tmp_path, function, mode, counts_of)
    assert not (tmp_path / "log").exists()
    with totals_of(tmp_path, Last()) as newest:  # the advice, followed with the same checkpoint and log
        run_query(spark, tmp_path, newest, mode, counts_of)
        assert contents(newest, "n", ["oslo", "bergen"]) == {"oslo": 4, "bergen": 2}


@pytest.mark.long
def test_totals_are_refused_whoever_hands_them_over(spark: SparkSession, tmp_path: Path) -> None:
    written = totals_of(tmp_path / "written", Sum())
    with pytest.raises(StreamingQueryException, match="such a row may be a total"):
        run_query(spark, tmp_path / "written", lambda df, at: written.write(df, batch=f"{at:04}"), "update", counts_of)
    threaded, raised = totals_of(tmp_path / "threaded", Sum()), []

    def elsewhere(df: DataFrame, batch: int) -> None:  # in a thread that Spark has told nothing of the query
        def call() -> None:
            try:
                threaded(df.where("count > 0"), batch)
            except TopologyError as error:
                raised.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        df.collect()

    run_query(spark, tmp_path / "threaded", elsewhere, "update", counts_of)
    assert len(raised) == 2
    assert "such a row may be a total" in raised[0]


def ones(shops: DataFrame) -> DataFrame:
    return shops.selectExpr("shop", "1L AS count")


def by_second(shops: DataFrame) -> DataFrame:
    """Give each total once, when its second is over: bergen's orders are of an hour later."""
    at = "timestamp '2026-11-28 12:00:00' + CASE shop WHEN 'bergen' THEN interval 1 hour ELSE interval 0 hour END"
    timed = shops.withColumn("at", expr(at)).withWatermark("at", "1 second")
    return timed.groupBy("shop", window("at", "1 second")).count()


@pytest.mark.long
def test_rows_of_a_query_that_are_no_totals_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    cases: list[tuple[str, str, Any, Any, int]] = [
        ("plain", "update", ones, None, 4),
        ("distinct", "update", lambda shops: ones(shops.dropDuplicates()), None, 1),
        ("said", "update", counts_of, "events", 2 + 4),
        ("counted", "complete", lambda shops: counts_of(shops.dropDuplicates()), "events", 1 + 1),
        ("once", "append", by_second, None, 4),
    ]
    for name, mode, make, rows_are, oslo in cases:
        folder = tmp_path / name
        folder.mkdir()
        with totals_of(folder, Sum(), rows_are=rows_are) as function:
            run_query(spark, folder, function, mode, make)
            assert contents(function, "n", ["oslo"]) == {"oslo": oslo}, name


@pytest.mark.long
def test_a_topology_says_what_the_rows_of_its_query_are(spark: SparkSession, tmp_path: Path) -> None:
    for rows_are in (None, "totals"):
        topology = TridentTopology("orders")
        rows = topology.new_stream("orders", QueryBatches("shop: string, count: bigint", rows_are=rows_are))
        state = rows.group_by("shop").persistent_aggregate(MemoryMapState.opaque(), "count", Last(), "n")
        with topology.foreach_batch(**QUICK) as function:
            if rows_are is None:
                with pytest.raises(StreamingQueryException, match="rows_are='totals', and keep the newest"):
                    run_query(spark, tmp_path, function, "update", counts_of)
            else:
                run_query(spark, tmp_path, function, "update", counts_of)
                assert contents(function, state, ["oslo", "bergen"]) == {"oslo": 4, "bergen": 2}


@pytest.mark.parametrize(
    ("state", "aggregate", "said"),
    [
        ("counts", Count(), r"it only names a place\. DeltaState\('counts'\) is a state"),
        (MemoryMapState, Count(), r"it is a class; give an instance of it: MemoryMapState\(\.\.\.\)"),
        (MemoryMapState(), Count, r"Count'> is not an aggregator; give one, such as Count\(\)$"),
        (MemoryMapState(), "count", "orders'\\): 'count' is not an aggregator; give one"),
        (MemoryMapState(), {"n": Sum}, "Sum'> is not an aggregator; give one"),
    ],
)
def test_what_is_no_state_or_aggregator_is_refused_at_the_call(state: Any, aggregate: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        exactly_once("orders", state, group_by="shop", aggregate=aggregate, value="n")


def test_totals_that_would_be_added_up_are_refused_at_the_declaration() -> None:
    for aggregate in (Sum(), Count(), {"n": Sum("count"), "last": ("count", Last())}):
        with pytest.raises(TopologyError, match="may count again what an earlier total had"):
            exactly_once("t", MemoryMapState.opaque(), aggregate=aggregate, value="n", rows_are="totals")
    with pytest.raises(TopologyError, match="rows_are='rows': expected 'events' or 'totals'"):
        QueryBatches(ORDERS, rows_are="rows")  # type: ignore[arg-type]
