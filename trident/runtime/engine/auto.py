"""`engine="auto"`: small batches run in this process, large ones on Spark, which starts with the first of them.

Which of the two takes a batch follows from its definition alone, so a replay of a batch runs where the batch ran. Both run
the same plan with the same numbers of partitions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from trident.errors import ConfigError, EnvironmentProblem
from trident.runtime.engine.runners import InProcessRunner, Part, Runner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order, Program
from trident.runtime.steps.failures import failure_of
from trident.spout.interfaces import TransactionAttempt


class AutoRunner:
    """Picks a runner for each batch, by its size.

    `here`, `elsewhere`: `here` takes batches of at most `most_bytes`; `elsewhere` takes larger ones, and those of unknown size.
    """

    here = False
    commits: Collection[str] = ()  # each batch asks the runner that takes it

    def __init__(self, here: InProcessRunner, elsewhere: Runner, most_bytes: int) -> None:
        self._here, self._elsewhere, self._most_bytes = here, elsewhere, most_bytes
        self.parallelism, self.program, self.operations = here.parallelism, here.program, here.operations

    def of_size(self, size: int | None) -> Runner:
        """Return the runner for a batch of about `size` bytes."""
        return self._here if size is not None and size <= self._most_bytes else self._elsewhere

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        return self._elsewhere.process(attempt, parts, order)

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        return self._elsewhere.commit(output, order)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._elsewhere.cancel(attempt)

    def close(self) -> None:
        try:
            self._elsewhere.close()
        finally:
            self._here.close()


class LateRunner:
    """A runner that opens with its first batch, in the thread of that batch."""

    here = False
    _opened: Runner | None

    def __init__(
        self, program: Program, parallelism: int, open_: Callable[[], Runner], commits: Collection[str] = ()
    ) -> None:
        self.program, self.parallelism, self.commits = program, parallelism, commits
        self.operations: Sequence[Any] = ()
        self._open, self._opened, self._closed = open_, None, False
        self._lock = threading.Lock()

    def of_size(self, size: int | None) -> Runner:
        return self

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Process a batch. If the runner cannot be opened the batch fails, and another try would not help."""
        try:
            runner = self._runner()
        except (ConfigError, EnvironmentProblem) as error:
            return TaskOutput(failure=failure_of("spark", error, retry=False))
        return runner.process(attempt, parts, order) if runner is not None else TaskOutput()

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        runner = self._runner()
        return runner.commit(output, order) if runner is not None else output

    def _runner(self) -> Runner | None:
        """Return the runner; None once this is closed, because then the result is not used."""
        with self._lock:
            if self._opened is None and not self._closed:
                self._opened = self._open()
            return None if self._closed else self._opened

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel an attempt, if the runner is open."""
        opened = self._opened  # without the lock, which is held while Spark starts
        if opened is not None:
            opened.cancel(attempt)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.close()


class FirstBatchRunner(LateRunner):
    """A runner that opens before its first batch is cut, in the thread that cuts it: batches have the width that it chooses."""

    def of_size(self, size: int | None) -> Runner:
        """Return the runner that is opened, or this one if it is closed meanwhile. Raises why it cannot be opened."""
        runner = self._runner()
        if runner is None:
            return self
        self.program, self.parallelism = runner.program, runner.parallelism
        return runner.of_size(size)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
