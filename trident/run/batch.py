"""What the loop knows about a running attempt, what other threads report to it, and the time of batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from operator import call
from typing import Any, NamedTuple

from trident.engine.fragment_runs import TaskOutput
from trident.engine.replay_check import Checked
from trident.engine.runners import Runner
from trident.run.committer import Committed
from trident.spout.interfaces import BatchTraits, Definition, TransactionAttempt
from trident.steps.failures import Failure

_AHEAD_MS, TIMERS = 60_000, "timers"

Observer = Callable[[str, TransactionAttempt], None]
"""Called in the thread that gets there, at `defined`, `processed`, `committing`, `committed`, `recorded`, `succeeded`."""

Definitions = Mapping[str, Definition]
"""The contents of a batch: the definition of each spout, and under names of their own its time and its dead letters."""


class Said(NamedTuple):
    """What a source says of its part of a batch."""

    definition: Definition | None  # None: nothing
    traits: BatchTraits = BatchTraits()
    size: int | None = None  # about how many bytes; None: it does not say


NOTHING = Said(None)


class Undecided(NamedTuple):
    """What only reading a batch shows about it."""

    spouts: tuple[str, ...]  # whose definitions are incomplete
    said: Mapping[str, Said]  # of each other source
    time_if_read: Definition | None  # the time of the batch if these spouts have rows
    time_if_not: Definition | None


@dataclass(frozen=True)
class Lane:
    """Where an attempt is processed and committed: what calls a function there, at once or later."""

    process: Callable[[Callable[[], None]], object]
    commit: Callable[[Callable[[], None]], object]
    in_loop: bool = False  # then the loop cannot even notice a timeout
    brief: bool = False  # an attempt takes hardly any time there, so that the next batch waits for it


LOOP = Lane(call, call, in_loop=True)  # the thread of the loop


@dataclass
class BatchTimes:
    """When a batch reached each point of its life, in seconds of a monotonic clock."""

    defined: float = 0.0  # when the spouts were asked for it
    started: float = 0.0  # when they had answered
    processed: float = 0.0
    committing: float = 0.0
    committed: float = 0.0
    recorded: float = 0.0

    @property
    def phase(self) -> str:
        ends = {"define": self.started, "process": self.processed, "wait": self.committing, "commit": self.committed}
        return next((phase for phase, at in ends.items() if not at), "record")


@dataclass
class Batch:
    """What the loop knows of a live attempt."""

    attempt: TransactionAttempt
    definitions: Definitions
    runner: Runner  # what may process it; once it is started, what does
    capture: bool = False  # whether tuples that raise are left out, as dead letters
    undecided: Undecided | None = None  # None once it is known
    times: BatchTimes = field(default_factory=BatchTimes)
    tries: int = 1  # since this driver runs, with this one
    cold: bool = False  # whether it may have to start Python workers, if it runs on Spark
    lane: Lane = LOOP
    output: TaskOutput = field(default_factory=repeat(TaskOutput()).__next__)  # one for all, never changed
    share: float | None = None  # of their limits for the spouts; None if an earlier attempt had defined it
    is_guess: bool = False  # whether a definition may be taken back until the batch is recorded
    cost_s: float = 0.0  # how long processing kept a core of this process busy
    sizes: Mapping[str, int | None] = field(default_factory=dict)  # bytes of each source, about; None: it does not say
    size: int | None = None
    tasks: int = 0  # into how many parts it was cut
    commits_now: bool = False  # whether the job that processes it commits states too
    written: frozenset[str] = frozenset()  # if tuples are left out: states that may have some of earlier attempts
    checked: Checked | None = None  # what processing it twice showed


class Begun(NamedTuple):
    """What a thread has begun for a batch."""

    txid: int
    thread: int
    since: float  # in seconds of the monotonic clock
    watched: bool = False  # whether only `Attempts.overdue` notices if it does not return
    commits: bool = False
    spout: str = ""  # the one that it asks, if it does


Result = TaskOutput | Committed | Failure | BaseException  # an exception ends the topology, a failure the attempt


LoopMessage = tuple[TransactionAttempt, Result]
"""One result of an attempt: processed, committed, failed, or an error that ends the topology."""


def time_of_batch(
    clock_ms: int,
    logged: Mapping[str, Any] | None,  # by an earlier attempt; it stays the same
    previous: Mapping[str, Any] | None,  # the time of the batch before
    has_tuples: bool,
    is_begun: bool = False,  # the log has part of its definition, so it will run; its time may have been lost
    may_begin_again: bool = False,
) -> dict[str, Any] | None:
    """Return the time of the next batch; None if it has no tuples, has not begun, and neither window nor timer is due.

    It is logged as `$time`: `now`, before the batch is processed, and with the commit `timers`: when the next window that has
    tuples ends, or the next timer is due. Time never goes back, but in a batch that says `begins_again`: there all windows fire
    what they hold.
    """
    if logged is not None:
        now, again = logged["now"], "begins_again" in logged
    else:
        again = may_begin_again and is_ahead(clock_ms, previous)
        if not (has_tuples or is_begun or again or _is_due(clock_ms, previous)):
            return None
        now = clock_ms if previous is None or again else max(clock_ms, previous["now"])
    return {"now": now, "begins_again": True} if again else {"now": now}


def is_ahead(clock_ms: int, time: Mapping[str, Any] | None) -> bool:
    """Whether the time of a batch is so far ahead of the clock that a clock must have been wrong."""
    return time is not None and time["now"] - clock_ms > _AHEAD_MS


def _is_due(clock_ms: int, previous: Mapping[str, Any] | None) -> bool:
    if previous is None:
        return False
    # A program before wrote `tuples_at`, and not when windows end: the first batch of this one finds that out.
    return "tuples_at" in previous or previous.get(TIMERS, clock_ms + 1) <= clock_ms
