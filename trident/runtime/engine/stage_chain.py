"""The stages of a Spark job: what each of them reads, and what the driver gets of it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trident.runtime.engine.hops import Routes

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

Body = Callable[[int, Any], Iterator[Any]]
"""What a task of a stage does: takes its number and what it reads."""


class Stages:
    """Puts stages together, for jobs of the same routes."""

    def __init__(self, context: SparkContext, routes: Routes) -> None:
        self.routes = routes
        self._shuffles = Shuffles(context, routes.count)

    def until(self, end: int, first: RDD[Any], body: Callable[[int], Body]) -> list[Shuffle]:
        """Return what the first stage and the levels before the `end`-th send."""
        return self._sent([self._shuffles.sent(first)], end, body)

    def told(self, sent: list[Shuffle]) -> RDD[Any]:
        """Return what some stages send to the driver."""
        return self._shuffles.read(sent, self.routes.driver)

    def rest(self, sent: list[Shuffle], body: Callable[[int], Body], told: int = 0) -> RDD[Any]:
        """Return what the last stage gives, and what others send to the driver; `told` stages have been asked before."""
        last = len(self.routes.levels)
        sent = self._sent(list(sent), last, body)
        rows = self._level(sent, last, body)
        return rows.union(self.told(sent[told:])) if self.routes.driver and sent[told:] else rows

    def _sent(self, sent: list[Shuffle], end: int, body: Callable[[int], Body]) -> list[Shuffle]:
        for stage in range(len(sent), end):
            sent.append(self._shuffles.sent(self._level(sent, stage, body)))
        return sent

    def _level(self, sent: list[Shuffle], stage: int, body: Callable[[int], Body]) -> RDD[Any]:
        at = stage - 1
        sources = [sent[source] for source in self.routes.sources[at]]
        arrived = self._shuffles.read(sources, self.routes.levels[at])
        return arrived.mapPartitionsWithIndex(body(stage))


class KeptStages(NamedTuple):
    """The stages of a batch that is processed: the job that commits it reads what they sent, as long as this is kept.

    `sources`: by stage, the digest of its runs of which the driver was told.
    """

    stages: Stages
    sent: list[Shuffle]
    sources: Mapping[int, str]


# What the stages of a job send, in Spark's shuffles; a stage reads its destinations from several of them at once.
#
# Spark's JVM puts the shuffles together partition by partition, because all have the same partitioner, and leaves out the
# partitions that a stage does not read. What the driver reads passes through no Python worker.

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
