"""Batch and LoopMessage: what the loop knows about a running attempt, and what other threads report; and the driver's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from operator import call
from typing import NamedTuple

from trident.coordination.records import TIME
from trident.runtime.commit.committer import Committed
from trident.runtime.engine.replay_check import Checked
from trident.runtime.engine.runners import Runner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.steps.failures import Failure
from trident.runtime.windows.shares import Now
from trident.spout.interfaces import Definition, TransactionAttempt

Observer = Callable[[str, TransactionAttempt], None]
"""Called with the name of each point of a batch's life and its attempt, in the thread that reaches it.

The points are `defined`, `processed`, `committing`, `committed` (states), `recorded`, `succeeded`. For progress and tests.
"""

Definitions = Mapping[str, Definition]
"""The contents of a batch: the definition of each spout, and under names of their own its time and its dead letters."""


class Undecided(NamedTuple):
    """What only reading a batch shows about it.

    `spouts`: the spouts whose definitions are incomplete.
    `asked`: what each other spout said, None included.
    `time_if_read`, `time_if_not`: the time of the batch if these spouts have rows, and if not.
    """

    spouts: tuple[str, ...]
    asked: Definitions
    time_if_read: Definition | None
    time_if_not: Definition | None


@dataclass(frozen=True)
class Lane:
    """Where an attempt is processed and committed.

    `process`, `commit`: call a function there, at once or later.
    `in_loop`: whether the loop's own thread runs it. Then the loop does nothing else meanwhile; it cannot even notice a
    timeout.
    `brief`: whether an attempt takes hardly any time there, so that the next batch waits for it.
    """

    process: Callable[[Callable[[], None]], object]
    commit: Callable[[Callable[[], None]], object]
    in_loop: bool = False
    brief: bool = False


LOOP = Lane(call, call, in_loop=True)
"""The thread of the loop."""


@dataclass
class BatchTimes:
    """When a batch reached each point of its life, in seconds of a monotonic clock.

    `defined` is when the spouts were asked for it, `started` when they had answered.
    """

    defined: float = 0.0
    started: float = 0.0
    processed: float = 0.0
    committing: float = 0.0
    committed: float = 0.0
    recorded: float = 0.0

    @property
    def phase(self) -> str:
        """The phase that has begun and has not ended."""
        if not self.started:
            return "define"
        if not self.processed:
            return "process"
        if not self.committing:
            return "wait"
        return "record" if self.committed else "commit"


@dataclass
class Batch:
    """What the loop knows of a live attempt.

    `runner`: what may process it, and, once it is started, what does.
    `capture`: whether tuples that raise are left out, as dead letters.
    `undecided`: what only its processing shows; None once that is known.
    `tries`: how many attempts at the batch there were since this driver runs, with this one.
    `cold`: whether it may have to start Python workers, if it runs on Spark.
    `share`: how much of their limits the spouts could use for it; None if an earlier attempt had defined it.
    `is_guess`: whether a definition may be taken back until the batch is recorded.
    `cost_s`: how long processing kept a core of this process busy.
    `sizes`, `size`: about how many bytes it has, of each source and in all; None: a source does not say.
    `tasks`: into how many parts it was cut.
    `commits_now`: whether the job that processes it commits states too.
    `written`: if tuples are left out, the states that may keep something of earlier attempts.
    `checked`: what processing it twice showed; None if it was not.
    """

    attempt: TransactionAttempt
    definitions: Definitions
    runner: Runner
    capture: bool = False
    undecided: Undecided | None = None
    times: BatchTimes = field(default_factory=BatchTimes)
    tries: int = 1
    cold: bool = False
    lane: Lane = LOOP
    output: TaskOutput = field(default_factory=repeat(TaskOutput()).__next__)  # one for all, never changed
    share: float | None = None
    is_guess: bool = False
    cost_s: float = 0.0
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    size: int | None = None
    tasks: int = 0
    commits_now: bool = False
    written: frozenset[str] = frozenset()
    checked: Checked | None = None

    @property
    def now(self) -> Now | None:
        """Its time; None if no window uses it."""
        time = self.definitions.get(TIME)
        return None if time is None else Now(time["now"], "begins_again" in time)


Result = TaskOutput | Committed | Failure | BaseException
"""An exception ends the topology, a failure the attempt."""


class LoopMessage(NamedTuple):
    """One result of an attempt: processed, committed, failed, or an error that ends the topology."""

    attempt: TransactionAttempt
    result: Result


class Clock:
    """The time of this machine."""

    monotonic = staticmethod(time.monotonic)
    """Seconds from an arbitrary start, never going back. As it is, because each batch asks a dozen times."""

    cpu = staticmethod(time.thread_time)
    """Seconds that the calling thread has computed."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)
