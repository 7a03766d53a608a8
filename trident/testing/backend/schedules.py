"""Random schedules of a topology: batches, crashes at every call, replays, takeovers; the end equals a plain dict.

Two processes own the partitions in turn; calls to the store fail before, in the middle, after, or with the reply lost; writers
that were replaced wake up and go on. After every record readers must see what a dict has that was fed each batch once.
"""

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from trident.errors import BackendError, FencedError, StaleTransactionError, describe
from trident.state.cached import CachedMap
from trident.state.forwarding import MicroBatchIBackingMap
from trident.state.interfaces import IBackingMap, Key, StateType
from trident.state.maps import OpaqueMap, map_for
from trident.state.txid import Sentinel, Snapshot, Txid, Winners
from trident.testing.backend.faulty_map import Faults, FaultyMap
from trident.testing.backend.store_under_test import INCARNATION, Store
from trident.testing.contract import Violation, expect

BATCHES = 8
_MOST_TRIES = 50
_KEYS: list[Key] = [(name,) for name in ("a", "b", "c", "", "1", "é", "A", "a ")]
Batch = list[dict[Key, int | None]]  # the updates of a batch, call by call; no number comes twice, None removes the key
_EPOCH = 1 << 20


class Log:
    """Which batches are committed, and by whom; `attempt` is the one that runs now."""

    def __init__(self) -> None:
        self.committed, self.attempt, self.winners = 0, _EPOCH, Winners()
        self._expected: dict[int, Sentinel] = {}

    def next(self, partition: int = 0) -> Txid:
        return Txid(self.committed + 1, self.attempt, self.winners, INCARNATION, self._expected.get(partition))

    def fail(self, takeover: bool = False) -> None:
        """The attempt failed: the next one runs, in the same driver or (`takeover`) in another."""
        self.attempt = (self.attempt // _EPOCH + 1) * _EPOCH if takeover else self.attempt + 1

    def record(self, partitions: Iterable[int] = (0,)) -> None:
        self.committed += 1
        self.winners = self.winners.with_winner(self.committed, self.attempt)
        for partition in partitions:
            self._expected[partition] = Sentinel(INCARNATION, self.committed, self.attempt)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.committed, self.winners)


