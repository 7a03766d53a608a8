"""What the stages of a job send, in Spark's shuffles; a stage reads its destinations from several of them at once.

Spark's JVM puts the shuffles together partition by partition, because all have the same partitioner, and leaves out the
partitions that a stage does not read. What the driver reads passes through no Python worker.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

__all__ = ["Shuffle", "Shuffles"]

_NUMBER = struct.Struct("!q")

Shuffle = Any
"""What a stage sends, as an object of the JVM. Spark keeps its files until this is forgotten."""


class Shuffles:
    """Shuffles with so many destinations; made once, and used by many jobs."""

    def __init__(self, context: SparkContext, count: int) -> None:
        jvm = context._jvm  # noqa: SLF001 - what PySpark's own partitionBy and union do
        assert jvm is not None
        self._context, self._jvm, self._count = context, jvm, count
        self._partitioner = jvm.PythonPartitioner(count, 0)
        self._prune = jvm.org.apache.spark.rdd.PartitionPruningRDD.create
        self._filters: dict[range, Any] = {}

    def sent(self, rows: RDD[Any]) -> Shuffle:
        """Return the shuffle of a stage that gives pairs: the number of a destination, and what is sent there."""
        numbered = rows.mapPartitions(_numbered)
        numbered._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001 - as above
        pairs = self._jvm.PairwiseRDD(numbered._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001 - as above
        return pairs.partitionBy(self._partitioner)

    def read(self, shuffles: Sequence[Shuffle], numbers: range) -> RDD[Any]:
        """Return what was sent to some destinations, a partition each."""
        from pyspark import RDD
        from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer

        first, *others = shuffles
        for other in others:
            first = first.union(other)  # of equal partitioners: partition by partition
        values = self._jvm.PythonRDD.valueOfPair(first)
        if len(numbers) < self._count:
            values = self._prune(values.rdd(), self._filter(numbers)).toJavaRDD()
        # The serializer of Spark's sessions: PySpark unites RDDs of one serializer without a look at their items.
        return RDD(values, self._context, AutoBatchedSerializer(CPickleSerializer()))

    def _filter(self, numbers: range) -> Any:
        """Return the numbers as a set of Scala, which is a function that says whether a number is in it."""
        if numbers not in self._filters:
            boxed = self._jvm.java.util.ArrayList()
            for number in numbers:
                boxed.add(number)
            self._filters[numbers] = self._jvm.PythonUtils.toSeq(boxed).toSet()
        return self._filters[numbers]


def _numbered(items: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """Give each item as PySpark's shuffle writes it: a number, then a batch, here of one item."""
    for to, item in items:
        yield _NUMBER.pack(to)
        yield pickle.dumps([item], pickle.HIGHEST_PROTOCOL)
