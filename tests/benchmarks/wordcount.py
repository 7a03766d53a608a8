"""The persistent word count, measured: `python -m tests.benchmarks.wordcount --state memory-opaque --batch 10000 --json`.

Prints one JSON line: the options, `seconds_steady` (first emit to last commit), `words_per_s`, `warm_words_per_s` (second
half of the run), `batches_per_s`, `batch_ms_p50`, `batch_ms_p99` (define to committed), `phase_ms` (where the time of a
median batch goes), `commit_ms_per_1k_keys`, `driver_rss_mb`, `cpu_s` (processor seconds of the run by role of the process:
driver, executors, server), `exact`. A state on Redis, Memcached or Cassandra gets a
server of its own, which is stopped at the end. With `--side-by-side` the same batches also run as a bare Spark job without
state and through `foreachBatch`, in the same process, and the ratios are printed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts import TextFileSpout
from tests.benchmarks._drivers import processor_seconds
from tests.benchmarks._measuring import tell
from tests.benchmarks._stores import MEASURED
from tests.benchmarks.corpus import WORDS_PER_SENTENCE, Corpus
from trident import TridentTopology
from trident.operations import Count, Split
from trident.state import StateSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def words(line: str) -> Iterator[str]:
    """Split a line, row by row."""
    yield from line.split(" ")


SPLITS: dict[str, Callable[[], Any]] = {"builtin": Split, "generator": lambda: words}
STATES = ("memory-opaque", "memory-transactional", *(f"{store}-opaque" for store in MEASURED))


def main(argv: list[str] | None = None) -> int:
    """Run once and print one JSON line; exit code 1 if the state is not exact."""
    options = _options(argv)
    with (
        tempfile.TemporaryDirectory(prefix="trident-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="trident-texts-", dir=options.texts) as texts,
        _spark(options),
    ):
        given = options.sentences, options.batch, options.vocab, options.seed, options.distinct_files
        corpus = Corpus.make(Path(texts), *given)
        result = {**vars(options), "texts": texts, **run(corpus, options, Path(folder))}
        if options.side_by_side:
            result.update(_ratios(result, bare_spark(corpus, options.pending), foreach_batch(corpus)))
    tell(**result)
    return 0 if result["exact"] else 1


def run(corpus: Corpus, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Count the corpus and return the figures."""
    with _state(options, folder) as spec:
        return _run(corpus, options, folder, spec)


def _run(corpus: Corpus, options: argparse.Namespace, folder: Path, spec: StateSpec) -> dict[str, Any]:
    topology = TridentTopology("bench-wordcount")
    spout = TextFileSpout(corpus.folder, max_batch_bytes=corpus.bytes_per_batch, follow=False)
    counts = (
        topology.new_stream("lines", spout)
        .each("line", SPLITS[options.split](), "word: string")
        .group_by("word")
        .persistent_aggregate(spec, Count(), "count")
        .parallelism_hint(options.partitions)
    )
    settings: dict[str, Any] = {
        "max_spout_pending": options.pending,
        "engine": options.engine,
        "progress_kept": 1 << 20,
    }
    if options.engine == "spark":
        settings["workers"] = options.workers
    if options.placement is not None:
        settings["state_placement"] = options.placement
    if options.auto_bytes is not None:
        settings["auto_bytes"] = options.auto_bytes
    if options.engine == "auto":
        settings["master"] = options.master  # Spark starts when the first large batch comes, if any does
    if options.durable_log or not options.state.startswith("memory"):
        settings["log_dir"] = str(folder / "log")
    before = processor_seconds(os.getpid())
    with topology.start(settings) as running:
        running.process_all_available()
        used = processor_seconds(os.getpid())
        steady, batches = running.seconds, running.recent_progress
        words = list(corpus.counts)
        exact = running.state(counts).multi_get(words) == [corpus.counts[word] for word in words]
    cpu_s = {role: round(seconds - before.get(role, 0.0), 1) for role, seconds in used.items()}
    return {**_figures(corpus, steady, batches), "cpu_s": cpu_s, "exact": exact}


