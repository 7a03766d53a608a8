"""What Spark has: memory for what steps ask for, cores, bytes that a task may pass on through heaps, slots for workers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from trident.errors import EnvironmentProblem
from trident.spark.environment import executors_of, is_local, local_slots
from trident.steps.failures import MOST_SHIPPED

if TYPE_CHECKING:
    from pyspark import SparkContext

_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")
_OVERHEAD = "spark.executor.memoryOverhead"
_LEAST_OVERHEAD_MB = 384  # what Spark takes for itself by default

Setting = Callable[[str], str | None]  # a Spark setting by key; None if it is not set


def memory_settings(memory_mb: float, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that give Python workers the memory that a task asks for, unless they are set already."""
    # Python's memory is not on Spark's heap: YARN and Kubernetes count it as overhead.
    needed = _needed_mb(memory_mb, int(conf.get("spark.executor.cores", "1")))
    return {_OVERHEAD: f"{_LEAST_OVERHEAD_MB + needed}m"} if needed else {}


def cores_of_executors(master: str, setting: Setting, registered: Callable[[], int | None]) -> int | None:
    """Return how many cores an executor has; None if this is unknown before the first executor is there."""
    asked = setting("spark.executor.cores")
    if asked is not None:
        return int(asked)
    cluster = _CLUSTER.match(master)
    if cluster is not None:
        return int(cluster[2])
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
    cores = cores_of_executors(context.master or "", conf.get, lambda: _registered_cores(context)) or 1
    return min(most_per_task(executor, cores), most_per_task(heap, min(_FETCHES, context.defaultParallelism)))


def most_per_task(heap: int, tasks: int) -> int:
    """Return how many bytes each of so many tasks may pass on through a heap of `heap` bytes at the same time."""
    # In a heap of 1 GB, one task could pass on 100 MB, two 80 MB each (with 100 MB Spark lost the results), four 60 MB (with
    # 80 MB it hung), eight 30 MB (with 40 MB it failed).
    return min(MOST_SHIPPED, heap // (_COPIES * (tasks + 2)))


def _needed_mb(memory_mb: float, cores: int) -> int:
    return round(memory_mb * max(1, cores))


def _registered_cores(context: SparkContext) -> int | None:
    return max((int(one.totalCores()) for one in executors_of(context) if one.id() != "driver"), default=None)


def _megabytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower(), re.ASCII).groups()  # type: ignore[union-attr]
    return int(int(number) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2}[unit])


_REGISTERED_WITHIN_S, _LOOK_S = 30.0, 0.1
"""As long as Spark itself waits for executors before it runs the first task (`maxRegisteredResourcesWaitingTime`)."""
_pauses = threading.Event()  # is never set
_taking = threading.Lock()
_taken: dict[tuple[str, int], int] = {}
"""How many workers each running topology of this process has, by its application of Spark. Spark itself counts running tasks
too, but may be ten seconds late."""


class Slots:
    """The slots of one topology."""

    def __init__(self, context: SparkContext, topology: str) -> None:
        self._context, self._topology, self._master = context, topology, context.master or ""
        self._key = str(context.applicationId), id(self)

    def take(self, workers: int) -> None:
        """Take a slot for each worker, in place of those before; `EnvironmentProblem`: there will never be enough."""
        with _taking:
            others = self._others()
            if self._is_fixed and self.total - others < workers:
                raise self.too_few(workers)
            _taken[self._key] = workers

    def take_free(self, most: int, spare: int = 0) -> int:
        """Take the slots that no other topology has but the spare ones, at most so many; return how many."""
        # Before the first executor of a new session registers, Spark has no slot to count.
        until = monotonic() + _REGISTERED_WITHIN_S
        while not (self._is_fixed or self.grow or self.total) and monotonic() < until:
            _pauses.wait(_LOOK_S)
        with _taking:
            count = most if self.grow else max(1, min(most, self.free - spare))
            if self._is_fixed and self.free < count:
                raise self.too_few(count)
            _taken[self._key] = count
            return count

    def release(self) -> None:
        with _taking:
            _taken.pop(self._key, None)

    @property
    def free(self) -> int:
        return self.total - self._others()

    @property
    def total(self) -> int:
        cpus = int(self._context.getConf().get("spark.task.cpus") or 1)
        slots = local_slots(self._master, self._context._jvm)  # noqa: SLF001  as below
        if slots is not None:
            return slots // cpus
        cluster = _CLUSTER.match(self._master)
        if cluster is not None:
            return int(cluster[1]) * (int(cluster[2]) // cpus)
        return sum(int(one.totalCores()) // cpus for one in executors_of(self._context) if one.id() != "driver")

    @property
    def grow(self) -> bool:
        return (self._context.getConf().get("spark.dynamicAllocation.enabled") or "").lower() == "true"

    def too_few(self, workers: int) -> EnvironmentProblem:
        others = self._others()
        busy = f", of which {others} run other topologies" if others else ""
        if is_local(self._master):
            way = f"start Spark with master='local[{workers + others}]'"
        else:
            way = "give Spark more executors or cores (spark.executor.instances, spark.executor.cores, spark.cores.max)"
        return EnvironmentProblem.of_now(
            f"topology {self._topology!r} has {workers} workers, each of which takes a slot of Spark for as long as it runs, "
            f"but {self._master} has {self.total} slot{'' if self.total == 1 else 's'}{busy}; Spark would wait for ever. "
            f"Ask for fewer workers, or {way}"
        )

    @property
    def _is_fixed(self) -> bool:
        return bool(is_local(self._master) or _CLUSTER.match(self._master))

    def _others(self) -> int:
        return sum(number for key, number in _taken.items() if key[0] == self._key[0] and key != self._key)


def check_free_slots(context: SparkContext, topology: str) -> None:
    """Raise `EnvironmentProblem` if resident workers of other topologies keep all slots: a job would wait for ever."""
    with _taking:
        slots = Slots(context, topology)
        taken = slots.total - slots.free
        if taken and not slots.free and not slots.grow:
            raise EnvironmentProblem.of_now(
                f"topology {topology!r} runs Spark jobs, but all {taken} slots of {context.master} are kept by workers of "
                "other topologies; Spark would wait for ever. Give these fewer workers (parallelism), or Spark more slots"
            )


_LOOPBACK = "127.0.0.1"


def addresses_of(context: SparkContext) -> tuple[str, str]:
    """Return the driver's address for its workers, and the one to listen at."""
    master, conf = context.master or "", context.getConf()
    if is_local(master):
        return _LOOPBACK, _LOOPBACK
    return conf.get("spark.driver.host") or _LOOPBACK, conf.get("spark.driver.bindAddress") or "*"
