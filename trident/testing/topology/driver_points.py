"""Named points of a batch's life at which a `TopologyTestDriver` lets it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import CommitRecord, Record
from trident.errors import TridentError
from trident.runtime.engine.runners import Part, Runner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order
from trident.runtime.steps.failures import failure_of
from trident.spout.interfaces import TransactionAttempt
from trident.testing.backend.faulty_map import InjectedFault
from trident.testing.topology.driver_result import Captures

_POINTS = ("define", "process", "record")
_STATE_POINTS = ("begin_commit", "put", "commit")


class FailurePoints:
    """The points that have to fail, and how often.

    `states`: the states that batches write, by name.
    """

    def __init__(self, topology: str, states: Iterable[str]) -> None:
        self._topology = topology
        self._known = [*_POINTS, *(f"{point}:{state}" for state in states for point in _STATE_POINTS)]
        self._left: dict[str, int] = {}

    def fail_at(self, point: str, times: int) -> None:
        """Let the next `times` attempts that reach the point fail there; `TridentError` if there is no such point."""
        if point not in self._known:
            raise TridentError(
                f"topology {self._topology!r} has no point {point!r} to fail at; it has {', '.join(self._known)}"
            )
        if times < 1:
            raise ValueError(f"fail_at({point!r}, times={times}): give at least 1")
        self._left[point] = self._left.get(point, 0) + times

    def reach(self, point: str, state: str = "") -> None:
        """Raise `InjectedFault` if the point, maybe one of a state's commit, is to fail."""
        point = f"{point}:{state}" if state else point
        left = self._left.pop(point, 0)
        if left > 1:
            self._left[point] = left - 1
        if left:
            raise InjectedFault(f"failed at {point!r}, as the test asked")


class WatchedRunner(Runner):
    """Passes everything to a runner of this process; fails after a batch is processed, if a test asks for that.

    `seen`: gets what each attempt was processed from.
    """

    here = True

    def __init__(
        self,
        runner: Runner,
        points: FailurePoints,
        captures: Captures,
        seen: dict[TransactionAttempt, tuple[Sequence[Part], Order]],
    ) -> None:
        self._runner, self._points, self._captures = runner, points, captures
        self._seen = seen
        self.parallelism, self.program, self.operations = runner.parallelism, runner.program, runner.operations

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        """Process a batch and keep the tuples of its streams."""
        self._seen[order.attempt] = parts, order
        with self._captures.of(order.attempt):
            output = self._runner.process(parts, order)
        try:
            self._points.reach("process")
        except InjectedFault as fault:
            return TaskOutput(failure=failure_of("process", fault))
        return output

    def close(self) -> None:
        self._runner.close()


class WatchedLog:
    """Passes everything to a log; before a commit record it calls `reach`, which may raise, as if the driver died there."""

    def __init__(self, log: TransactionLog, reach: Callable[[str], None]) -> None:
        self._log, self._reach = log, reach
        self.state, self.epoch = log.state, log.epoch

    def append(self, record: Record, durable: bool = True) -> None:
        if isinstance(record, CommitRecord):
            self._reach("record")
        self._log.append(record, durable)

    def check_owner(self) -> None:
        self._log.check_owner()

    def stop_waiting(self) -> None:
        self._log.stop_waiting()

    def close(self) -> None:
        self._log.close()