def _figures(corpus: Corpus, steady: float, batches: list[dict[str, Any]]) -> dict[str, Any]:
    total = [batch["durationMs"]["total"] for batch in batches]
    half = len(batches) // 2
    warm = batches[half:]
    ended = [batch["recordedAt"] for batch in batches]
    warm_s = ended[-1] - (ended[half - 1] if half else ended[0] - total[0] / 1000)
    warm_words = sum(batch["numInputRows"] for batch in warm) * 10
    phases = {
        phase: _round(statistics.median(b["durationMs"][phase] for b in warm))
        for phase in ("process", "wait", "commit")
    }
    return {
        "batches": len(batches),
        "seconds_steady": round(steady, 4),
        "words_per_s": round(corpus.words / steady),
        "warm_words_per_s": round(warm_words / warm_s),
        "batches_per_s": _round(len(batches) / steady),
        "warm_ms_per_batch": _round(warm_s / len(warm) * 1000),
        "batch_ms_p50": _round(statistics.median(total)),
        "batch_ms_p99": _round(sorted(total)[min(len(total) - 1, int(len(total) * 0.99))]),
        "phase_ms": phases,
        "commit_ms_per_1k_keys": _round(statistics.median(_commit_ms_per_1k_keys(batch) for batch in warm)),
        "driver_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _commit_ms_per_1k_keys(batch: dict[str, Any]) -> float:
    keys = sum(batch["stateKeysUpdated"].values())
    return float(batch["durationMs"]["commit"] / max(1, keys) * 1000)


def _ratios(ours: dict[str, Any], bare: dict[str, float], foreach: dict[str, float]) -> dict[str, Any]:
    return {
        "bare_spark_words_per_s": round(bare["warm_words_per_s"]),
        "ratio_to_bare_spark": _round(ours["warm_words_per_s"] / bare["warm_words_per_s"]),
        "foreach_batch_ms": _round(foreach["warm_ms_per_batch"]),
        "ratio_to_foreach_batch_time": _round(ours["warm_ms_per_batch"] / foreach["warm_ms_per_batch"]),
    }


@contextmanager
def _state(options: argparse.Namespace, folder: Path) -> Iterator[StateSpec]:
    """Make the state; its server, if it has one, is started for this and stopped afterwards."""
    store, _, kind = options.state.rpartition("-")
    if store == "memory":
        from states.memory import MemoryMapState

        yield MemoryMapState.opaque() if kind == "opaque" else MemoryMapState.transactional()
        return
    work = folder / "store"
    work.mkdir()
    measured = MEASURED[store]
    with nullcontext() if measured.server is None else measured.server(work) as server:
        yield measured.spec(0 if server is None else server.port, work, options.cache)


@contextmanager
def _spark(options: argparse.Namespace) -> Iterator[None]:
    """One warm Spark session for everything that is measured; none for the in-process engine alone."""
    if options.engine != "spark" and not options.side_by_side:
        yield
        return
    from trident.spark.session import spark_session

    with spark_session("trident-bench", options.master) as spark:
        deadline = time.monotonic() + options.warm_up_s
        while time.monotonic() < deadline:
            spark.sparkContext.parallelize(range(2), 2).map(lambda number: number + 1).collect()
        yield


def bare_spark(corpus: Corpus, overlapping: int) -> dict[str, float]:
    """Count each batch's words in native Spark and collect them, `overlapping` batches at a time; no state."""
    from pyspark.sql import SparkSession

    spark = SparkSession.active()

    def count(path: Path) -> float:
        assert counted(spark.read.text(str(path))).toArrow().num_rows > 0
        return time.monotonic()

    started = time.monotonic()
    with ThreadPoolExecutor(overlapping) as pool:
        ended = sorted(pool.map(count, corpus.files))
    return _warm(corpus, started, ended)


def foreach_batch(corpus: Corpus) -> dict[str, float]:
    """Count each batch's words in foreachBatch, one file a batch, and add them to a dict (which is not exactly-once)."""
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    totals: Counter[str] = Counter()
    ended: list[float] = []

    def add(batch: DataFrame, _: int) -> None:
        for row in counted(batch).toArrow().to_pylist():
            totals[row["word"]] += row["count"]
        ended.append(time.monotonic())

    with tempfile.TemporaryDirectory(prefix="trident-bench-checkpoint-") as checkpoint:
        started = time.monotonic()
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(corpus.folder))
        query: Any = lines.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
    assert totals == corpus.counts, "foreachBatch did not count every word once"
    return _warm(corpus, started, ended)


def counted(lines: DataFrame) -> DataFrame:
    """Return the words of lines and how often each occurs, by native expressions."""
    from pyspark.sql import functions as fn

    words = lines.select(fn.explode(fn.split("value", " ")).alias("word")).where("word != ''")
    return words.groupBy("word").count()


def _warm(corpus: Corpus, started: float, ended: list[float]) -> dict[str, float]:
    """Figures of the second half of the run."""
    half = len(ended) // 2
    seconds = ended[-1] - (ended[half - 1] if half else started)
    per_batch = corpus.words / len(corpus.files)
    batches = len(ended) - half
    assert per_batch >= WORDS_PER_SENTENCE
    return {"warm_words_per_s": batches * per_batch / seconds, "warm_ms_per_batch": seconds / batches * 1000}


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the persistent word count.")
    parser.add_argument("--state", choices=STATES, default="memory-opaque")
    parser.add_argument("--cache", type=int, default=0, help="entries that a state on a server keeps between commits")
    parser.add_argument("--sentences", type=int, default=200_000, help="of ten words each")
    parser.add_argument("--batch", type=int, default=10_000, help="sentences per batch")
    parser.add_argument("--vocab", type=int, default=10_000, help="distinct words")
    parser.add_argument("--pending", type=int, default=3, help="batches in work at once")
    parser.add_argument("--split", choices=SPLITS, default="builtin", help="a Python generator, or what has a kernel")
    parser.add_argument("--durable-log", action="store_true", help="a log on disk, fsynced, with states in memory too")
    parser.add_argument("--auto-bytes", type=int, help="up to which size engine=auto keeps a batch in this process")
    parser.add_argument("--engine", choices=("spark", "in_process", "auto"), default="spark")
    parser.add_argument("--workers", choices=["jobs", "resident"], default="jobs", help="how batches run on Spark")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--placement", choices=("driver", "executors"), help="where states commit; default: by master")
    parser.add_argument("--partitions", type=int, default=1, help="of the state")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--texts", type=Path, help="a folder for the text; default: that of temporary files")
    parser.add_argument("--distinct-files", type=int, help="so many files are drawn, the others are copies of them")
    parser.add_argument("--warm-up-s", type=float, default=3.0, help="seconds of empty Spark jobs before measuring")
    parser.add_argument("--side-by-side", action="store_true", help="also bare Spark and foreachBatch")
    parser.add_argument("--json", action="store_true", help="accepted for scripts; the output is always one JSON line")
    return parser.parse_args(argv)


def _round(value: float) -> float:
    return round(value, 3)


if __name__ == "__main__":
    sys.exit(main())
