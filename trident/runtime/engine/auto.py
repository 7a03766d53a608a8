"""AutoRunner opens Spark when a batch needs it: with `engine="auto"` small batches run in this process, large ones on Spark.

Which of the two takes a batch follows from its definition alone, so a replay of a batch runs where the batch ran. Both run
the same plan with the same numbers of partitions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence

from trident.errors import ConfigError, EnvironmentProblem
from trident.runtime.engine.runners import InProcessRunner, Part, Runner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order, Program
from trident.runtime.steps.failures import failure_of
from trident.spout.interfaces import TransactionAttempt


class AutoRunner(Runner):
    """Opens a runner on Spark when a batch needs it, in the thread of that batch.

    `most_bytes`: batches of at most so many bytes run in this process; larger ones, and those of unknown size, on Spark. None:
    all run on Spark, which says how wide they are; so it is opened before the first one is cut, in the thread that cuts it.
    `open_`: opens the runner on Spark. `commits`: the entries that its tasks commit.
    `opened`: what `open_` would return, if it is open already.
    """

    def __init__(
        self,
        program: Program,
        parallelism: int,
        open_: Callable[[], Runner],
        commits: Collection[str] = (),
        most_bytes: int | None = None,
        opened: Runner | None = None,
    ) -> None:
        self.program, self.parallelism, self.commits, self._most_bytes = program, parallelism, commits, most_bytes
        self._small: InProcessRunner | None = None
        if most_bytes is not None:
            self._small = InProcessRunner(program, parallelism)
            self.program, self.operations = self._small.program, self._small.operations
        self._open, self._opened, self._closed = open_, opened, False
        self._large: Runner = self if opened is None else opened
        self._lock = threading.Lock()

    def of_size(self, size: int | None) -> Runner:
        """Return the runner for a batch of about `size` bytes.

        Raises why Spark cannot be opened, if it says how wide batches are.
        """
        if self._small is None or self._most_bytes is None:
            runner = self._runner()
            if runner is not None:
                self.program, self.parallelism = runner.program, runner.parallelism
        elif size is not None and size <= self._most_bytes:
            return self._small
        return self._large

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Process a batch on Spark. If it cannot be opened the batch fails, and another try would not help."""
        try:
            runner = self._runner()
        except (ConfigError, EnvironmentProblem) as error:
            return TaskOutput(failure=failure_of("spark", error, retry=False))
        return runner.process(attempt, parts, order) if runner is not None else TaskOutput()

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        runner = self._runner()
        return runner.commit(output, order) if runner is not None else output

    def _runner(self) -> Runner | None:
        """Return the runner on Spark; None once this is closed, because then the result is not used."""
        with self._lock:
            if self._opened is None and not self._closed:
                self._opened = self._open()
            return None if self._closed else self._opened

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel an attempt, if Spark is open."""
        opened = self._opened  # without the lock, which is held while Spark starts
        if opened is not None:
            opened.cancel(attempt)

    def close(self) -> None:
        try:
            with self._lock:
                self._closed = True
                if self._opened is not None:
                    self._opened.close()
        finally:
            if self._small is not None:
                self._small.close()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
