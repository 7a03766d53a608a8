"""StatePartitions: which partition of a state is asked for what. It is the one that writes it, or all of them (R16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.errors import KeyConflictError, UnsupportedOperation
from trident.runtime.steps.partitions import partition_of_total, partitions_of
from trident.state.encoding.equal_keys import OneForm
from trident.state.interfaces import Key, State
from trident.state.txid import Snapshot

__all__ = ["StatePartitions", "state_for_query"]


class StatePartitions:
    """Reads the partitions of a state as one.

    A key is read in the partition of its hash, where aggregates write it. Where an updater chooses the keys, any partition
    may have written any key: then one is enough if each sees the keys of all, and otherwise all are asked.

    Parameters
    ----------
    instances
        By partition.
    free_keys
        Whether an updater chooses the keys.
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
        found = [self._read_total(partition, snapshot) for partition in range(len(self._instances))]
        return _only(found, self._name, "its value")[0]

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

    Raises
    ------
    UnsupportedOperation
        An updater writes several partitions, and they do not say that each sees what all hold.
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
