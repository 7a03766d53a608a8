"""Ways to do the same work, which take turns on one machine: `python -m tests.benchmarks.ways [ROW …]`.

Each row prints a line of JSON: the median of each way, and the ratios.
"""

import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc

from spouts import FixedBatchSpout, TextFileSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.benchmarks._measuring import (
    Figures,
    Row,
    batches_of,
    in_turns,
    made,
    medians,
    ratios,
    run_rows,
    second_half,
    seconds_of,
    work_folder,
)
from tests.benchmarks.corpus import Corpus
from tests.benchmarks.wordcount import counted, words
from tests.harness.servers import start_postgres, start_redis
from tests.harness.topology_runs import Fold
from trident import Stream, TridentTopology
from trident.engine.runners import InProcessRunner
from trident.engine.spark_runner import SparkRunner
from trident.engine.worker import Order, Part, Program, WorkerProgram, run_part
from trident.operations import (
    Avg,
    Count,
    SlidingDurationWindow,
    Split,
    Sum,
    TumblingDurationWindow,
    arrow_function,
    col,
    lit,
)
from trident.plan import make_plan
from trident.spark.session import spark_session, stop_session
from trident.spout.interfaces import TransactionAttempt

_numbers = count(1)


def counting(stream: Stream, state: Any) -> Any:
    return stream.group_by("word").persistent_aggregate(state, Count(), "count")


@arrow_function("word: string", flat=True)
def arrow_words(line: pa.Array) -> pa.Array:
    return pc.split_pattern(line, " ")


SPLITTING: dict[str, Callable[[Stream], Stream]] = {
    "generator": lambda lines: lines.each("line", words, "word: string"),
    "arrow_function": lambda lines: lines.each("line", arrow_words, "word"),
    "expression": lambda lines: lines.select(word=col("line").split(" ").explode()),
    "builtin": lambda lines: lines.each("line", Split(), "word"),
}


class Lines:
    """An emitter of the same lines for every part."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.table = pa.table({"line": pa.array(lines, pa.string())})

    def emit(self, part: Any) -> Iterator[pa.Table]:
        yield self.table


def vectorised(batch: int = 20_000, rounds: int = 9) -> Figures:
    """Split and count: a generator, a function over Arrow arrays, an expression, the built-in with a kernel of its own."""
    pick = random.Random(1)
    lines = Lines([" ".join(f"word{pick.randrange(10_000)}" for _ in range(10)) for _ in range(batch)])

    def batch_ms(way: Callable[[Stream], Stream]) -> Callable[[], float]:
        topology = TridentTopology("vectorised")
        counting(way(topology.new_stream("lines", FixedBatchSpout("line: string", 1, ("",)))), MemoryMapState())
        fragments = {"lines": make_plan(topology.graph()).fragments["lines"]}
        runner = InProcessRunner(Program("vectorised", fragments, {"lines": lines}, {}, {}))
        given: list[Any] = []

        def process() -> None:
            given[:] = [runner.process([("lines", None)], Order(TransactionAttempt(next(_numbers), 0)))]

        def measured() -> float:
            took = seconds_of(process) * 1000
            counts = [sum(each.column("count").to_pylist()) for tables in given[0].sinks.values() for each in tables]
            assert sum(counts) == batch * 10, counts
            return took

        return measured

    found = medians(in_turns({name: batch_ms(way) for name, way in SPLITTING.items()}, rounds), 2)
    return {"batch": batch, "ms_per_batch": found, "to_generator": ratios(found, "generator")}


def lowering(batch: int = 10_000, batches: int = 12, rounds: int = 7, vocab: int = 10_000, pending: int = 3) -> Figures:
    """A batch on Spark: an RDD job of Python tasks, as the runner makes it; the same in `mapInArrow`; native expressions."""
    with work_folder() as folder:
        corpus = Corpus.make(folder, batch * batches, batch, vocab)
        spark = spark_session("trident-bench", "local[2]")

        def batch_ms(process: Callable[[int], Any]) -> float:
            with ThreadPoolExecutor(pending) as pool:
                return seconds_of(lambda: list(pool.map(process, range(batches)))) / batches * 1000

        try:
            ways = {name: partial(batch_ms, process) for name, process in _on_spark(spark, corpus).items()}
            found = medians(in_turns(ways, rounds, 2), 2)
        finally:
            spark.stop()
    return {"batch": batch, "ms_per_batch": found, "to_rdd": ratios(found, "rdd")}


def _on_spark(spark: Any, corpus: Corpus) -> dict[str, Callable[[int], Any]]:
    program, batches = _program(corpus)
    runner, pickled = SparkRunner(spark, program, 2, owned=False), cloudpickle.dumps(program)

    def map_in_arrow(batch: int) -> Any:
        parts = batches[batch]

        def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            worker, order = WorkerProgram(cloudpickle.loads(pickled)), Order(TransactionAttempt(batch, 0))
            for number in (number for row in rows for number in row.column(0).to_pylist()):
                for tables in run_part(worker, order, number, *parts[number]).sinks.values():
                    for table in tables:
                        yield from table.to_batches()

        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(run, "word string, count bigint").toArrow()

    return {
        "rdd": lambda batch: runner.process(batches[batch], Order(TransactionAttempt(batch, 0))),
        "map_in_arrow": map_in_arrow,
        "native": lambda batch: counted(spark.read.text(str(corpus.files[batch]))).toArrow(),
    }


def _program(corpus: Corpus) -> tuple[Program, list[list[Part]]]:
    """The word count's program, and the parts of each batch as the driver loop would cut them."""
    topology = TridentTopology("lowering")
    spout = TextFileSpout(corpus.folder, max_batch_bytes=corpus.bytes_per_batch, follow=False)
    counting(topology.new_stream("lines", spout).each("line", Split(), "word"), MemoryMapState())
    fragments = {"lines": make_plan(topology.graph()).fragments["lines"]}
    program = Program("lowering", fragments, {"lines": spout.get_emitter({})}, {}, {})
    coordinator, definition, batches = spout.get_coordinator({}), None, []
    for txid in range(1, len(corpus.files) + 1):
        definition = coordinator.initialize_transaction(txid, definition)
        parts = coordinator.parts(TransactionAttempt(txid, 0), definition, 2)
        batches.append([("lines", part) for part in parts])
    coordinator.close()
    return program, batches


