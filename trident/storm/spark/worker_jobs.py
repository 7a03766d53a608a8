"""Spark jobs of one task each: a worker that dies is started again alone."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError

from trident.errors import EnvironmentProblem
from trident.spark.job_errors import job_failure, jvm_gone
from trident.storm.spark.worker_registry import Ticket
from trident.storm.spark.worker_task import run_worker
from trident.storm.storm_errors import WorkerLostError

if TYPE_CHECKING:
    from pyspark import SparkContext

_CRASHED = "Python worker exited unexpectedly"
Ended = Callable[["WorkerJob", Exception | None], None]


class WorkerJob:
    """One incarnation of a worker, as a job in a thread of its own.

    Parameters
    ----------
    ended
        Called by that thread when the job is over, with what Spark says about it: None if the task returned, an
        `EnvironmentProblem` if no other try can help.
    """

    def __init__(self, context: SparkContext, ticket: Ticket, ended: Ended) -> None:
        from pyspark import InheritableThread

        self.worker, self.incarnation = ticket.worker, ticket.incarnation
        self._context, self._ticket, self._ended = context, ticket, ended
        self._group = f"storm-{uuid.uuid4().hex}"
        self._thread: threading.Thread = InheritableThread(
            target=self._run, name=f"storm-{ticket.topology}-worker-{ticket.worker}", daemon=True
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

    def _end(self) -> Exception | None:
        from pyspark.errors import PySparkException

        context, ticket = self._context, self._ticket
        what = f"topology {ticket.topology}: worker {ticket.worker}"
        try:
            context.setJobGroup(self._group, what, interruptOnCancel=True)
            context.parallelize([ticket], 1).mapPartitions(run_worker).collect()
        except (Py4JJavaError, PySparkException) as error:
            failure = job_failure(error, context)
            if _CRASHED in failure.cause:
                return WorkerLostError(
                    f"the Python process of worker {ticket.worker} has ended: it was killed, maybe because memory ran out, or "
                    "native code crashed"
                )
            return WorkerLostError(failure.cause) if failure.retry else EnvironmentProblem(failure.cause)
        except (Py4JError, OSError, AttributeError) as error:  # of a context that was stopped
            return jvm_gone(error)
        return None
