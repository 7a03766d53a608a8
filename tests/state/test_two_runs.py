"""Spark may run a task twice. Of two runs of one attempt only the first writes, however their calls to the store interleave.

Two processes run the same task of batch 2 with different rows, because a user's function gave others the second time. Each
goes on by one call to the store at a time, in any order. The driver takes the answer of one of them, or of neither and begins
another attempt; what is left of the first runs goes on beside that, and beside batch 3.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from states.memory import MemoryBackingMap, MemoryData
from tests.storekit.test_whole_commits import DictRows
from trident.errors import FencedError, SecondRunError, StateError
from trident.state import CachedMap, IBackingMap, OpaqueMap, Sentinel, Snapshot, StateConf, Txid, Winners
from trident.state.backing_map import MapFacts
from trident.storekit import WholeCommitMap
from trident.testing import Faults, FaultyMap
from trident.testing.backend.schedules import Append

A = 1 << 20
Rows = dict[str, int]
KEYS = [(letter,) for letter in "abc"]
FIRST, SECOND, AGAIN, NEXT = 10, 20, 30, 40  # each run adds numbers of its own
TURNS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 16)), max_size=6)  # a run, and for how many calls
ROWS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), min_size=1)


class Stepped(threading.Thread):
    """A run of a task that makes one call to the store, then waits for its turn."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work, self._go, self._waits = work, threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except (StateError, FencedError) as error:
            self.error = error
        finally:
            self.ended = True
            self._waits.release()

    def pause(self) -> None:
        self._waits.release()
        self._go.acquire()

    def step(self) -> None:
        if not self.ended:
            self._go.release()
            self._waits.acquire()

    def finish(self) -> None:
        while not self.ended:
            self.step()


class Turns(Faults):
    """In place of faults: a run that is about to call the store waits for its turn."""

    def next_call(self, method: str) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Stepped):
            thread.pause()


def memory() -> Callable[[], IBackingMap[Any]]:
    data: MemoryData = MemoryData()
    return lambda: MemoryBackingMap(data)


def whole_commits() -> Callable[[], IBackingMap[Any]]:
    rows = DictRows("two runs")
    rows.empty()
    return lambda: WholeCommitMap(rows, StateConf("topology", "state"), 0, "partition 0")


@dataclass
class Driver:
    """The driver's log, the store, and two worker processes that keep what they opened."""

    store: Callable[[], IBackingMap[Any]]
    cached: bool = False
    with_runs: bool = True
    winners: Winners = field(default_factory=partial(Winners, ((1, A),)))
    expected: Sentinel = field(default_factory=partial(Sentinel, "log", 1, A))
    model: dict[str, list[int]] = field(default_factory=dict)
    runs: int = 0

    def __post_init__(self) -> None:
        self.processes = [self.process() for _ in range(2)]
        self.task(0, Txid(1, A, Winners(), "log"), dict.fromkeys("abc", 1))()
        self.took({"a": 1, "b": 1, "c": 1})

    def process(self) -> OpaqueMap:
        store = self.store()
        if isinstance(store, MemoryBackingMap):
            store.facts = MapFacts()  # each put is seen at once, as in most stores
        backing = FaultyMap(store, Turns())
        return OpaqueMap(CachedMap(backing, 100) if self.cached else backing, "state")

    def task(self, process: int, txid: Txid, rows: Rows) -> Callable[[], None]:
        self.runs += 1
        of_run = txid.of_run(f"run {self.runs}") if self.with_runs else txid
        return partial(commit, self.processes[process], of_run, rows)

    def txid(self, txid: int, attempt: int) -> Txid:
        return Txid(txid, attempt, self.winners, "log", self.expected)

    def took(self, rows: Rows) -> None:
        for key, number in rows.items():
            self.model.setdefault(key, []).append(number)

    def record(self, txid: int, attempt: int, rows: Rows) -> None:
        self.took(rows)
        self.winners, self.expected = self.winners.with_winner(txid, attempt), Sentinel("log", txid, attempt)

    def read(self, txid: int) -> dict[str, Any]:
        found = self.process().multi_get_at(KEYS, Snapshot(txid, self.winners))
        return {key: value for (key,), value in zip(KEYS, found, strict=True)}


