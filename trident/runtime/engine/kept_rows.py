"""Rows of a processed batch that Spark keeps for its commit, apart from what goes to the driver at once.

Both are the output of the same run of each task. So Spark must not run a task twice for them: the output is kept by Spark
before it is divided, in the JVM, by a number that each piece has.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import RDD, StorageLevel
from pyspark.serializers import BatchedSerializer, CPickleSerializer, pack_long

from trident.runtime.engine.hops import Sent, digest_of

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["KeptRows", "keep"]

# More than 32 bits, so that Py4J passes Java's Long, which is what the numbers are there; Spark partitions by the lower 32.
_ROWS, _TO_DRIVER = 1 << 40, 1 << 41


class KeptRows:
    """The output of the last stage of a job, kept by Spark."""

    def __init__(self, context: SparkContext, pairs: Any) -> None:
        self._context, self._pairs = context, pairs
        self.sources = ""

    def collect(self) -> list[bytes]:
        """Run the job; return what goes to the driver, and note which runs of tasks the rest comes from."""
        mine = self._pairs.filterByRange(_TO_DRIVER, _TO_DRIVER).values()
        pairs: list[tuple[int, Sent]] = RDD(mine, self._context, BatchedSerializer(CPickleSerializer())).collect()
        self.sources = digest_of({sent.source for _, sent in pairs})
        return [sent.item for _, sent in pairs if isinstance(sent.item, bytes)]

    def rows(self, partitions: int) -> RDD[Any]:
        """Return the items of each task of the next stage, in as many partitions."""
        jvm = self._context._jvm  # noqa: SLF001 - what PySpark's own partitionBy does
        assert jvm is not None
        rest = self._pairs.filterByRange(_ROWS, _TO_DRIVER - 1)
        partitioned = rest.partitionBy(jvm.PythonPartitioner(partitions, 0))
        return RDD(jvm.PythonRDD.valueOfPair(partitioned), self._context, BatchedSerializer(CPickleSerializer()))

    def free(self) -> None:
        """Let Spark forget the rows, without waiting for it."""
        if self._pairs is not None:
            self._pairs.unpersist(False)
            self._pairs = None


def keep(context: SparkContext, rows: RDD[Any]) -> KeptRows:
    """Keep what a stage sends: pairs of a task of the next stage and a `Sent`."""
    jvm = context._jvm  # noqa: SLF001 - as above
    assert jvm is not None
    numbered = rows.mapPartitions(_numbered, preservesPartitioning=True)
    numbered._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001
    pairs = jvm.PairwiseRDD(numbered._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    pairs.persist(context._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK))  # noqa: SLF001
    return KeptRows(context, pairs)


def _numbered(items: Iterable[tuple[int, Sent]]) -> Iterator[bytes]:
    """Give each item as PySpark's shuffle writes it: a number, then a batch of one pickled pair."""
    for to, sent in items:
        yield pack_long(_TO_DRIVER if isinstance(sent.item, bytes) else _ROWS + to)
        yield pickle.dumps([(to, sent)], pickle.HIGHEST_PROTOCOL)
