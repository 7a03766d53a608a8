"""Spark jobs of one task each, which does not end by itself: a worker that dies is started again alone."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from trident.errors import EnvironmentProblem
from trident.spark.job_errors import crash_of, job_failure, jvm_gone

if TYPE_CHECKING:
    from pyspark import SparkContext

_CRASHED = "Python worker exited unexpectedly"

Said = str | EnvironmentProblem | None
"""What Spark says of a job that is over: None if the task returned, an `EnvironmentProblem` if no other try can help."""


class WorkerJob:
    """One incarnation of a worker, as a job in a thread of its own.

    `body`: what the task does.
    `ended`: called by that thread when the job is over.
    """

    def __init__(
        self,
        context: SparkContext,
        topology: str,
        worker: int,
        body: Callable[[], Iterator[Any]],
        ended: Callable[[WorkerJob, Said], None],
    ) -> None:
        from pyspark import InheritableThread

        self.worker = worker
        self._context, self._topology, self._body, self._ended = context, topology, body, ended
        self._group = f"worker-{uuid.uuid4().hex}"
        self._thread: threading.Thread = InheritableThread(
            target=self._run, name=f"trident-{topology}-worker-{worker}", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Have Spark end the task, whatever it does."""
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(self._group)

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the job; whether it came."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._ended(self, self._end())

    def _end(self) -> Said:
        from pyspark.errors import PySparkException

        context, body = self._context, self._body
        try:
            what = f"topology {self._topology}: worker {self.worker}"
            context.setJobGroup(self._group, what, interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(lambda _: body()).collect()
        except (Py4JJavaError, PySparkException) as error:
            failure = job_failure(error, context)
            if _CRASHED in failure.cause:
                crash = crash_of(failure.cause)
                why = f"native code crashed ({crash})" if crash else "it was killed, maybe because memory ran out"
                return f"the Python process of worker {self.worker} has ended: {why}"
            return failure.cause if failure.retry else EnvironmentProblem(failure.cause)
        except (Py4JError, OSError, AttributeError) as error:  # of a context that was stopped
            return jvm_gone(error)
        return None
