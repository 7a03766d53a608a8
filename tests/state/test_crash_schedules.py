"""Random batches, crashes and replays: the end equals a plain dict that was fed each committed batch once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import WAYS, Crash, CrashingMap, DictMap, Faults, LateMap
from trident.state import (
    CachedMap,
    CodecSerializer,
    IBackingMap,
    Key,
    MicroBatchIBackingMap,
    OpaqueMap,
    Sentinel,
    SerializedMap,
    Snapshot,
    StateType,
    TransactionalMap,
    Txid,
    Winners,
    map_for,
)
from trident.testing.backend.schedules import Append

SCHEDULES = 40
PARTITIONS = 2
KEYS: list[Key] = [(letter,) for letter in "abcdefgh"]
Batch = list[dict[Key, int]]  # the updates of a batch, call by call; the numbers are unique in a schedule
OpenMap = Callable[[IBackingMap[Any], int], Any]


def memory(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
    return CrashingMap(MemoryBackingMap(data), faults)


def cached(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
    return CachedMap(memory(data, faults), 100)


def tightly_cached(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
    return CachedMap(memory(data, faults), 2)


def chunks(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
    return MicroBatchIBackingMap(memory(data, faults), 2, 1)


def cached_two_methods(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
    return CachedMap(CrashingMap(DictMap(data.entries), faults), 100)


def cached_late(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
    return CachedMap(CrashingMap(LateMap(data.entries), faults), 100)


STORES = [memory, cached, tightly_cached, chunks, cached_two_methods, cached_late]
PAIRINGS = [(StateType.TRANSACTIONAL, False), (StateType.OPAQUE, False), (StateType.OPAQUE, True)]


class Schedule:
    """One driver's life, simulated: its log, two processes that own partitions in turn, a store, and a model."""

    def __init__(self, rng: random.Random, store: Callable[..., IBackingMap[Any]], new_map: OpenMap, changing: bool):
        self.rng, self.store, self.new_map, self.changing = rng, store, new_map, changing
        self.data = [MemoryData() for _ in range(PARTITIONS)]
        self.faults = Faults()
        self.winners, self.committed, self.attempt = Winners(), 0, 1 << 20
        self.expected: list[Sentinel | None] = [None] * PARTITIONS
        self.model: dict[Key, list[int]] = {}
        self.numbers = iter(range(1_000_000))
        self.processes = [self.start_process(), self.start_process()]
        self.crashes = 0

    def start_process(self) -> list[Any]:
        return [self.new_map(self.store(data, self.faults), part) for part, data in enumerate(self.data)]

    def new_batch(self) -> Batch:
        calls = self.rng.choice([0, 1, 1, 1, 2, 3])
        return [
            {key: next(self.numbers) for key in self.rng.sample(KEYS, self.rng.randint(0, 5))} for _ in range(calls)
        ]

    def run(self, batches: int) -> None:
        for txid in range(1, batches + 1):
            batch = self.new_batch()
            while not self.commits(txid, batch):
                if self.changing:
                    batch = self.new_batch()
            self.count(batch)

    def count(self, batch: Batch) -> None:
        """Feed the model a batch that is committed, and compare."""
        for call in batch:
            for key, number in call.items():
                self.model.setdefault(key, []).append(number)
        self.check()

    def commits(self, txid: int, batch: Batch) -> bool:
        if self.rng.random() < 0.5:
            self.faults.arm(self.rng.randint(1, 16), self.rng.choice(WAYS))
        try:
            touched = [part for part in range(PARTITIONS) if self.commits_partition(txid, part, batch)]
            if self.rng.random() < 0.15:
                raise Crash("before the record")
        except Crash:
            self.faults.disarm()
            self.crashes += 1
            self.check_snapshot()
            # A retry, or another driver; whoever crashed may live on with all it remembers, or start anew.
            self.attempt += self.rng.choice([1, 1 << 20])
            if self.rng.random() < 0.5:
                self.processes[self.rng.randrange(2)] = self.start_process()
            return False
        self.faults.disarm()
        self.committed, self.winners = txid, self.winners.with_winner(txid, self.attempt)
        for part in touched:
            self.expected[part] = Sentinel("log", txid, self.attempt)
        return True

    def commits_partition(self, txid: int, part: int, batch: Batch) -> bool:
        calls = [{k: n for k, n in call.items() if KEYS.index(k) % PARTITIONS == part} for call in batch]
        if not any(calls):
            return False
        state = self.rng.choice(self.processes)[part]
        commit = Txid(txid, self.attempt, self.winners, "log", self.expected[part])
        state.begin_commit(commit)
        for call in calls:
            state.multi_update(list(call), [Append(number) for number in call.values()])
        state.commit(commit)
        return True

    def check(self) -> None:
        """After a record every reader sees the model."""
        for part in range(PARTITIONS):
            keys = [key for key in KEYS if KEYS.index(key) % PARTITIONS == part]
            # A map that keeps no earlier values shows a process its own crashed commit until the next one begins.
            readers = [self.start_process()] if self.new_map is transactional_map else self.processes
            for states in readers:
                assert self.read(states[part], keys) == [self.model.get(key) for key in keys], f"after {self.committed}"

    def check_snapshot(self) -> None:
        """A failed batch does not show in a snapshot (of the kinds that have one)."""
        if self.new_map is not transactional_map:
            self.check()

    def read(self, state: Any, keys: Sequence[Key]) -> list[Any]:
        if isinstance(state, OpaqueMap):
            return state.multi_get_at(keys, Snapshot(self.committed, self.winners))
        return list(state.multi_get(keys))


