"""StatePartitions: the partitions of a state as one, read at committed snapshots; which of them is asked for a key (R16)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from trident.errors import KeyConflictError, StaleTransactionError, UnsupportedOperation
from trident.log.log_state import LogState
from trident.state.encoding.equal_keys import CanonicalKeys, typed_keys
from trident.state.interfaces import Key, State, state_of
from trident.state.map_commits import REMOVAL_LAG
from trident.state.sentinel import compare_stores
from trident.state.txid import Snapshot
from trident.steps.key_columns import partition_of_total, partitions_of

R = TypeVar("R")
Row = tuple[Any, ...]

ROUNDS = 100
_FREE_ROUNDS = 1  # without the gate
_MOST_S = 2.0
_COMPARED_S = 0.1  # for so long the stores are not compared with the log again for the same snapshot


class CommitGate:
    """A lock that a reader holds to delay the next commit; a commit that has begun continues.

    A read at the last committed batch is right if one commit happens meanwhile, and is repeated if two do: each time, where a
    batch takes less time than a read. A commit waits for 2 seconds at most, so a longer read may still be overtaken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_held = self._lock.locked  # as it is, because each commit asks

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def pass_through(self) -> None:
        """Wait for the reader that holds the gate; called before a commit begins."""
        if self._lock.acquire(timeout=_MOST_S):
            self._lock.release()


def read_in_rounds(
    read: Callable[[], R],
    was_overtaken: Callable[[Exception], bool],
    gate: AbstractContextManager[Any] | None,
    rounds: int = ROUNDS,
) -> R:
    """Return what `read` gives, which takes a newer snapshot in each round; what the last round raises is raised.

    `was_overtaken`: whether an error says that two batches were committed since; any other one is raised.
    `gate`: held from the second round on; None where commits are another process's.
    """
    for number in range(rounds):
        try:
            with gate if gate is not None and number >= _FREE_ROUNDS else nullcontext():
                return read()
        except Exception as error:
            if number == rounds - 1 or not was_overtaken(error):
                raise
    raise AssertionError("the last round returns or raises")


