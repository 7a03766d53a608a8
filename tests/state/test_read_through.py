"""A read-through cache that loses, delays and keeps anything it likes: no value that counts is ever stale."""

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import WAYS, DictMap, LateMap, commit
from trident.errors import BackendError
from trident.state import IBackingMap, Key, OpaqueMap, StateType, Txid, map_for
from trident.state.cached import ReadThroughMap, SpacedCache
from trident.testing import Faults, FaultyMap, InjectedFault
from trident.testing.backend.schedules import Add, Log

Entry = tuple[str, Key]
Batch = list[dict[Key, int]]


class Shelf(SpacedCache[Any]):
    """A cache that all instances share, and that does what it was told unless it is to fail."""

    def __init__(self) -> None:
        self.entries: dict[Entry, Any] = {}
        self.failing = False
        self.hits, self.gets = 0, 0
        self.closed = False

    def get(self, space: str, keys: Sequence[Key]) -> list[tuple[Any] | None]:
        self.fail()
        self.gets += 1
        found = [(self.entries[space, key],) if (space, key) in self.entries else None for key in keys]
        self.hits += len(found) - found.count(None)
        return found

    def put(self, space: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.fail()
        self.entries.update({(space, key): value for key, value in zip(keys, values, strict=True)})

    def close(self) -> None:
        self.closed = True

    def fail(self) -> None:
        if self.failing:
            raise BackendError("the cache does not answer")


class Interrupted(Shelf):
    """A cache in which a put is interrupted before it did anything."""

    interrupting = False

    def put(self, space: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if self.interrupting:
            raise KeyError("before the call")  # no error of a server
        super().put(space, keys, values)


class Gremlin(Shelf):
    """A cache that loses entries, fails before or after it did as told, and carries out late what it said had failed."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.late: list[tuple[str, Sequence[Key], Sequence[Any]]] = []

    def get(self, space: str, keys: Sequence[Key]) -> list[tuple[Any] | None]:
        self.mischief()
        return super().get(space, keys)

    def put(self, space: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.mischief()
        if self.chance.random() < 0.1:
            half = self.chance.randint(0, len(keys))
            super().put(space, keys[:half], values[:half])
            self.late.append((space, keys, values))
            raise BackendError("no reply")
        super().put(space, keys, values)

    def mischief(self) -> None:
        for entry in list(self.entries):
            if self.chance.random() < 0.05:
                del self.entries[entry]
        while self.late and self.chance.random() < 0.3:
            super().put(*self.late.pop(self.chance.randrange(len(self.late))))
        if self.chance.random() < 0.05:
            raise BackendError("the cache does not answer")


KEYS: list[Key] = [(letter,) for letter in "abcdef"]


class Life:
    """Two processes take turns on one store and one cache; everything fails now and then."""

    def __init__(self, kind: StateType, store: str, seed: int) -> None:
        self.kind, self.store, self.chance = kind, store, random.Random(f"{seed}{store}{kind}")
        self.shelf, self.faults, self.data, self.log = Gremlin(self.chance), Faults(), MemoryData(), Log()
        self.writers = [self.process(), self.process()]
        self.model = dict.fromkeys(KEYS, 0)

    def process(self) -> Any:
        durable: IBackingMap[Any] = MemoryBackingMap(self.data)
        if self.store != "fenced":
            durable = (DictMap if self.store == "two methods" else LateMap)(self.data.values.entries)
        return map_for(self.kind, ReadThroughMap(FaultyMap(durable, self.faults), self.shelf), "state", 0)

    def draw(self) -> Batch:
        calls = range(self.chance.randint(1, 2))
        return [{key: self.chance.randint(1, 99) for key in self.chance.sample(KEYS, 3)} for _ in calls]

    def commits(self, batch: Batch) -> bool:
        if self.chance.random() < 0.4:
            self.faults.fail(self.chance.randint(1, 9), self.chance.choice(WAYS))
        try:
            txid, writer = self.log.next(), self.chance.choice(self.writers)
            writer.begin_commit(txid)
            for call in batch:
                writer.multi_update(list(call), [Add(number) for number in call.values()])
            writer.commit(txid)
            if self.chance.random() < 0.1:
                raise InjectedFault("before the record")
        except InjectedFault:
            self.log.fail(takeover=self.chance.random() < 0.5)
            if self.chance.random() < 0.3:
                self.writers[self.chance.randrange(2)] = self.process()
            return False
        finally:
            self.faults.clear()
        return True

    def run(self) -> None:
        for _ in range(40):
            batch = self.draw()
            while not self.commits(batch):
                batch = self.draw() if self.kind is StateType.OPAQUE else batch
            self.log.record()
            for call in batch:
                for key, number in call.items():
                    self.model[key] += number
            self.check()

    def check(self) -> None:
        for state in [*self.writers, self.process()]:
            if isinstance(state, OpaqueMap):
                values = state.multi_get_at(KEYS, self.log.snapshot())
            else:
                values = self.process().multi_get(KEYS)  # a writer that crashed would show its unfinished commit
            assert [value or 0 for value in values] == list(self.model.values())


@pytest.mark.sample(24)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
@pytest.mark.parametrize("store", ["fenced", "two methods", "late"])
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 100))])
def test_random_crashes_losses_and_takeovers_end_exact(kind: StateType, store: str, seed: int) -> None:
    life = Life(kind, store, seed)
    life.run()
    assert life.shelf.hits > 0


def cached(entries: dict[Key, Any] | None = None) -> tuple[Any, DictMap, Shelf]:
    store, shelf = DictMap(entries), Shelf()
    return OpaqueMap(ReadThroughMap(store, shelf)), store, shelf


def test_a_writer_that_could_not_reach_the_cache_leaves_nothing_stale(caplog: pytest.LogCaptureFixture) -> None:
    state, _, shelf = cached()
    commit(state, 1, a=1)
    shelf.failing = True
    assert commit(state, 2, a=1) == [2]
    shelf.failing = False
    assert commit(state, 3, a=1) == [3]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages == ["the cache fails, and is not used until the next commit: the cache does not answer"]
    hits = shelf.hits
    assert commit(state, 4, a=1) == [4]
    assert shelf.hits == hits + 1


def test_a_put_that_failed_may_arrive_late_so_the_commit_goes_on_without_the_cache() -> None:
    store, shelf, faults = DictMap(), Shelf(), Faults()
    cached_map: Any = ReadThroughMap(FaultyMap(store, faults), shelf)
    first = Txid(1, 0, incarnation="i")
    cached_map.begin(first)
    cached_map.multi_put([("a",)], ["old"])
    faults.fail(1, "before")
    with pytest.raises(InjectedFault):
        cached_map.multi_put([("a",)], ["new"])
    assert cached_map.multi_get([("a",)]) == ["old"]
    store.multi_put([("a",)], ["new"])  # what timed out
    cached_map.end(first)
    cached_map.begin(Txid(2, 0, incarnation="i", expected=first.sentinel))
    assert cached_map.multi_get([("a",)]) == ["new"]


def test_a_fill_that_was_interrupted_leaves_the_cache_unused() -> None:
    store, shelf = DictMap(), Interrupted()
    backing: Any = ReadThroughMap(store, shelf)
    state = OpaqueMap(backing)
    commit(state, 1, a=1)
    state.begin_commit(2)
    shelf.interrupting = True
    with pytest.raises(KeyError):
        state.multi_update([("a",)], [Add(5)])
    assert [value.curr for value in backing.multi_get([("a",)])] == [6]  # as the store has it


def test_deleted_keys_are_known_to_be_absent_and_a_failed_delete_is_not_trusted() -> None:
    data, shelf, faults = MemoryData(), Shelf(), Faults()
    durable: Any = FaultyMap(MemoryBackingMap(data), faults)
    backing: Any = ReadThroughMap(durable, shelf)
    state = OpaqueMap(backing)
    commit(state, 1, a=1, b=1)
    state.begin_commit(2)
    backing.multi_delete([("a",)])
    assert backing.multi_get([("a",), ("b",)])[0] is None
    faults.fail(1, "after")
    with pytest.raises(InjectedFault):
        backing.multi_delete([("b",)])
    assert backing.multi_get([("b",)]) == [None]
    assert data.values.entries == {}


def test_closing_closes_both() -> None:
    closed: list[str] = []

    class Closing(DictMap):
        def close(self) -> None:
            closed.append("store")

    shelf = Shelf()
    ReadThroughMap(Closing(), shelf).close()
    assert (closed, shelf.closed) == (["store"], True)
    ReadThroughMap(DictMap(), shelf).close()