def commit(state: OpaqueMap, txid: Txid, rows: Rows) -> None:
    state.begin_commit(txid)
    for key, number in rows.items():  # a put each
        state.multi_update([(key,)], [Append(number)])
    state.commit(txid)


def marked(rows: Rows, mark: int) -> Rows:
    return {key: mark + number for key, number in rows.items()}


def beside(runs: Sequence[Stepped], of: Stepped, turns: list[int]) -> None:
    """Run a task to its end, with turns of others in between."""
    while not of.ended:
        if turns:
            runs[turns.pop() % len(runs)].step()
        of.step()


def take_turns(driver: Driver, rows: Sequence[Rows], turns: list[int], taken: int, late: list[int]) -> list[Stepped]:
    """Run batch 2 twice in turns, let the driver take an answer or begin another attempt, then commit batch 3."""
    given = [marked(each, mark) for each, mark in zip(rows, (FIRST, SECOND, AGAIN, NEXT), strict=True)]
    runs = [Stepped(driver.task(process, driver.txid(2, A), given[process])) for process in range(2)]
    try:
        for turn in turns:
            runs[turn].step()
        chosen = runs[taken] if taken < 2 else None
        attempt = A
        if chosen is not None and chosen.ended and chosen.error is None:
            driver.record(2, A, given[taken])
        else:
            attempt = again(driver, runs, given[2], late)
        driver.processes.append(driver.process())
        following = Stepped(driver.task(-1, driver.txid(3, attempt), given[3]))
        beside(runs, following, late)
        assert following.error is None, following.error
        driver.record(3, attempt, given[3])
    finally:
        for run in runs:
            run.finish()
    return runs


def again(driver: Driver, runs: Sequence[Stepped], rows: Rows, late: list[int]) -> int:
    """Try the batch again until an attempt succeeds; return its number."""
    for attempt in range(A + 1, A + 20):
        idle = [at for at, run in enumerate(runs) if run.ended]
        if not idle:
            driver.processes.append(driver.process())
        task = Stepped(driver.task(idle[0] if idle else -1, driver.txid(2, attempt), rows))
        beside(runs, task, late)
        if task.error is None:
            driver.record(2, attempt, rows)
            return attempt
    raise AssertionError("no attempt succeeded")


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("store", [memory, whole_commits])
@given(
    rows=st.tuples(ROWS, ROWS, ROWS, ROWS),
    turns=TURNS,
    taken=st.integers(0, 2),
    late=st.lists(st.integers(0, 1), max_size=20),
)
def test_only_one_run_of_an_attempt_counts(
    store: Callable[..., Any],
    cached: bool,
    rows: tuple[Rows, ...],
    turns: list[tuple[int, int]],
    taken: int,
    late: list[int],
) -> None:
    driver = Driver(store(), cached)
    runs = take_turns(driver, rows, [run for run, calls in turns for _ in range(calls)], taken, late)
    assert driver.read(3) == driver.model
    assert any(run.error is not None for run in runs)


# The first run commits, its answer is lost; the driver takes the second's.
LOST_AND_RUN_AGAIN = [0] * 20 + [1] * 20, 1


@pytest.mark.parametrize("store", [memory, whole_commits])
def test_without_the_ids_of_runs_what_only_the_first_run_wrote_counts(store: Callable[..., Any]) -> None:
    rows: tuple[Rows, ...] = ({"a": 0}, {"b": 0}, {"c": 0}, {"c": 1})
    turns, taken = LOST_AND_RUN_AGAIN
    off = Driver(store(), with_runs=False)
    take_turns(off, rows, turns, taken, [])
    assert off.model == {"a": [1], "b": [1, SECOND], "c": [1, NEXT + 1]}
    assert off.read(3) == {**off.model, "a": [1, FIRST]}
    on = Driver(store())
    runs = take_turns(on, rows, turns, taken, [])
    assert isinstance(runs[1].error, SecondRunError)
    assert on.read(3) == on.model == {"a": [1], "b": [1], "c": [1, AGAIN, NEXT + 1]}
