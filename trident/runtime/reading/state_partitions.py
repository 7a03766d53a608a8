"""Which partition of a state is asked for what (R16), and the rows of all keys at a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trident.errors import KeyConflictError, UnsupportedOperation
from trident.runtime.steps.key_columns import partition_of_total, partitions_of
from trident.state.encoding.equal_keys import OneForm, typed_keys
from trident.state.interfaces import Key, State
from trident.state.txid import Snapshot


class StatePartitions:
    """Reads the partitions of a state as one.

    A key is read in the partition of its hash, where aggregates write it. Where an updater chooses the keys, any partition
    may have written any key: then one is enough if each sees the keys of all, and otherwise all are asked.

    `instances`: by partition.
    `free_keys`: whether an updater chooses the keys.
    """

    def __init__(self, instances: Sequence[State], name: str, free_keys: bool) -> None:
        self._instances, self._name = instances, name
        self.is_past = instances[0].offers("multi_get_at")
        self._asks_all = free_keys and len(instances) > 1 and not instances[0].facts.shares_keys

    def multi_get(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        """Read keys: a value per key, None where absent."""
        if self._asks_all:
            return [value for value, _ in self._found(keys, snapshot)]
        values: list[Any] = [None] * len(keys)
        for partition, places in partitions_of(keys, len(self._instances)).items():
            wanted = OneForm(keys[at] for at in places) if type(keys) is OneForm else [keys[at] for at in places]
            found = self._read(partition, wanted, snapshot)
            for at, value in zip(places, found, strict=True):
                values[at] = value
        return values

    def total(self, snapshot: Snapshot) -> Any:
        """Read the one value of a state without keys."""
        if not self._asks_all:
            return self._read_total(partition_of_total(len(self._instances)), snapshot)
        totals = [self._read_total(partition, snapshot) for partition in range(len(self._instances))]
        return _only(totals, self._name, "its value")[0]

    def own(self, page: Sequence[Key], partition: int, snapshot: Snapshot) -> list[Key]:
        """Return those keys of a page of a partition that are listed there: partitions may each list the keys of all."""
        if self._asks_all:
            found = self._found(page, snapshot)
            return [key for key, (_, holder) in zip(page, found, strict=True) if holder == partition]
        places = partitions_of(page, len(self._instances))
        return [page[at] for at in places.get(partition, ())]

    def _found(self, keys: Sequence[Key], snapshot: Snapshot) -> list[tuple[Any, int]]:
        """Ask all partitions: for each key its value, and the first partition that has it; None and -1 where absent."""
        answers = [self._read(partition, keys, snapshot) for partition in range(len(self._instances))]
        return [
            _only(of_key, self._name, repr(key)) for key, of_key in zip(keys, zip(*answers, strict=True), strict=True)
        ]

    def _read(self, partition: int, keys: Sequence[Key], snapshot: Snapshot) -> Sequence[Any]:
        state = self._instances[partition]
        found: Sequence[Any] = state.multi_get_at(keys, snapshot) if self.is_past else state.multi_get(keys)
        return found

    def _read_total(self, partition: int, snapshot: Snapshot) -> Any:
        state = self._instances[partition]
        if self.is_past and state.offers("get_at"):
            return state.get_at(snapshot)
        if not state.offers("get"):
            raise UnsupportedOperation(f"state {self._name!r} is not snapshottable; read it with multi_get(keys)")
        return state.get()


def state_for_query(instances: Sequence[State], name: str, free_keys: bool) -> Any:
    """Return the instance of a state that is no map which a query function gets: it sees what all partitions hold.

    Raises `UnsupportedOperation`: an updater writes several partitions, and they do not say that each sees what all hold.
    """
    if not free_keys:
        return instances[partition_of_total(len(instances))].given
    if len(instances) > 1 and not instances[0].facts.shares_keys:
        raise UnsupportedOperation(
            f"state {name!r} has {len(instances)} partitions, and a query function gets one of them: if each of them sees what "
            f"all hold, say so with shares_keys = True in {type(instances[0]).__name__}; else give the state one partition, or "
            "make it a map (multi_get), whose partitions are all asked"
        )
    return instances[0].given


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


Row = tuple[Any, ...]


class RowListing:
    """Lists the rows of a state's partitions: the key's fields, then the value.

    `partitions`, `name`: as of `StateView`.
    `has_keys`: whether the state has keys, not one value.
    `all_of_them`: the partitions, to be asked for keys.
    `read_at`: reads keys at a snapshot: a value per key, None where absent.
    """

    def __init__(
        self,
        partitions: Sequence[State],
        all_of_them: StatePartitions,
        name: str,
        has_keys: bool,
        read_at: Callable[[Sequence[Key], Snapshot], list[Any]],
    ) -> None:
        self._partitions, self._all, self._name = partitions, all_of_them, name
        self.has_keys, self._read_at = has_keys, read_at

    @property
    def has_pages(self) -> bool:
        """Whether the keys come in pages."""
        # Asked here, because a view is made for each query of a batch, and most of them list nothing.
        return self._partitions[0].offers("key_pages")

    def at(self, snapshot: Snapshot, only: int | None = None) -> list[Row]:
        """Return all rows, or the rows of one partition; for a state without keys its value, if there is one."""
        chosen = range(len(self._partitions)) if only is None else [only]
        state = self._partitions[0]
        if not self.has_keys:
            holds = partition_of_total(len(self._partitions)) in chosen
            return with_values([()], [self._all.total(snapshot)]) if holds else []
        if state.offers("at"):
            return [row for index in chosen for row in self._partitions[index].at(snapshot).get_tuples()]
        if not self.has_pages:
            return self.of_user(chosen)
        pages = ((index, page) for index in chosen for page in self._partitions[index].key_pages())
        own = (self.own(page, index, snapshot) for index, page in pages)
        return [row for keys in own for row in with_values(keys, self._read_at(keys, snapshot))]

    def in_one_page(self, snapshot: Snapshot, prefix: Any, limit: int | None) -> list[Row] | None:
        """Return the rows at a snapshot that was taken before the keys were listed; None if a partition has several pages."""
        keys: list[Key] = []
        for index, state in enumerate(self._partitions):
            pages = state.key_pages()
            keys += self.own(next(pages, ()), index, snapshot, prefix)
            if next(pages, None) is not None:
                return None
        rows: list[Row] = []
        step = len(keys) if limit is None else max(limit, 1000)  # removed keys are listed too, and have no row
        while keys and (limit is None or len(rows) < limit):
            read, keys = keys[:step], keys[step:]
            rows += with_values(read, self._read_at(read, snapshot))
        return rows

    def own(self, page: Sequence[Key], partition: int, snapshot: Snapshot, prefix: Any = None) -> list[Key]:
        """Return the keys of this partition: partitions that share a store may each list the keys of all."""
        return self._all.own([key for key in page if begins(key, prefix)], partition, snapshot)

    def of_user(self, chosen: Sequence[int] | None = None) -> list[Row]:
        """Return the rows of a state that is not one of our maps."""
        if not self._partitions[0].offers("get_tuples"):
            raise UnsupportedOperation(
                f"the store of state {self._name!r} cannot list its keys; read those that you know"
            )
        partitions = self._partitions if chosen is None else [self._partitions[index] for index in chosen]
        return [row for state in partitions for row in state.get_tuples()]


class RankedRow:
    """A row in a list of the greatest values: as Spark orders them, of equal ones the row with the smaller key first.

    `value`: what it is ordered by: a NaN is greater than any number, None less than anything.
    """

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
    """Return a row for each key that has a value."""
    return [(*key, value) for key, value in zip(keys, values, strict=True) if value is not None]
