"""Runs one task of a spout of messages as an executor does: opens it from its pickle, and calls it in one thread."""

import pickle
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

from trident.storm.interfaces import TopologyContext

__all__ = ["LIMIT_S", "OPENED", "Collector", "Task", "context"]

OPENED: list[Any] = []
"""What a test has opened and not closed; the fixture of all spouts does that."""
LIMIT_S = 30.0


def context(task: int = 0, tasks: int = 1, component: str = "queue") -> TopologyContext:
    ids = tuple(range(1, tasks + 1))
    return TopologyContext("tests", component, ids[task], task, tasks, 0, {component: ids})


class Collector:
    """Keeps what is emitted and reported."""

    def __init__(self) -> None:
        self.emitted: list[tuple[tuple[Any, ...], Any]] = []
        self.errors: list[str] = []

    @property
    def pending(self) -> int:
        return len(self.emitted)

    def emit(self, values: Any, message_id: Any = None, stream_id: str = "default") -> list[int]:
        assert message_id is not None
        assert stream_id == "default"
        self.emitted.append((tuple(values), message_id))
        return []

    def emit_direct(self, task: int, values: Any, message_id: Any = None, stream_id: str = "default") -> None:
        raise AssertionError("these spouts emit to no task of their choice")

    def report_error(self, error: BaseException) -> None:
        self.errors.append(str(error))


class Task:
    """One task."""

    def __init__(self, spout: Any, task: int = 0, tasks: int = 1, component: str = "queue") -> None:
        self.spout = pickle.loads(cloudpickle.dumps(spout))
        self.collector = Collector()
        self.spout.open({}, context(task, tasks, component), self.collector)
        OPENED.append(self)

    @property
    def errors(self) -> list[str]:
        return self.collector.errors

    def take(self, count: int) -> list[tuple[tuple[Any, ...], Any]]:
        """Call the spout until it has emitted so many more tuples; return their values and ids."""
        emitted = self.collector.emitted
        self.until(lambda: len(emitted) >= count, f"{count} tuples")
        assert len(emitted) == count
        taken = list(emitted)
        emitted.clear()
        return taken

    def until(self, condition: Callable[[], object], what: str = "a condition") -> None:
        """Call the spout until a condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"{what}: not within {LIMIT_S} s; {self.collector.emitted} {self.errors}"
            )
            self.spout.next_tuple()

    def drain(self, let_go: Callable[[], object], fails: Callable[[Any], bool] = lambda values: False) -> list[Any]:
        """Call the spout and answer each tuple until a condition holds; return the values of all."""
        values = []

        def answer() -> object:
            for each, id_ in self.collector.emitted:
                values.append(each)
                (self.spout.fail if fails(each) else self.spout.ack)(id_)
            self.collector.emitted.clear()
            return let_go()

        self.until(answer, "an empty queue")
        return values

    def close(self) -> None:
        OPENED.remove(self)
        self.spout.close()
