"""Opaque values of many keys as a table, so that a commit makes no object for each key, and the keys as columns.

A table holds lists (`OpaqueColumns`) or, in `columns/number_columns.py`, arrays of numbers: few keys are faster as lists, which
hold any value, many numbers as arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import product, repeat
from typing import Any

from trident.state.kinds import Key
from trident.state.txid import Txid
from trident.state.values import UNKNOWN_ATTEMPT, Combine, OpaqueValue
from trident.state.winners import Winners

_ABSENT = -1  # in place of the number of a batch, which none has


class KeyColumns(Sequence[Key]):
    """A list of distinct keys that are given field by field; rows of them are made when someone asks.

    `parts`: for each grouping field its values, a list or an Arrow array.
    """

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self.parts = parts

    @property
    def names(self) -> Sequence[Any]:
        """The only field, a list or an Arrow array; of several fields the keys."""
        return self.parts[0] if len(self.parts) == 1 else self._rows

    @cached_property
    def _rows(self) -> list[Key]:
        return list(zip(*map(as_list, self.parts), strict=True))

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self._rows[at]
        return tuple(part[at] if isinstance(part, (list, tuple)) else part[at].as_py() for part in self.parts)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)


def as_list(values: Any) -> Sequence[Any]:
    """Return the values of a list or an Arrow array."""
    return values if isinstance(values, (list, tuple)) else list(values.to_pylist())


class OpaqueTable(Sequence["OpaqueValue | None"]):
    """A list of `OpaqueValue`s, None for a key that was never written, with the value rule for all of them at once."""

    __slots__ = ()

    @abstractmethod
    def first_after(self, txid: int) -> tuple[int, int] | None:
        """Return the place of the first value that a batch after `txid` wrote, and that batch; None if there is none."""

    @abstractmethod
    def values_before(self, txid: int, winners: Winners) -> list[Any]:
        """Return the values before batch `txid`, as `OpaqueValue.stands_before` decides for each."""

    @abstractmethod
    def latest(self) -> list[Any]:
        """Return what was written last."""

    def combine_with(self, values: Any, function: Combine | Sequence[Combine], txid: Txid) -> Any | None:
        """Return the table of what the commit `txid` writes; None: these are combined one by one. See `NumberColumns`."""
        return None


class OpaqueColumns(OpaqueTable):
    """A table whose columns are lists.

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
        return cls([_ABSENT] * count, [UNKNOWN_ATTEMPT] * count, [None] * count, [None] * count)

    @classmethod
    def of(cls, values: Sequence[OpaqueValue | None]) -> OpaqueColumns:
        if values and None not in values:
            return cls(*map(list, zip(*values, strict=True)))
        there = [at for at, value in enumerate(values) if value is not None]
        return cls.spread(len(values), there, list(map(list, zip(*(values[at] for at in there), strict=True))))

    @classmethod
    def spread(cls, count: int, there: Sequence[int], columns: Sequence[list[Any]]) -> OpaqueColumns:
        """Return so many keys, of which those at some places have values, given as four columns."""
        if columns and len(there) == count:
            return cls(*columns)
        made = cls.absent(count)
        made.put(there, columns)
        return made

    @property
    def columns(self) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        return (self.txids, self.attempts, self.prevs, self.currs)

    def put(self, where: slice | Sequence[int], columns: Sequence[list[Any]]) -> None:
        """Put the values of four columns at some places."""
        for own, given in zip(self.columns, columns, strict=bool(columns)):
            if isinstance(where, slice):
                own[where] = given
            else:
                for at, value in zip(where, given, strict=True):
                    own[at] = value

    def at(self, places: list[int]) -> OpaqueColumns:
        return OpaqueColumns(*([column[at] for at in places] for column in self.columns))

    def heads(self) -> set[tuple[int, int]]:
        """Return each pair of a txid and an attempt."""
        txids, attempts = set(self.txids), set(self.attempts)
        if len(txids) == 1 or len(attempts) == 1:  # as one commit, or one driver without a failure, writes them
            return set(product(txids, attempts))
        return set(zip(self.txids, self.attempts, strict=True))

    def first_after(self, txid: int) -> tuple[int, int] | None:
        if max(self.txids, default=_ABSENT) <= txid:
            return None
        return next((at, stored) for at, stored in enumerate(self.txids) if stored > txid)

    def values_before(self, txid: int, winners: Winners) -> list[Any]:
        # One batch wrote many keys, so each (txid, attempt) is judged once.
        fell = {head for head in self.heads() if not OpaqueValue(*head, None, None).stands_before(txid, winners)}
        if not fell:
            return self.currs
        heads = zip(self.txids, self.attempts, strict=True)
        return [prev if head in fell else curr for head, prev, curr in zip(heads, self.prevs, self.currs, strict=True)]

    def latest(self) -> list[Any]:
        return self.currs

    def __len__(self) -> int:
        return len(self.txids)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return OpaqueColumns(*(column[at] for column in self.columns))
        return None if self.txids[at] == _ABSENT else OpaqueValue(*(column[at] for column in self.columns))

    def __iter__(self) -> Iterator[OpaqueValue | None]:
        make: Callable[..., OpaqueValue] = tuple.__new__  # past OpaqueValue's own slow __new__
        values = map(make, repeat(OpaqueValue), zip(*self.columns, strict=True))
        return (None if each[0] == _ABSENT else each for each in values) if _ABSENT in self.txids else values
