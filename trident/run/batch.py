"""What the loop knows about a running attempt, what other threads report to it, and the time of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import call
from typing import Any, NamedTuple

import numpy as np

from trident.engine.fragment_runs import TaskOutput
from trident.engine.replay_check import Checked
from trident.engine.runners import Runner
from trident.graph import WindowNode
from trident.log.records import TIME
from trident.operations.windows import TimersConfig
from trident.plan import Plan
from trident.run.committer import Committed
from trident.spout.interfaces import BatchTraits, Definition, TransactionAttempt
from trident.steps.failures import Failure
from trident.windows.grid import Grid

_AHEAD_MS, _TIMERS = 60_000, "timers"

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
        if not self.started:
            return "define"
        if not self.processed:
            return "process"
        if not self.committing:
            return "wait"
        return "record" if self.committed else "commit"


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


class LoopMessage(NamedTuple):
    """One result of an attempt: processed, committed, failed, or an error that ends the topology."""

    attempt: TransactionAttempt
    result: Result


class BatchTime:
    """Says which time a batch has, and whether a batch is due because of the time alone.

    It is logged as `$time`: `now`, before the batch is processed, and with the commit `tuples_at`, the time of the last batch
    that had tuples. Time never goes back, but in a batch that says `begins_again`: there all windows fire what they hold. A
    window behind a window gets tuples although no spout has any: `levels` has the last time of each. Before `timers` no timer
    is due.
    """

    def __init__(self, *levels: Iterable[Grid | None]) -> None:
        self._levels = [tuple(grids) for grids in levels]  # None: a process, whose timers may fire in any batch

    @staticmethod
    def of(plan: Plan) -> BatchTime | None:
        """Return the time of a plan's batches; None if no window uses it."""
        windows = [node for node in plan.commits if isinstance(node, WindowNode) and node.config.by_batch_time]
        if not windows:
            return None
        behind: dict[str, int] = {}  # the number of windows by batch time before a node, on the longest path
        levels: list[list[Grid | None]] = []
        for node in plan.commits:  # each after all nodes that it gets tuples from
            level = behind.get(node.id, 0)
            if node in windows:
                levels.extend([] for _ in range(level + 1 - len(levels)))
                levels[level].append(None if isinstance(node.config, TimersConfig) else Grid.of(node.config))
                level += 1
            for sink in plan.fragments[node.id].sinks:
                behind[sink.target] = max(level, behind.get(sink.target, 0))
        return BatchTime(*levels)

    def define(
        self,
        clock_ms: int,
        logged: Mapping[str, Any] | None,  # by an earlier attempt; it stays the same
        previous: Mapping[str, Any] | None,  # the time of the batch before
        has_tuples: bool,
        is_begun: bool = False,  # the log has part of its definition, so it will run; its time may have been lost
        may_begin_again: bool = False,
    ) -> dict[str, Any] | None:
        """Return the time of the next batch; None if it has no tuples, has not begun, and no window is due."""
        if logged is not None:
            now, again = logged["now"], "begins_again" in logged
        else:
            again = may_begin_again and self.ahead(clock_ms, previous)
            if not (has_tuples or is_begun or again or self._is_due(clock_ms, previous)):
                return None
            now = clock_ms if previous is None or again else max(clock_ms, previous["now"])
        first, *behind = self._times_after(now, None if has_tuples or again else previous)
        behind_levels = {"levels": behind} if behind else {}
        return {"now": now, "tuples_at": first, **behind_levels, **({"begins_again": True} if again else {})}

    @staticmethod
    def ahead(clock_ms: int, time: Mapping[str, Any] | None) -> bool:
        """Whether the time of a batch is so far ahead of the clock that a clock must have been wrong."""
        return time is not None and time["now"] - clock_ms > _AHEAD_MS

    def _is_due(self, clock_ms: int, previous: Mapping[str, Any] | None) -> bool:
        """Whether a window with tuples ended since the batch before, as far as the times of batches show, or a timer is due."""
        if previous is None:
            return False
        return previous.get(_TIMERS, clock_ms + 1) <= clock_ms or any(self._fires(clock_ms, previous))

    def _fires(self, now: int, previous: Mapping[str, Any]) -> list[bool]:
        """Return by level whether a window with tuples ended since the batch before."""
        return [
            self._ends(level, now, previous["now"], at)
            for level, at in zip(self._levels, self._level_times(previous), strict=True)
        ]

    def _times_after(self, now: int, previous: Mapping[str, Any] | None) -> list[int]:
        """Return what `_level_times` returns after a batch at `now`; None: it may bring tuples to all levels."""
        if previous is None:
            return [now] * len(self._levels)
        first, *behind = self._level_times(previous)
        may_fire = (
            None in level or fired for level, fired in zip(self._levels, self._fires(now, previous), strict=True)
        )
        return [first, *(now if fired else at for fired, at in zip(may_fire, behind, strict=False))]

    def _level_times(self, previous: Mapping[str, Any]) -> list[int]:
        """Return by level the time of the last batch that may have brought tuples to its windows."""
        at, more = int(previous.get("tuples_at", previous["now"])), len(self._levels) - 1
        return [at, *([*previous.get("levels", ()), *[at] * more][:more])]

    @staticmethod
    def _ends(level: Iterable[Grid | None], now: int, before: int, at: int) -> bool:
        grids = (grid for grid in level if grid is not None)
        return any(
            (grid.complete_up_to(before) // grid.slide + 1) * grid.slide
            <= min(grid.complete_up_to(now), int(grid.places(np.array([at]))[0]) + grid.length)
            for grid in grids
        )


def with_timers(definitions: Mapping[str, Any], timers: Sequence[int]) -> Mapping[str, Any]:
    """Return the definitions of a batch that is committed, with the time before which no timer is due."""
    return {**definitions, TIME: {**definitions[TIME], _TIMERS: min(timers)}}
