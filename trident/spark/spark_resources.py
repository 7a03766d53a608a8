"""What executors have: memory for what steps ask for, cores, and how much a task may pass on through their heaps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trident.runtime.steps.bounds import MOST_SHIPPED
from trident.spark.environment import executors_of, is_local

if TYPE_CHECKING:
    from pyspark import SparkContext

_OVERHEAD = "spark.executor.memoryOverhead"
_LEAST_OVERHEAD_MB = 384  # what Spark takes for itself by default

Setting = Callable[[str], str | None]
"""A Spark setting by key; None if it is not set."""


def memory_settings(memory_mb: float, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that give Python workers the memory that a task asks for, unless they are set already.

    Python's memory is not on Spark's heap: YARN and Kubernetes count it as overhead.
    """
    needed = _needed_mb(memory_mb, int(conf.get("spark.executor.cores", "1")))
    return {_OVERHEAD: f"{_LEAST_OVERHEAD_MB + needed}m"} if needed else {}


def cores_of_executors(master: str, setting: Setting, registered: Callable[[], int | None]) -> int | None:
    """Return how many cores an executor has; None if this is unknown before the first executor is there."""
    asked = setting("spark.executor.cores")
    if asked is not None:
        return int(asked)
    cluster = re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,", master)
    if cluster is not None:
        return int(cluster[1])
    if master.startswith(("yarn", "k8s")):
        return 1
    return registered()  # a standalone worker gives an executor all that it has


def undone_memory(memory_mb: float, master: str, setting: Setting) -> str | None:
    """Return the warning about memory that a task asks for and may not get; None if there is none."""
    if not memory_mb:
        return None
    if not master.startswith(("yarn", "k8s")):
        return f"master {master} sets no memory aside for Python; memory loads are not honoured"
    needed = _needed_mb(memory_mb, cores_of_executors(master, setting, lambda: None) or 1)
    found = setting(_OVERHEAD)
    if found is not None and _megabytes(found) >= needed:
        return None
    return (
        f"the steps ask for {needed} MiB in an executor, beside Spark's heap, but {_OVERHEAD} is {found or 'not set'}; set it "
        f"to {_LEAST_OVERHEAD_MB + needed}m where Spark is started, or containers may be killed"
    )


_COPIES = 4
"""How often what tasks pass on is in a JVM's heap at once, at least. With less heap than `most_per_task` leaves, Spark hung."""

_FETCHES = 4  # results that a driver fetches at once: spark.resultGetter.threads


def most_shipped(context: SparkContext) -> int:
    """Return how many bytes a task may pass on: a fraction of the smallest heap on the way, by how many tasks share it."""
    jvm, conf = context._jvm, context.getConf()  # noqa: SLF001 - PySpark has no public question for these
    assert jvm is not None
    heap = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    if is_local(context.master or ""):
        return most_per_task(heap, context.defaultParallelism)
    executor = int(
        jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(conf.get("spark.executor.memory", "1g"))
    )
    cores = cores_of_executors(context.master or "", conf.get, lambda: _registered(context)) or 1
    return min(most_per_task(executor, cores), most_per_task(heap, min(_FETCHES, context.defaultParallelism)))


def most_per_task(heap: int, tasks: int) -> int:
    """Return how many bytes each of so many tasks may pass on through a heap of `heap` bytes at the same time.

    In a heap of 1 GB, one task could pass on 100 MB, two 80 MB each (with 100 MB Spark lost the results), four 60 MB (with
    80 MB it hung), eight 30 MB (with 40 MB it failed).
    """
    return min(MOST_SHIPPED, heap // (_COPIES * (tasks + 2)))


def _needed_mb(memory_mb: float, cores: int) -> int:
    """Return the MiB that an executor's concurrent tasks need."""
    return round(memory_mb * max(1, cores))


def _registered(context: SparkContext) -> int | None:
    return max((int(one.totalCores()) for one in executors_of(context) if one.id() != "driver"), default=None)


def _megabytes(text: str) -> int:
    """Read a size as Spark writes it; a plain number is MiB."""
    number, unit = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower(), re.ASCII).groups()  # type: ignore[union-attr]
    return int(int(number) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2}[unit])
