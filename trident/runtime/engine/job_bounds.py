"""What Spark says when data outgrows it, in one line with the way out. Where the same batch would fail again, it is final."""

from __future__ import annotations

import re

__all__ = ["TooMuchData", "bound_reached", "way_out"]

_RESULTS = re.compile(
    r"Total size of serialized results of (\d+) tasks \(([^)]+)\) is bigger than (?:local )?spark\.driver\.maxResultSize "
    r"\(?(\d[\d.]* \w+)"
)
_PART = re.compile(
    r"Serialized task \S+ was (\d+) bytes, which exceeds max allowed: spark\.rpc\.message\.maxSize \((\d+) bytes\)"
)

_ENDED = re.compile(r"ExecutorLostFailure|exit (?:code|status):? 137|Python worker exited unexpectedly")
_NO_HEAP = re.compile(r"OutOfMemoryError|TaskResultLost")


class TooMuchData(Exception):
    """A batch has more data than Spark passes on; another try would meet the same bound."""


def bound_reached(said: str) -> TooMuchData | None:
    """Return the error for the text of a failed job if a bound of Spark's ended it; None if not."""
    if found := _RESULTS.search(said):
        return TooMuchData(
            f"{found[1]} tasks of the batch give the driver {found[2]} together, and spark.driver.maxResultSize is {found[3]}. "
            'Let states commit in the executors (state_placement="executors"), use smaller batches, or raise '
            "spark.driver.maxResultSize, and spark.driver.memory to four times as much"
        )
    if found := _PART.search(said):
        return TooMuchData(
            f"a part of the batch carries its rows to a task in {found[1]} bytes, and spark.rpc.message.maxSize is {found[2]} "
            "bytes. Use smaller batches, more parts (parallelism), or a spout whose rows are read in the tasks"
        )
    return None


def way_out(said: str) -> str:
    """Return what to do about the text of a failed job if memory is the most likely cause; empty if it is not."""
    if _NO_HEAP.search(said):
        return (
            ". A JVM had too little memory for what tasks gave: raise spark.driver.memory or spark.executor.memory, or use "
            "smaller batches"
        )
    if _ENDED.search(said):
        return (
            ". A process that ends like this was most often killed because memory ran out: use smaller batches, more "
            "partitions (parallelism_hint), fewer tasks at a time (spark.executor.cores), or raise "
            "spark.executor.memoryOverhead, in which Python's memory counts; if one key has most of the rows, aggregate with a "
            "CombinerAggregator, or set max_bytes_per_partition to be told the key"
        )
    return ""
