"""Where workers run: the slots of Spark that they take, the driver's address, and other numbers of them for one that runs."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trident.errors import ConfigError, EnvironmentProblem, TopologyError
from trident.spark.environment import master_of
from trident.spark.session import spark_session
from trident.spark.shipping import ship_code
from trident.storm.execution.task_layout import TaskLayout, lay_out
from trident.storm.spark.worker_registry import Launch
from trident.storm.storm_config import StormConfig

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOCAL = re.compile(r"local(\[[^\]]*\]|$)")
_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,")
_taking = threading.Lock()
_taken: dict[tuple[str, int], int] = {}
"""How many workers each running topology of this process has, by its application of Spark. Spark itself counts running tasks
too, but may be ten seconds late."""


class Slots:
    """The slots of one topology."""

    def __init__(self, context: SparkContext, topology: str) -> None:
        self._context, self._topology = context, topology
        self._key = str(context.applicationId), id(self)

    def take(self, workers: int) -> None:
        """Take a slot for each worker, in place of those that were taken before.

        Raises
        ------
        EnvironmentProblem
            There are too few, and there will never be more.
        """
        with _taking:
            others = self._others()
            if self._is_fixed and self.found - others < workers:
                raise self.too_few(workers)
            _taken[self._key] = workers

    def release(self) -> None:
        """Give all slots back."""
        with _taking:
            _taken.pop(self._key, None)

    @property
    def found(self) -> int:
        """How many tasks Spark can run at once, as of now."""
        cpus = int(self._context.getConf().get("spark.task.cpus") or 1)
        if _LOCAL.match(self._master):
            return self._context.defaultParallelism // cpus
        cluster = _CLUSTER.match(self._master)
        if cluster is not None:
            return int(cluster[1]) * (int(cluster[2]) // cpus)
        executors = self._context._jsc.sc().statusStore().executorList(True)  # noqa: SLF001 - PySpark has no public question
        each = [executors.apply(at) for at in range(executors.size())]
        return sum(int(one.totalCores()) // cpus for one in each if one.id() != "driver")

    @property
    def grow(self) -> bool:
        """Whether Spark gets executors as tasks need them."""
        return (self._context.getConf().get("spark.dynamicAllocation.enabled") or "").lower() == "true"

    def too_few(self, workers: int) -> EnvironmentProblem:
        """Return the error for fewer slots than workers."""
        others = self._others()
        busy = f", of which {others} run other topologies" if others else ""
        if _LOCAL.match(self._master):
            way = f"start Spark with master='local[{workers + others}]'"
        else:
            way = "give Spark more executors or cores (spark.executor.instances, spark.executor.cores, spark.cores.max)"
        return EnvironmentProblem.of_now(
            f"topology {self._topology!r} has {workers} workers, each of which takes a slot of Spark for as long as it runs, "
            f"but {self._master} has {self.found} slot{'' if self.found == 1 else 's'}{busy}; Spark would wait for ever. "
            f"Ask for fewer workers, or {way}"
        )

    @property
    def _master(self) -> str:
        return self._context.master or ""

    @property
    def _is_fixed(self) -> bool:
        return bool(_LOCAL.match(self._master) or _CLUSTER.match(self._master))

    def _others(self) -> int:
        return sum(number for key, number in _taken.items() if key[0] == self._key[0] and key != self._key)


def rebalanced(launch: Launch, workers: int | None, executors: Mapping[str, int]) -> Launch:
    """Return what the workers run after a rebalance; components that are not named keep their number of executors.

    Raises
    ------
    TopologyError
        No such component, or a number of executors that its tasks do not allow.
    ConfigError
        Fewer than one worker.
    """
    layout = launch.layout
    if workers is None:
        workers = layout.workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"rebalance: workers={workers!r} must be a whole number of at least 1")
    _check(layout, executors)
    threads = {**Counter(place.component for place in layout.executors), **executors}
    ackers = launch.conf.ackers  # tasks stay, the ackers' too
    conf = replace(launch.conf, workers=workers, acker_executors=ackers)
    return replace(launch, conf=conf, layout=lay_out(launch.topology, workers, ackers, threads))


def _check(layout: TaskLayout, executors: Mapping[str, int]) -> None:
    for name, number in executors.items():
        if name not in layout.tasks:
            raise TopologyError(f"rebalance: no component {name!r} among {sorted(layout.tasks)}")
        tasks = len(layout.tasks[name])
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= tasks:
            raise TopologyError(
                f"rebalance: component {name!r} has {tasks} tasks, so it can have 1 to {tasks} executors, not {number!r}; "
                "declare more tasks with set_num_tasks"
            )


_LOOPBACK = "127.0.0.1"


def spark_is_on() -> bool:
    """Whether this process has a Spark. Not "an active session": a Spark of another thread is not ours to stop."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # noqa: SLF001  PySpark has no public question


def open_spark(conf: StormConfig) -> SparkSession:
    """Return the active session, or start Spark, with as many slots as workers if it is a local one; ship our code."""
    master = conf.master
    if not spark_is_on() and master_of(master) == "local[*]":
        master = f"local[{conf.workers}]"  # a worker takes a slot, however many cores there are
    spark = spark_session(f"storm-{conf.name}", master, dict(conf.spark_conf))
    ship_code(spark.sparkContext)
    return spark


def addresses_of(context: SparkContext) -> tuple[str, str]:
    """Return the driver's address for its workers, and the one to listen at."""
    master, conf = context.master or "", context.getConf()
    if master.startswith("local") and not master.startswith("local-cluster"):
        return _LOOPBACK, _LOOPBACK
    host = conf.get("spark.driver.host") or _LOOPBACK
    return host, conf.get("spark.driver.bindAddress") or "*"
