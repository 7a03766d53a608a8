"""What the executors of a worker have done since they were opened, as plain data that may cross to another process.

Nothing is counted for this: a snapshot reads the totals that each executor's thread keeps anyway.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import SystemRandom
from typing import NamedTuple, TypedDict

from trident.storm.execution.executor import Executor
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
        How many tracked messages of its spouts are not answered.
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
    pending: int
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
            "pending": sum(each.pending for each in self._executors),
            "port": self._port,
            "calls": [(each.place.tasks, each.seconds, each.uncounted_s, each.where) for each in self._at_work()],
        }


def _totals_of(executor: Executor) -> Iterator[tuple[CountKey, float]]:
    # Dicts that a thread writes are copied by `list(….items())`, which no other thread can interrupt.
    for task, collector in list(executor.collectors.items()):
        for name, stream in collector.streams.items():
            yield CountKey(task, "emitted", "", name), stream.emitted
            yield CountKey(task, "transferred", "", name), stream.transferred
    for task, counts in list(executor.counts.items()):
        found = defaultdict[CountKey, float](float, {CountKey(task, "busy_s", "", ""): counts.busy_s})
        for source, each in list(counts.items()):
            place = ("", source) if isinstance(source, str) else (source.component, source.stream)
            for measure, value in each.totals().items():
                found[CountKey(task, measure, *place)] += value  # several tasks emit to one stream
        yield from found.items()
