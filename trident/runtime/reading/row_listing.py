"""RowListing: the rows of all keys of a state, at a given snapshot. Retries, locks and checks are those of `views.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trident.errors import UnsupportedOperation
from trident.runtime.reading.state_partitions import StatePartitions
from trident.runtime.steps.partitions import partition_of_total
from trident.state.encoding.equal_keys import told_apart
from trident.state.interfaces import Key, State
from trident.state.txid import Snapshot

__all__ = ["Row", "RowListing", "begins", "with_values"]

Row = tuple[Any, ...]


class RowListing:
    """Lists the rows of a state's partitions: the key's fields, then the value.

    Parameters
    ----------
    partitions, name
        As of `StateView`.
    has_keys
        Whether the state has keys, not one value.
    all_of_them
        The partitions, to be asked for keys.
    read_at
        Reads keys at a snapshot: a value per key, None where absent.
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
        """Return all rows, or those of one partition; of a state without keys its value, if there is one."""
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
            raise UnsupportedOperation(f"the store of state {self._name!r} cannot list its keys")
        partitions = self._partitions if chosen is None else [self._partitions[index] for index in chosen]
        return [row for state in partitions for row in state.get_tuples()]


def begins(key: Sequence[Any], prefix: Any) -> bool:
    """Whether a key, or a row, begins with a prefix as of `StateView.get_tuples`."""
    if prefix is None:
        return True
    if isinstance(prefix, str):
        return isinstance(key[0], str) and key[0].startswith(prefix)
    first, wanted = told_apart([tuple(key[: len(prefix)]), tuple(prefix)])
    return first == wanted


def with_values(keys: Sequence[Key], values: Sequence[Any]) -> list[Row]:
    """Return a row for each key that has a value."""
    return [(*key, value) for key, value in zip(keys, values, strict=True) if value is not None]
