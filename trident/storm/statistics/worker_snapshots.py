"""What the executors of a worker have done since they were opened, as plain data that may cross to another process.

Nothing is counted for this: a snapshot reads the totals that each executor's thread keeps anyway.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import SystemRandom
from typing import NamedTuple, TypedDict

from trident.storm.execution.acker import AckerExecutor
from trident.storm.execution.bolt_executor import BoltExecutor
from trident.storm.execution.counts import BoltCounts, SpoutCounts
from trident.storm.execution.executor import Executor
from trident.storm.execution.out_streams import OutStream
from trident.storm.execution.spout_executor import SpoutExecutor
from trident.storm.execution.storm_worker import PresentCall

_random = SystemRandom()


class CountKey(NamedTuple):
    """What a total counts.

    `measure`: `emitted`, `transferred`, `executed`, `acked`, `failed`; the seconds `execute_s`, `process_s`, `complete_s`,
    `busy_s`; and of how many tuples these are: `process_samples`, `complete_samples`.
    `component`, `stream`: of input, where it came from. Of output, the component is empty.
    """

    task: int
    measure: str
    component: str
    stream: str


Calls = list[tuple[tuple[int, ...], float, float, str]]
"""What executors are at, see `WorkerSnapshot`."""


class WorkerSnapshot(TypedDict):
    """The totals of one worker.

    Attributes
    ----------
    start
        Another one for each start of the worker: its totals begin at 0 again.
    number
        Grows with each snapshot of a start.
    totals
        Lists of a `CountKey` and its value.
    pending
        Lists of a spout's task and how many of its tracked messages are not answered.
    port
        Where other workers send to; 0 for one of the topology's own process.
    calls
        What executors have been at for a second or more: their tasks, the seconds of the present call, those that are in no
        total yet, and where the call is.
    """

    worker: int
    start: int
    number: int
    host: str
    pid: int
    uptime_s: float
    totals: list[tuple[tuple[int, str, str, str], float]]
    pending: list[tuple[int, int]]
    port: int
    calls: Calls


class WorkerSnapshots:
    """Takes snapshots of one worker, from any thread, while its executors run.

    Parameters
    ----------
    executors
        Those of one start of the worker; a new start needs a new object.
    at_work
        Returns what executors have been at for a second or more.
    port
        Where other workers send to.
    """

    def __init__(
        self,
        worker: int,
        executors: Sequence[Executor],
        at_work: Callable[[], Sequence[PresentCall]] = tuple,
        port: int = 0,
    ) -> None:
        self._port = port
        self._worker, self._executors, self._at_work = worker, tuple(executors), at_work
        self._start, self._number = _random.getrandbits(62), 0
        self._host, self._began = socket.gethostname(), time.monotonic()

    def take(self) -> WorkerSnapshot:
        """Return what there is now."""
        self._number += 1
        return {
            "worker": self._worker,
            "start": self._start,
            "number": self._number,
            "host": self._host,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._began,
            "totals": [total for each in self._executors for total in _totals_of(each)],
            "pending": [
                (task, each.collector.pending)
                for executor in self._executors
                if isinstance(executor, SpoutExecutor)
                for task, each in list(executor.tasks.items())
            ],
            "port": self._port,
            "calls": [(each.place.tasks, each.seconds, each.uncounted_s, each.where) for each in self._at_work()],
        }


# Dicts that a thread writes are copied by `list(….items())`, which no other thread can interrupt.


def _totals_of(executor: Executor) -> Iterator[tuple[CountKey, float]]:
    if isinstance(executor, BoltExecutor):
        for task, collector in list(executor.collectors.items()):
            yield from _of_streams(task, collector.streams)
            yield from _of_bolt(task, collector.counts)
    elif isinstance(executor, SpoutExecutor):
        for task, each in list(executor.tasks.items()):
            yield from _of_streams(task, each.collector.streams)
            yield from _of_spout(task, each.counts)
    elif isinstance(executor, AckerExecutor):
        task = executor.place.tasks[0]
        yield CountKey(task, "executed", "", ""), executor.handled
        yield CountKey(task, "execute_s", "", ""), executor.busy_s


def _of_streams(task: int, streams: Mapping[str, OutStream]) -> Iterator[tuple[CountKey, float]]:
    for name, stream in streams.items():
        yield CountKey(task, "emitted", "", name), stream.emitted
        yield CountKey(task, "transferred", "", name), stream.transferred


def _of_bolt(task: int, counts: BoltCounts) -> Iterator[tuple[CountKey, float]]:
    found: dict[CountKey, float] = {}
    for origin, each in list(counts.items()):
        for measure, value in each.totals().items():
            if value:
                key = CountKey(task, measure, origin.component, origin.stream)
                found[key] = found.get(key, 0) + value  # several tasks emit to one stream
    yield from found.items()


def _of_spout(task: int, counts: SpoutCounts) -> Iterator[tuple[CountKey, float]]:
    for stream, each in list(counts.items()):
        for measure, value in each.totals().items():
            if value:
                yield CountKey(task, measure, "", stream), value
    yield CountKey(task, "busy_s", "", ""), counts.busy_s