class StatePartitions:
    """Reads the partitions of a state as one. Threads take turns, because a store need not be thread-safe.

    A key is read in the partition of its hash, where aggregates write it. Where an updater chooses the keys, any partition
    may have written any key: then one is enough if each sees the keys of all, and otherwise all are asked. Parameters as of
    `StateView`; `txid` is the batch of the last read.
    """

    def __init__(
        self,
        instances: Sequence[State],
        name: str,
        snapshot: Callable[[], Snapshot] | None,
        log: Callable[[], LogState] | None = None,
        gate: AbstractContextManager[Any] | None = None,
        free_keys: bool = False,
        has_keys: bool = True,
    ) -> None:
        self.instances, self.name, self.has_keys = instances, name, has_keys
        self.txid: int | None = None
        self.lock = threading.Lock()
        self._given, self._log, self._gate, self._free_keys = snapshot, log, gate, free_keys
        self._is_past = instances[0].facts.multi_get_at is not None
        self._asks_all = free_keys and len(instances) > 1 and not instances[0].facts.shares_keys
        self._compared, self._until = -1, 0.0

    def of(self, instances: Sequence[State]) -> StatePartitions:
        return StatePartitions(instances, self.name, self._given, self._log, self._gate, self._free_keys, self.has_keys)

    def snapshot(self) -> Snapshot:
        if self._given is not None:
            return self._given()
        assert self._log is not None, "there is a snapshot, or a log that has one"
        return self._log().snapshot(self.name)

    def read(self, read: Callable[[Snapshot], R], rounds: int = ROUNDS) -> R:
        """Return what `read` gives at a snapshot. A read that commits overtake is made again at a newer one.

        The stores are compared with the log once per snapshot, and again after a tenth of a second: after the values were
        read, so that a store which was replaced before or meanwhile is found.
        """
        with self.lock:
            if self._given is not None and self._log is not None:  # the snapshot is of all that is read together
                return self._once(read)
            # What different partitions say of a key may also be of different batches, where values hold no `prev`.
            overtaken = (StaleTransactionError, KeyConflictError)
            return read_in_rounds(partial(self._once, read), lambda e: isinstance(e, overtaken), self._gate, rounds)

    def _once(self, read: Callable[[Snapshot], R]) -> R:
        snapshot = self.snapshot()
        if self._gate is None and snapshot.txid != self._compared:
            self.compare()  # a replica that lags may catch up between its values and its sentinel
        try:
            found = read(snapshot)
        except StaleTransactionError:
            self.compare()  # a store that is ahead of its log looks as if its commits overtook the reader
            raise
        if self._log is not None and (snapshot.txid != self._compared or time.monotonic() >= self._until):
            self.compare()
            self._compared, self._until = snapshot.txid, time.monotonic() + _COMPARED_S
        self.txid = snapshot.txid
        return found

    def compare(self) -> None:
        """Compare the stores with the log; `StateReadError` if they do not belong together."""
        if self._log is not None:
            compare_stores(self.name, self.instances, self._log)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        return self.read(partial(self._values, keys))

    def total(self, snapshot: Snapshot) -> Any:
        if not self._asks_all:
            return self._total_of(partition_of_total(len(self.instances)), snapshot)
        totals = [self._total_of(partition, snapshot) for partition in range(len(self.instances))]
        return _only(totals, self.name, "its value")[0]

    def _values(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        if self._asks_all:
            values = [value for value, _ in self._ask_all(keys, snapshot)]
        elif len(self.instances) == 1:
            found = self._ask(0, keys, snapshot) if keys else []
            values = [value for _, value in zip(keys, found, strict=True)]
        else:
            values = [None] * len(keys)
            for partition, places in partitions_of(keys, len(self.instances)).items():
                wanted = (CanonicalKeys if type(keys) is CanonicalKeys else list)(keys[at] for at in places)
                for at, value in zip(places, self._ask(partition, wanted, snapshot), strict=True):
                    values[at] = value
        if None in values:  # keys of a snapshot that is so old may have been removed and deleted during this read
            now = self._log().txid if self._log is not None else self.snapshot().txid
            if now >= snapshot.txid + REMOVAL_LAG:
                raise StaleTransactionError(self.name, "an absent key", snapshot.txid, now)
        return values

    def _ask_all(self, keys: Sequence[Key], snapshot: Snapshot) -> list[tuple[Any, int]]:
        """Ask all partitions: for each key its value, and the first partition that has it; None and -1 where absent."""
        answers = [self._ask(partition, keys, snapshot) for partition in range(len(self.instances))]
        return [
            _only(of_key, self.name, repr(key)) for key, of_key in zip(keys, zip(*answers, strict=True), strict=True)
        ]

    def _ask(self, partition: int, keys: Sequence[Key], snapshot: Snapshot) -> Sequence[Any]:
        state = self.instances[partition]
        read = state.facts.multi_get_at
        return state.multi_get(keys) if read is None else read(keys, snapshot)

    def _total_of(self, partition: int, snapshot: Snapshot) -> Any:
        state = self.instances[partition]
        if self._is_past and state.facts.get_at is not None:
            return state.facts.get_at(snapshot)
        if not state.offers("get"):
            raise UnsupportedOperation(f"state {self.name!r} is not snapshottable; read it with multi_get(keys)")
        return state.get()

    @property
    def has_pages(self) -> bool:
        # Asked here, because a view is made for each query of a batch, and most of them list nothing.
        return self.instances[0].offers("key_pages")

    def at(self, snapshot: Snapshot, chosen: Sequence[int]) -> list[State]:
        """Return some partitions as they were after an earlier batch; none if one of them does not keep that."""
        ways = [self.instances[index].facts.at for index in chosen]
        return [] if None in ways else [state_of(at(snapshot)) for at in ways if at is not None]

    def rows(self, snapshot: Snapshot, only: int | None = None) -> list[Row]:
        """Return all rows, or the rows of one partition; for a state without keys its value, if there is one."""
        chosen = range(len(self.instances)) if only is None else [only]
        if not self.has_keys:
            holds = partition_of_total(len(self.instances)) in chosen
            return with_values([()], [self.total(snapshot)]) if holds else []
        if earlier := self.at(snapshot, chosen):
            return [row for state in earlier for row in state.get_tuples()]
        if not self.has_pages:
            return self.rows_of_user(chosen)
        pages = ((index, page) for index in chosen for page in self.instances[index].key_pages())
        own = (self._own(page, index, None, snapshot) for index, page in pages)
        return [row for keys in own for row in with_values(keys, self._values(keys, snapshot))]

    def rows_of_one_page(self, snapshot: Snapshot, prefix: Any, limit: int | None) -> list[Row] | None:
        """Return the rows at a snapshot that was taken before the keys were listed; None if a partition has several pages."""
        keys: list[Key] = []
        for index, state in enumerate(self.instances):
            pages = state.key_pages()
            keys += self._own(next(pages, ()), index, prefix, snapshot)
            if next(pages, None) is not None:
                return None
        rows: list[Row] = []
        step = len(keys) if limit is None else max(limit, 1000)  # removed keys are listed too, and have no row
        while keys and (limit is None or len(rows) < limit):
            read, keys = keys[:step], keys[step:]
            rows += with_values(read, self._values(read, snapshot))
        return rows

    def pages(self, partition: int, prefix: Any = None) -> Iterator[list[Row]]:
        """Iterate over the rows of a partition, page by page, each at a snapshot of its own."""
        pages = self.instances[partition].key_pages()
        while True:
            with self.lock:
                page = next(pages, None)
            if page is None:
                return
            keys = self.read(partial(self._own, page, partition, prefix))
            yield with_values(keys, self.multi_get(keys))

    def rows_of_user(self, chosen: Sequence[int] | None = None) -> list[Row]:
        """Return the rows of a state that is not one of our maps."""
        if not self.instances[0].offers("get_tuples"):
            raise UnsupportedOperation(
                f"the store of state {self.name!r} cannot list its keys; read those that you know"
            )
        partitions = self.instances if chosen is None else [self.instances[index] for index in chosen]
        return [row for state in partitions for row in state.get_tuples()]

    def _own(self, page: Sequence[Key], partition: int, prefix: Any, snapshot: Snapshot) -> list[Key]:
        """Return the keys of a page that are a partition's own: several that share a store may each list the keys of all."""
        page = [key for key in page if begins(key, prefix)]
        if self._asks_all:
            found = self._ask_all(page, snapshot)
            return [key for key, (_, holder) in zip(page, found, strict=True) if holder == partition]
        places = partitions_of(page, len(self.instances))
        return [page[at] for at in places.get(partition, ())]


def _only(answers: Sequence[Any], name: str, key: str) -> tuple[Any, int]:
    """Return the value that partitions answered, and the first that has it; two different ones are refused."""
    value, holder = None, -1
    for partition, answer in enumerate(answers):
        if answer is None:
            continue
        if holder >= 0 and repr(answer) != repr(value):
            raise KeyConflictError(name, key, holder, partition)
        if holder < 0:
            value, holder = answer, partition
    return value, holder


class RankedRow:
    """A row in a list of the greatest values: as Spark orders them, of equal ones the row with the smaller key first."""

    __slots__ = ("_key", "_value")

    def __init__(self, key: Sequence[Any], value: Any) -> None:
        self._value = _in_order(value)
        self._key = [(type(part).__name__, _in_order(part)) for part in key]  # keys without a type may be of several

    def __lt__(self, other: RankedRow) -> bool:
        return self._key > other._key if self._value == other._value else self._value < other._value


def _in_order(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (1, value) if value == value else (2,)


def begins(key: Sequence[Any], prefix: Any) -> bool:
    """Whether a key, or a row, begins with a prefix as of `StateView.get_tuples`."""
    if prefix is None:
        return True
    if isinstance(prefix, str):
        return isinstance(key[0], str) and key[0].startswith(prefix)
    first, wanted = typed_keys([tuple(key[: len(prefix)]), tuple(prefix)])
    return first == wanted


def with_values(keys: Sequence[Key], values: Sequence[Any]) -> list[Row]:
    return [(*key, value) for key, value in zip(keys, values, strict=True) if value is not None]
