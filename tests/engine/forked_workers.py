"""Resident workers without Spark: forked processes in place of its tasks, so that a life takes a fraction of a second."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from trident.config import Config
from trident.engine import spark_runner
from trident.engine.resident_runner import ResidentRunner
from trident.engine.worker import Program
from trident.run import engine_choice
from trident.spark import worker_group

_FORKS = multiprocessing.get_context("forkserver")  # this process has threads, that one has none
_FORKS.set_forkserver_preload([__name__, "states.delta", "states.memory", "states.redis", "tests.crash.case"])


class LocalContext:
    """What the pool asks of a context and of a session of Spark."""

    applicationId, master, defaultParallelism, _jvm = "forked", "local[2]", 2, None  # noqa: N815  the names are Spark's

    @property
    def sparkContext(self) -> LocalContext:  # noqa: N802
        return self

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {}


class _ForkedJob:
    """As a `WorkerJob`."""

    def __init__(
        self,
        context: Any,
        topology: str,
        worker: int,
        body: Callable[[], Any],
        ended: Callable[[_ForkedJob, str | None], None],
    ) -> None:
        self.worker, self._ended = worker, ended
        self._process = _FORKS.Process(target=body, daemon=True)
        self._thread = threading.Thread(target=self._wait, name=f"forked-{worker}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._process.kill()

    def join(self, wait_s: float) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _wait(self) -> None:
        self._process.start()
        self._process.join()
        self._ended(self, None if not self._process.exitcode else f"exit code {self._process.exitcode}")


def _runner(program: Program, config: Config, memory_mb: float) -> ResidentRunner:
    spark: Any = LocalContext()
    return ResidentRunner(spark, program, config.parallelism, False)


@contextmanager
def forked_workers() -> Iterator[None]:
    """Take them wherever Spark is asked for."""
    with (
        mock.patch.object(engine_choice, "_spark_runner", _runner),
        mock.patch.object(worker_group, "WorkerJob", _ForkedJob),
        mock.patch("pyspark.InheritableThread", threading.Thread),
        mock.patch.object(spark_runner, "most_shipped", return_value=64 << 20),
    ):
        yield