class Add:
    """Adds a number to the stored one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.number


class Append:
    """Appends to the stored list, in place, which an updater should not do but can. A doubled or lost update shows."""

    def __init__(self, item: object) -> None:
        self.item = item

    def update(self, stored: list[Any] | None) -> list[Any]:
        items = [] if stored is None else stored
        items.append(self.item)
        return items


class _Died(Exception):
    """The driver ended between two calls."""


@dataclass
class _Sleeper:
    state: Any
    txid: Txid
    part: int
    rest: Batch


class Schedule:
    """One life, from a seed; `changes`: whether a batch that failed is replayed with other rows."""

    def __init__(self, store: Store, seed: object, partitions: int = 2) -> None:
        self.store, self.seed, self.partitions = store, seed, partitions
        self.changes = store.kind is StateType.OPAQUE
        self.chance = random.Random(str(seed))
        self.faults = Faults(seed)
        self.log = Log()
        self.model: dict[Key, list[int]] = {}
        self.story: list[str] = []
        self._numbers = count(1)
        self._cache = self.chance.choice([0, 2, 100])
        self._chunks = self.chance.random() < 0.3
        self._processes: list[list[Any]] = []
        self._reader: list[Any] = []
        self._sleepers: list[_Sleeper] = []

    def run(self) -> None:
        """Live it; raise `Violation` with the story if it ends wrong."""
        try:
            self.open()
            for _ in range(BATCHES):
                self._run_batch()
        except Exception as error:
            at = self.log.committed + 1
            said = str(error) if isinstance(error, Violation) else f"batch {at} raised {describe(error)}"
            setting = f"cache {self._cache}, {'requests of 2 keys' if self._chunks else 'whole requests'}"
            told = ", ".join([setting, *self.story[-8:]])
            raise Violation(f"{said}; seed {self.seed!r}: {told}") from error

    def open(self) -> None:
        self._processes = [self._open_partitions(), self._open_partitions()]
        self._reader = self._open_partitions(reads=True)

    def new_batch(self) -> Batch:
        calls = self.chance.choice([0, 1, 1, 1, 2, 3])
        some = (self.chance.sample(_KEYS, self.chance.randint(0, 5)) for _ in range(calls))
        return [{key: next(self._numbers) if self.chance.random() < 0.9 else None for key in keys} for keys in some]

    def attempt(self, batch: Batch) -> bool:
        """Try a batch once; if it is committed, the model is fed with it, and compared with what a reader sees."""
        txid = self.log.committed + 1
        if self.chance.random() < 0.5:
            self.faults.fail()
        try:
            touched = [part for part in range(self.partitions) if self._commits_partition(part, batch)]
            if self.chance.random() < 0.15:
                raise _Died("before the record")
        except (BackendError, _Died) as error:
            self.faults.clear()
            self.story.append(f"batch {txid} failed ({error})")
            self._after_failure()
            return False
        self.faults.clear()
        self.story.append(f"batch {txid} committed")
        self.log.record(touched)
        self._wake_sleepers()
        for key, number in (pair for call in batch for pair in call.items()):
            self.model[key] = [] if number is None else [*self.model.get(key, []), number]
        self._check("after the record")
        return True

    def state_over(self, backing: IBackingMap[Any], part: int) -> Any:
        return map_for(self.store.kind, backing, "state", part)

    def _run_batch(self) -> None:
        batch = self.new_batch()
        for _ in range(_MOST_TRIES):
            if self.attempt(batch):
                return
            if self.changes:
                batch = self.new_batch()
        raise Violation(f"batch {self.log.committed + 1} failed {_MOST_TRIES} times")

    def _commits_partition(self, part: int, batch: Batch) -> bool:
        calls = [{k: n for k, n in call.items() if _KEYS.index(k) % self.partitions == part} for call in batch]
        if not any(calls):
            return False
        state, txid = self.chance.choice(self._processes)[part], self.log.next(part)
        state.begin_commit(txid)
        self._wake_sleepers(part)
        for at, call in enumerate(calls):
            if self.chance.random() < 0.06:
                self._sleepers.append(_Sleeper(state, txid, part, calls[at:]))
                raise _Died("asleep in the middle of the commit")
            _apply(state, call)
        state.commit(txid)
        return True

    def _after_failure(self) -> None:
        if self.store.kind is StateType.OPAQUE:
            self._check("after a failure")
        self.log.fail(self.chance.random() < 0.5)
        asleep = {id(sleeper.state) for sleeper in self._sleepers}
        for at, process in enumerate(self._processes):
            # A process that crashed may continue with its memory, or start again without it; one that sleeps is replaced.
            if any(id(state) in asleep for state in process) or self.chance.random() < 0.25:
                self._processes[at] = self._open_partitions()
                self.story.append("new process")

    def _wake_sleepers(self, part: int | None = None) -> None:
        """Let writers that were replaced go on, within their successor's commit or after it."""
        drawn = (one for one in self._sleepers if part in (None, one.part))
        woken = [one for one in drawn if part is None or self.chance.random() < 0.5]
        self._sleepers = [one for one in self._sleepers if one not in woken]
        if self.store.limits.fences == "no":
            return  # nothing stops them: the store does not claim to fence
        for sleeper in woken:
            self.story.append(f"a writer of batch {sleeper.txid!s} attempt {sleeper.txid.attempt} woke up")
            with suppress(FencedError, StaleTransactionError, BackendError):
                for call in sleeper.rest:
                    _apply(sleeper.state, call)
                sleeper.state.commit(sleeper.txid)

    def _check(self, when: str) -> None:
        if self.chance.random() < 0.1:
            self._reader = self._open_partitions(reads=True)
        for part in range(self.partitions):
            keys = [key for key in _KEYS if _KEYS.index(key) % self.partitions == part]
            reader = self._reader[part]
            exact = isinstance(reader, OpaqueMap)
            found = reader.multi_get_at(keys, self.log.snapshot()) if exact else list(reader.multi_get(keys))
            wanted = [self.model.get(key) or None for key in keys]
            expect(found, wanted, f"read {keys} {when} of batch {self.log.committed}")

    def _open_partitions(self, reads: bool = False) -> list[Any]:
        maps = [self.store.map("state", part, self.partitions, reads=reads) for part in range(self.partitions)]
        opened = maps if reads else map(self._wrap_map, maps)
        return [self.state_over(backing, part) for part, backing in enumerate(opened)]

    def _wrap_map(self, backing: IBackingMap[Any]) -> IBackingMap[Any]:
        faulty: IBackingMap[Any] = FaultyMap(backing, self.faults)
        if self._chunks:
            faulty = MicroBatchIBackingMap(faulty, 2, 1)
        return CachedMap(faulty, self._cache) if self._cache else faulty


def _apply(state: Any, call: dict[Key, int | None]) -> None:
    removed = [key for key, number in call.items() if number is None]
    if removed:
        state.multi_remove(removed)
    state.multi_update([key for key in call if key not in removed], [Append(n) for n in call.values() if n is not None])