def transactional_map(backing: IBackingMap[Any], part: int) -> Any:
    return TransactionalMap(backing, "state", part)


def opaque_map(backing: IBackingMap[Any], part: int) -> Any:
    return OpaqueMap(backing, "state", part)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__)
@pytest.mark.parametrize(("kind", "changing"), PAIRINGS, ids=["tx-tx", "tx-opaque", "opaque-opaque"])
@pytest.mark.parametrize(
    "numbers", [range(SCHEDULES), pytest.param(range(SCHEDULES, 400), marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_every_exact_pairing_ends_as_if_each_batch_came_once(
    kind: StateType, changing: bool, store: Any, numbers: range
) -> None:
    new_map = transactional_map if kind is StateType.TRANSACTIONAL else opaque_map
    crashes = 0
    for number in numbers:
        seed = f"{kind.value} {changing} {store.__name__} {number}"
        schedule = Schedule(random.Random(seed), store, new_map, changing)
        try:
            schedule.run(8)
        except Exception as error:
            raise AssertionError(f"schedule with seed {seed!r} went wrong: {error}") from error
        crashes += schedule.crashes
    assert crashes > 2 * len(numbers)  # the schedules do crash


@pytest.mark.parametrize("changing", [False, True])
def test_opaque_values_in_columns_end_as_if_each_batch_came_once(changing: bool) -> None:
    def store(data: MemoryData, faults: Faults) -> IBackingMap[Any]:
        return SerializedMap(CrashingMap(DictMap(data.entries), faults), CodecSerializer())

    for number in range(SCHEDULES):
        schedule = Schedule(random.Random(f"columns {changing} {number}"), store, opaque_map, changing)
        schedule.run(8)
        assert schedule.crashes


class StormOpaqueMap(OpaqueMap):
    """Storm's three fields: it knows no attempts, so every write of an earlier txid counts as committed."""

    def begin_commit(self, txid: int) -> None:
        super().begin_commit(Txid(int(txid)))

    def commit(self, txid: int) -> None:
        super().commit(int(txid))


def wrong(new_map: OpenMap, changing: bool, seed: str = "", is_read: bool = True) -> int:
    """Return how many schedules end otherwise than if each batch had come once."""
    found = 0
    for number in range(SCHEDULES):
        schedule = Schedule(random.Random(f"{seed}{number}"), memory, new_map, changing)
        if not is_read:
            schedule.check_snapshot = lambda: None  # type: ignore[method-assign]
        try:
            schedule.run(8)
        except AssertionError:
            found += 1
    return found


def test_three_fields_go_wrong_on_the_same_schedules() -> None:
    storm: OpenMap = lambda backing, part: StormOpaqueMap(backing, "state", part)  # noqa: E731
    assert wrong(storm, True, "opaque True memory ") > SCHEDULES // 2


def test_a_transactional_state_goes_wrong_where_replays_change() -> None:
    assert wrong(transactional_map, True) > SCHEDULES // 2


def test_a_non_transactional_state_goes_wrong_where_batches_are_replayed() -> None:
    bare: OpenMap = lambda backing, part: map_for(StateType.NON_TRANSACTIONAL, backing, "state", part)  # noqa: E731
    assert wrong(bare, False, is_read=False) > SCHEDULES // 2
