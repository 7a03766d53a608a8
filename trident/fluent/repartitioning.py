"""Other partitions within a batch, and the memory that a step asks for."""

from collections.abc import Callable
from typing import Any, Self

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.base import StreamBase, key_of
from trident.graph import RepartitionNode, Routing


class Repartitioning(StreamBase):
    """The calls of `Stream` that change in which partition a tuple is, or say what memory a step needs.

    How many partitions there are then, the largest `parallelism_hint` of the steps up to the next such call says; without
    one there are as many as the engine works on at once.
    """

    def shuffle(self) -> Self:
        """Spread the tuples over all partitions, in turn. A replay of the same tuples spreads them in the same way."""
        return self._repartition("shuffle", Routing("shuffle"))

    def local_or_shuffle(self) -> Self:
        """Spread the tuples as `shuffle` does: Spark decides where partitions run, so none is nearer than another."""
        return self._repartition("local_or_shuffle", Routing("shuffle"))

    def partition_by(self, *fields: FieldsLike) -> Self:
        """Bring tuples with equal values of the fields into the same partition, batch after batch."""
        routing = Routing("hash", key_of(self, Fields(*fields), "partition_by"))
        return self._repartition("partition_by", routing)

    def broadcast(self) -> Self:
        """Copy every tuple to all partitions."""
        return self._repartition("broadcast", Routing("broadcast"))

    def global_(self) -> Self:
        """Bring all tuples into one partition.

        Different from Storm: there is only this one, whatever a hint says, so no empty ones stand beside it.
        """
        return self._repartition("global", Routing("global"))

    def batch_global(self) -> Self:
        """Bring all tuples of a batch into one partition; like `global_`, because Spark places it again for every batch."""
        return self._repartition("batch_global", Routing("global"))

    def identity_partition(self) -> Self:
        """Keep every tuple in its partition. The steps behind may have a hint only if it equals that of the steps before."""
        return self._repartition("identity_partition", Routing("identity"))

    def partition(self, function: Callable[[Any, int], Any]) -> Self:
        """Let a function choose: `function(tuple, partitions)` returns a number from 0 to `partitions` - 1, or several.

        A tuple goes to all that are returned; to none if there are none.
        """
        if not callable(function) or isinstance(function, type):
            raise self._wrong(f"partition takes a function of a tuple and the number of partitions; got {function!r}")
        return self._repartition("partition", Routing("custom", self.fields, function))

    def set_memory_load(self, on_heap_mb: float, off_heap_mb: float | None = None) -> Self:
        """Say how many MiB the step takes, on and off the heap.

        The memory of the steps that run in one task is summed, and that of the tasks that an executor runs at once is added
        to `spark.executor.memoryOverhead` if the topology starts Spark itself and it is not set.

        Different from Storm: steps run in Python, beside the heap, so both numbers count alike; only YARN and Kubernetes
        set memory aside for that.
        """
        self._topology._memory_mb[self._node.id] = memory_load(on_heap_mb, off_heap_mb)
        return self

    def _repartition(self, label: str, routing: Routing) -> Self:
        if not len(self.fields):
            raise TopologyError(f"stream {self.get_name()!r} has no fields, so there is nothing to redistribute")
        return self._then(label, RepartitionNode, self.fields, routing=routing)


def memory_load(on_heap_mb: float, off_heap_mb: float | None) -> float:
    """Return how many MiB are asked for in all; raise `TopologyError` if one of the two cannot be that."""
    for mb in (on_heap_mb, 0 if off_heap_mb is None else off_heap_mb):
        if not isinstance(mb, (int, float)) or isinstance(mb, bool) or not 0 <= mb < float("inf"):
            raise TopologyError(f"set_memory_load({mb!r}): expected a number of at least 0")
    return on_heap_mb + (off_heap_mb or 0)
