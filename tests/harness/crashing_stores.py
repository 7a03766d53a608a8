"""Stores of the kinds that maps meet; what fails is a `FaultyMap` of `trident.testing` over them."""

from collections.abc import Sequence
from typing import Any

from trident.state import JSONOpaqueSerializer, Key, OpaqueValue, Snapshot, Txid
from trident.state.values import UNKNOWN_ATTEMPT
from trident.testing.backend.faulty_map import How
from trident.testing.backend.schedules import Add

WAYS: tuple[How, ...] = ("before", "middle", "after")


class WithoutAttempts(JSONOpaqueSerializer):
    """A serializer of one's own that drops the attempt."""

    def serialize(self, obj: Any) -> bytes:
        return super().serialize(obj._replace(attempt=UNKNOWN_ATTEMPT) if isinstance(obj, OpaqueValue) else obj)


class DictMap:
    """The simplest store there is: two methods over a dict that outlives it. Counts its calls."""

    def __init__(self, entries: dict[Key, Any] | None = None) -> None:
        self.entries: dict[Key, Any] = {} if entries is None else entries
        self.gets: list[list[Key]] = []
        self.puts: list[list[Key]] = []

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        self.gets.append(list(keys))
        return [self.entries.get(key) for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.puts.append(list(keys))
        self.entries.update(zip(keys, values, strict=True))


class FailsOnce(DictMap):
    """Loses the answer of so many puts as there are `failures`: they are carried out, and raise."""

    def __init__(self, entries: dict[Any, Any], failures: list[int]) -> None:
        super().__init__(entries)
        self.failures = failures

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        super().multi_put(keys, values)
        if self.failures and len(keys) > 1:  # not that of a sentinel alone
            self.failures.pop()
            raise OSError("the answer was lost")


class LateMap(DictMap):
    """A store that makes all puts of a commit at its end, and does not show them before."""

    def __init__(self, entries: dict[Key, Any]) -> None:
        super().__init__(entries)
        self.pending: dict[Key, Any] | None = None

    def begin(self, txid: Txid) -> None:
        self.pending = {}

    def end(self, txid: Txid) -> None:
        self.entries.update(self.pending or {})
        self.pending = None

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if self.pending is None:
            super().multi_put(keys, values)
        else:
            self.pending.update(zip(keys, values, strict=True))


def commit(state: Any, txid: int, **increments: int) -> list[Any]:
    """Run one whole commit that adds a number to each named key; return the new values."""
    state.begin_commit(txid)
    values: list[Any] = state.multi_update([(key,) for key in increments], [Add(n) for n in increments.values()])
    state.commit(txid)
    return values


def tuples_at(state: Any, snapshot: Snapshot) -> list[tuple[Any, ...]]:
    """Return the rows of a map as they were after a batch."""
    pages = ((page, state.multi_get_at(page, snapshot)) for page in state.key_pages())
    pairs = (pair for page, values in pages for pair in zip(page, values, strict=True))
    return [(*key, value) for key, value in pairs if value is not None]
