"""Where workers run that stay: the slots of Spark that they take, and the driver's address for them."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from trident.errors import EnvironmentProblem
from trident.spark.environment import executors_of, is_local, local_slots

if TYPE_CHECKING:
    from pyspark import SparkContext

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

        Raises `EnvironmentProblem`: there are too few, and there will never be more.
        """
        with _taking:
            others = self._others()
            if self._is_fixed and self.found - others < workers:
                raise self.too_few(workers)
            _taken[self._key] = workers

    def take_free(self, most: int, spare: int = 0) -> int:
        """Take the slots that no other topology has but the spare ones, at most so many; return how many.

        Raises `EnvironmentProblem`: there is none, and there will never be one.
        """
        with _taking:
            count = most if self.grow else max(1, min(most, self.free - spare))
            if self._is_fixed and self.free < count:
                raise self.too_few(count)
            _taken[self._key] = count
            return count

    def release(self) -> None:
        """Give all slots back."""
        with _taking:
            _taken.pop(self._key, None)

    @property
    def free(self) -> int:
        """How many of those that were found no other topology of this process has."""
        return self.found - self._others()

    @property
    def found(self) -> int:
        """How many tasks Spark can run at once, as of now."""
        cpus = int(self._context.getConf().get("spark.task.cpus") or 1)
        slots = local_slots(self._master, self._context._jvm)  # noqa: SLF001  as below
        if slots is not None:
            return slots // cpus
        cluster = _CLUSTER.match(self._master)
        if cluster is not None:
            return int(cluster[1]) * (int(cluster[2]) // cpus)
        found = executors_of(self._context)
        return sum(int(one.totalCores()) // cpus for one in found if one.id() != "driver")

    @property
    def grow(self) -> bool:
        """Whether Spark gets executors as tasks need them."""
        return (self._context.getConf().get("spark.dynamicAllocation.enabled") or "").lower() == "true"

    def too_few(self, workers: int) -> EnvironmentProblem:
        """Return the error for fewer slots than workers."""
        others = self._others()
        busy = f", of which {others} run other topologies" if others else ""
        if is_local(self._master):
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
        return bool(is_local(self._master) or _CLUSTER.match(self._master))

    def _others(self) -> int:
        return sum(number for key, number in _taken.items() if key[0] == self._key[0] and key != self._key)


def check_free_slots(context: SparkContext, topology: str) -> None:
    """Raise `EnvironmentProblem` if resident workers of other topologies keep all slots: a job would wait for ever."""
    with _taking:
        slots = Slots(context, topology)
        taken = slots.found - slots.free
        if taken and not slots.free and not slots.grow:
            raise EnvironmentProblem.of_now(
                f"topology {topology!r} runs Spark jobs, but all {taken} slots of {context.master} are kept by workers of "
                "other topologies; Spark would wait for ever. Give these fewer workers (parallelism), or Spark more slots"
            )


_LOOPBACK = "127.0.0.1"


def addresses_of(context: SparkContext) -> tuple[str, str]:
    """Return the driver's address for its workers, and the one to listen at."""
    master, conf = context.master or "", context.getConf()
    if master.startswith("local") and not master.startswith("local-cluster"):
        return _LOOPBACK, _LOOPBACK
    host = conf.get("spark.driver.host") or _LOOPBACK
    return host, conf.get("spark.driver.bindAddress") or "*"
