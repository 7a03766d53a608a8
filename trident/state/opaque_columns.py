"""Opaque values of many keys as four columns, so that a commit makes no object for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, overload

from trident.state.values import UNKNOWN_ATTEMPT, OpaqueValue

__all__ = ["OpaqueColumns"]

_ABSENT = -1  # in place of the number of a batch, which none has


class OpaqueColumns(Sequence["OpaqueValue | None"]):
    """A list of `OpaqueValue`s, None for a key that was never written, stored as columns.

    By the value rule an absent key is one whose value None stands.

    Attributes
    ----------
    txids, attempts, prevs, currs
        The fields of all values. They are not changed once others see this.
    """

    __slots__ = ("attempts", "currs", "prevs", "txids")

    def __init__(self, txids: list[int], attempts: list[int], prevs: list[Any], currs: list[Any]) -> None:
        self.txids, self.attempts, self.prevs, self.currs = txids, attempts, prevs, currs

    @classmethod
    def absent(cls, count: int) -> OpaqueColumns:
        """Return so many absent keys."""
        return cls([_ABSENT] * count, [UNKNOWN_ATTEMPT] * count, [None] * count, [None] * count)

    @classmethod
    def of(cls, values: Sequence[OpaqueValue | None]) -> OpaqueColumns:
        """Return the columns of a list."""
        made = cls.absent(len(values))
        there = [at for at, value in enumerate(values) if value is not None]
        made.put(there, [list(column) for column in zip(*(values[at] for at in there), strict=True)])
        return made

    @property
    def columns(self) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """All four."""
        return (self.txids, self.attempts, self.prevs, self.currs)

    def put(self, where: slice | list[int], columns: Sequence[list[Any]]) -> None:
        """Put the values of four columns at some places."""
        for own, given in zip(self.columns, columns, strict=bool(columns)):
            if isinstance(where, slice):
                own[where] = given
            else:
                for at, value in zip(where, given, strict=True):
                    own[at] = value

    def at(self, places: list[int]) -> OpaqueColumns:
        """Return the values at some places."""
        return OpaqueColumns(*([column[at] for at in places] for column in self.columns))

    def heads(self) -> set[tuple[int, int]]:
        """Return each pair of a txid and an attempt."""
        txids, attempts = self.txids, self.attempts
        if txids and txids.count(txids[0]) == attempts.count(attempts[0]) == len(txids):  # as one commit writes them
            return {(txids[0], attempts[0])}
        return set(zip(txids, attempts, strict=True))

    def __len__(self) -> int:
        return len(self.txids)

    @overload
    def __getitem__(self, at: int) -> OpaqueValue | None: ...
    @overload
    def __getitem__(self, at: slice) -> OpaqueColumns: ...
    def __getitem__(self, at: int | slice) -> OpaqueValue | OpaqueColumns | None:
        if isinstance(at, slice):
            return OpaqueColumns(*(column[at] for column in self.columns))
        return None if self.txids[at] == _ABSENT else OpaqueValue(*(column[at] for column in self.columns))

    def __iter__(self) -> Iterator[OpaqueValue | None]:
        make: Callable[..., OpaqueValue] = tuple.__new__  # past OpaqueValue's own slow __new__
        values = map(make, repeat(OpaqueValue), zip(*self.columns, strict=True))
        return (None if each[0] == _ABSENT else each for each in values) if _ABSENT in self.txids else values