def resident(
    sizes: tuple[int, ...] = (1, 1_000, 10_000), batches: int = 40, cores: int = 2, redis: bool = False
) -> Iterator[Figures]:
    """Batches as Spark jobs beside batches as messages to resident workers, on one Spark; `--redis`: also committed by tasks.

    With one sentence a batch, one batch at a time; the figures are of the second half.
    """
    with work_folder() as folder, ExitStack() as ends:
        ends.callback(stop_session, spark_session("resident", f"local[{cores}]"))
        port = ends.enter_context(start_redis(folder)).port if redis else 0
        for size in sizes:
            for workers in ("jobs", "resident"):
                for placement in ("driver", "executors") if redis else ("driver",):
                    name = f"resident-{workers}-{size}-{placement}"
                    address = f"redis://127.0.0.1:{port}/0"
                    on_redis = placement == "executors"
                    state = RedisState.opaque(address, prefix=name) if on_redis else MemoryMapState.opaque()
                    rows = [[" ".join(f"w{(at * 10 + n) * 7919 % 10_007}" for n in range(10))] for at in range(size)]
                    topology = TridentTopology(name)
                    lines = topology.new_stream("lines", FixedBatchSpout("line: string", size, *(rows * batches)))
                    counts = counting(lines.each("line", Split(), "word"), state).parallelism_hint(1 + on_redis)
                    firsts = sum(row[0].split().count("w0") for row in rows) * batches
                    settings: dict[str, Any] = {"workers": workers, "log_dir": str(folder / name)}
                    settings |= {"state_placement": "executors"} if on_redis else {}
                    settings |= {"max_spout_pending": 1} if size == 1 else {}
                    done, seconds = second_half(batches_of(topology, {counts: {"w0": firsts}}, **settings))
                    took = {part: [one["durationMs"][part] for one in done] for part in ("total", "process", "commit")}
                    speed = round(len(done) * size * 10 / seconds)
                    yield {"sentences": size, "workers": workers, "commits": placement, "words_per_s": speed} | {
                        f"{part}_ms": ms for part, ms in medians(took, 2).items()
                    }


S = timedelta(seconds=1)


def _by_time(words: Stream, config: Any) -> Stream:
    """Words with a time in one second."""
    timed = words.select("word", at=lit(1_000).cast("bigint"))
    return timed.group_by("word").window(config.by_event_time("at"), Count(), "n")


WINDOWS: dict[str, Callable[[Stream], Stream]] = {
    "persistent": lambda words: counting(words, MemoryMapState()).new_values_stream(),
    "batch_time": lambda words: words.group_by("word").tumbling_window(S, Count(), "n"),
    "event_time": lambda words: _by_time(words, TumblingDurationWindow.of(S)),
    "sliding": lambda words: _by_time(words, SlidingDurationWindow.of(10 * S, S)),
    "tuples": lambda words: words.tumbling_window(10_000, Count(), "n"),
    "tuples_of_key": lambda words: words.group_by("word").tumbling_window(100, Count(), "n"),
    "reducer": lambda words: words.group_by("word").tumbling_window(S, Fold(), "n"),
}


