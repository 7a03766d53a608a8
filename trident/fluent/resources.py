"""What a step asks for of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.errors import TopologyError
from trident.fluent.base import StreamBase
from trident.graph import Resources

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Resourceful", "with_cpu", "with_memory"]


class Resourceful(StreamBase):
    """The calls of `Stream` that say what its last step needs."""

    def set_cpu_load(self, percent: float) -> Self:
        """Say how much of a core the step takes, in percent: 100 is a whole one.

        The loads of the steps that run in one task are summed, and a task takes that many whole cores of its executor.

        Different from Storm: Spark gives a task no part of a core, and a local master places nothing. What is done when
        batches are committed runs in the driver, where the load is recorded only.
        """
        self._topology._resource(self._node.id, with_cpu(percent))
        return self

    def set_memory_load(self, on_heap_mb: float, off_heap_mb: float | None = None) -> Self:
        """Say how many MiB the step takes, on and off the heap.

        The memory of the steps that run in one task is summed, and that of the tasks that an executor runs at once is added
        to `spark.executor.memoryOverhead` if the topology starts Spark itself and it is not set.

        Different from Storm: steps run in Python, beside the heap, so both numbers count alike; only YARN and Kubernetes
        set memory aside for that.
        """
        self._topology._resource(self._node.id, with_memory(on_heap_mb, off_heap_mb))
        return self


def with_cpu(percent: float) -> Resources:
    """Return a request for a part of a core."""
    return Resources(cpu_percent=_amount("set_cpu_load", percent))


def with_memory(on_heap_mb: float, off_heap_mb: float | None) -> Resources:
    """Return a request for memory."""
    off = None if off_heap_mb is None else _amount("set_memory_load", off_heap_mb)
    return Resources(memory_mb=_amount("set_memory_load", on_heap_mb), off_heap_mb=off)


def _amount(call: str, value: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise TopologyError(f"{call}({value!r}): expected a number of at least 0")
    return value
