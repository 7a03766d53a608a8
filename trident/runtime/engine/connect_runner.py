"""ConnectRunner: each attempt is one query on a server of Spark Connect, which has no RDDs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trident.runtime.engine.dataframe_runner import DataFrameRunner, QueryStopped
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order, Part, Program
from trident.runtime.steps.failures import failure_of
from trident.spout.interfaces import TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ConnectRunner(DataFrameRunner):
    """The lowering to DataFrames for topologies that Trident drives; states are committed by the driver, the client.

    `stop`: ends a session that ends with the topology.
    """

    def __init__(
        self, program: Program, parallelism: int, session: SparkSession, stop: Callable[[], None] | None
    ) -> None:
        super().__init__(program, parallelism, session)
        self._client, self._stop = session, stop

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Run all parts as one query, tagged so that it can be interrupted."""
        tag = self._tag(attempt)
        self._client.addTag(tag)  # of this thread
        try:
            return super().process(attempt, parts, order)
        except QueryStopped as stopped:
            return TaskOutput(failure=failure_of("spark", Exception(f"interrupted: {stopped.__cause__}")))
        finally:
            self._client.removeTag(tag)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._client.interruptTag(self._tag(attempt))

    def close(self) -> None:
        super().close()
        if self._stop is not None:
            self._stop()

    def _tag(self, attempt: TransactionAttempt) -> str:
        return f"{self._id}/{attempt.txid}:{attempt.attempt}"  # another topology in the session has the same numbers