def windows(sentences: int = 400_000, batch: int = 10_000, vocab: int = 10_000, rounds: int = 3) -> Figures:
    """Windows beside the grouped `persistent_aggregate`, in process; what fires is summed up in a state.

    By the time of the batch and of a field, sliding by a tenth, of 10,000 words of the stream and of 100 of each word, and by
    a reducer, so that words are kept and not counts. Words per second of the second half.
    """
    with work_folder() as folder:
        corpus = Corpus.make(folder, sentences, batch, vocab, 7)

        def speed(way: str) -> float:
            topology = TridentTopology(f"bench-{way.replace('_', '-')}")
            spout = TextFileSpout(corpus.folder, max_batch_bytes=corpus.bytes_per_batch, follow=False)
            fired = WINDOWS[way](topology.new_stream("lines", spout).each("line", Split(), "word").project("word"))
            if way != "persistent":
                fired.persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
            done, seconds = second_half(batches_of(topology, engine="in_process", max_spout_pending=1))
            return float(sum(each["numInputRows"] for each in done) * 10 / seconds)

        found = medians(in_turns({way: partial(speed, way) for way in WINDOWS}, rounds, 0))
    return {
        "words_per_s": {way: round(each) for way, each in found.items()},
        "to_persistent": ratios(found, "persistent"),
    }


AGGREGATES: dict[str, tuple[Any, ...]] = {
    "one": ("euros", Sum(), "sales"),
    "three": ({"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros")}, "sales"),
}


def aggregates(keys: int = 10_000, batches: int = 12, rounds: int = 3) -> Iterator[Figures]:
    """Three aggregates in one state (a sum, a count, a mean) beside one: the same orders, in process."""
    with work_folder() as folder, start_redis(made(folder / "redis")) as redis, start_postgres(folder) as postgres:
        dsn = f"postgresql://trident@127.0.0.1:{postgres.port}/postgres"
        stores: dict[str, Callable[[str], Any]] = {
            "memory": lambda name: MemoryMapState(),
            "Delta": lambda name: DeltaState.opaque(folder / name),
            "Redis": lambda name: RedisState.opaque(f"redis://127.0.0.1:{redis.port}", prefix=name),
            "PostgreSQL": lambda name: PostgresState.opaque(dsn, table=name),
        }

        def batch_ms(store: str, way: str) -> float:
            name = f"{way}_{store.lower()}_{next(_numbers)}"
            topology, rows = TridentTopology(name), [(f"shop {at % keys}", at % 7) for at in range(keys * batches)]
            orders = topology.new_stream("orders", FixedBatchSpout("shop: string, euros: bigint", keys, *rows))
            orders.group_by("shop").persistent_aggregate(stores[store](name), *AGGREGATES[way])
            done = batches_of(topology, engine="in_process", poll_interval_ms=1, log_dir=str(folder / f"{name}-log"))
            took = [one["durationMs"] for one in done[2:]]
            return float(statistics.median(each["process"] + each["commit"] for each in took))

        for store in stores:
            found = medians(in_turns({way: partial(batch_ms, store, way) for way in AGGREGATES}, rounds, 0), 1)
            yield {"store": store, "keys": keys, "batch_ms": found, "to_one": ratios(found, "one", 2)}


def one_transaction(
    sizes: tuple[int, ...] = (1, 100, 1000), batches: int = 300, rounds: int = 9, flush_us: int = 0
) -> Iterator[Figures]:
    """Log and state in one transaction of a PostgreSQL (`together`), in two (`apart`), and with the log in files; in process.

    `--flush-us` lets the server wait so long before each sync, as a slower disk does. `--sizes`: distinct words of a batch.
    """
    slower = ("-c", f"commit_delay={flush_us}", "-c", "commit_siblings=0") if flush_us else ()
    with work_folder() as work, start_postgres(work, *slower) as server:
        url = f"postgresql://trident@127.0.0.1:{server.port}/postgres"
        apart = f"{url.replace('127.0.0.1', 'localhost')}?topology="  # the server under another name
        logs = {"together": f"{url}?topology=", "apart": apart, "files": f"{work}/"}

        def batch_ms(log: str, size: int) -> float:
            name = f"one-transaction-{next(_numbers)}"
            topology, rows = TridentTopology(name), [(f"word{number}",) for number in range(size)] * batches
            spout = FixedBatchSpout("word: string", size, *rows)
            counting(topology.new_stream("words", spout), PostgresState.opaque(url))
            config = {"engine": "in_process", "log_dir": f"{log}{name}", "poll_interval_ms": 1, "max_spout_pending": 1}
            with topology.start(config) as running:
                running.process_all_available()
                assert running.txid == batches
                return 1000 * running.seconds / batches

        for size in sizes:
            found = medians(in_turns({name: partial(batch_ms, log, size) for name, log in logs.items()}, rounds), 2)
            yield {"words": size, "batch_ms": found, "to_apart": ratios(found, "apart", 2)}


ROWS: dict[str, Row] = {
    "vectorised": vectorised, "lowering": lowering, "resident": resident, "windows": windows, "aggregates": aggregates,
    "one_transaction": one_transaction,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_rows(__doc__, ROWS))
