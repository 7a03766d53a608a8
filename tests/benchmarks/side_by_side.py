"""The same batches without Trident: as bare Spark jobs that keep no state, and through Structured Streaming's foreachBatch."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from tests.benchmarks.corpus import WORDS_PER_SENTENCE, Corpus


def bare_spark(corpus: Corpus, overlapping: int) -> dict[str, float]:
    """Count each batch's words in native Spark and collect them, `overlapping` batches at a time; no state."""
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
