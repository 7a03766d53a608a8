"""Opaque values of many keys as a table, so that a commit makes no object for each key, and the keys as columns.

Columns are lists, which hold any value and are faster for few keys; or NumPy's txids and attempts, and `NumberColumn`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product, repeat
from typing import Any, NamedTuple

from trident.state.kinds import Key
from trident.state.txid import Txid, Winners
from trident.state.values import UNKNOWN_ATTEMPT, Combine, OpaqueValue, stand_before

ABSENT = -1  # in place of the number of a batch, which no batch has: the key was never written
_NEVER = OpaqueValue(ABSENT, UNKNOWN_ATTEMPT, None, None)


class KeyColumns(Sequence[Key]):
    """A list of distinct keys that are given field by field, lists or Arrow arrays; rows of them are made when someone asks."""

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


def as_list(values: Any) -> list[Any]:
    if isinstance(values, (list, tuple)):
        return values  # type: ignore[return-value]
    made: list[Any] = values.tolist()
    return made


class Span(NamedTuple):
    """The writer of some values: one attempt, in batches from `lowest` to `highest`."""

    attempt: int
    lowest: int
    highest: int


class OpaqueTable(Sequence["OpaqueValue | None"]):
    """A list of `OpaqueValue`s as columns, None for a key that was never written, with the value rule for all at once.

    `txids`, `attempts`, `prevs`, `currs`: the fields of all values. They are not changed once others see this.
    `span`: the writer of the values, known without reading them; None if several attempts may have written.
    `place`: what the store that gave this needs to find the keys, when it is given what was made of it.
    """

    __slots__ = ("attempts", "currs", "place", "prevs", "span", "txids")

    def __init__(self, columns: Iterable[Any], span: Span | None = None, place: Any = None) -> None:
        self.txids, self.attempts, self.prevs, self.currs = columns
        self.span, self.place = span, place

    @classmethod
    def absent(cls, count: int) -> OpaqueTable:
        return cls(([ABSENT] * count, [UNKNOWN_ATTEMPT] * count, [None] * count, [None] * count))

    @classmethod
    def of(cls, values: Sequence[OpaqueValue | None]) -> OpaqueTable:
        rows = [_NEVER if value is None else value for value in values]
        return cls(map(list, zip(*rows, strict=True))) if rows else cls.absent(0)

    @classmethod
    def spread(cls, count: int, there: Sequence[int], columns: Sequence[list[Any]]) -> OpaqueTable:
        """Return so many keys, of which those at some places have values, given as four columns."""
        if columns and len(there) == count:
            return cls(columns)
        made = cls.absent(count)
        if columns:
            made.put(there, columns)
        return made

    @property
    def columns(self) -> tuple[Any, Any, Any, Any]:
        return (self.txids, self.attempts, self.prevs, self.currs)

    def put(self, where: Any, columns: Sequence[Any]) -> None:
        """Put the values of four columns at some places, a slice or several."""
        for own, given in zip(self.columns, columns, strict=True):
            if isinstance(where, slice) or not isinstance(own, list):
                own[where] = given
            else:
                for at, value in zip(where, given, strict=True):
                    own[at] = value

    def at(self, places: slice | list[int]) -> OpaqueTable:
        if isinstance(places, slice) or not isinstance(self.txids, list):
            return OpaqueTable((column[places] for column in self.columns), self.span)
        return OpaqueTable([column[at] for at in places] for column in self.columns)

    def heads(self) -> set[tuple[int, int]]:
        """Return each pair of a txid and an attempt; the columns are lists."""
        txids, attempts = set(self.txids), set(self.attempts)
        if len(txids) == 1 or len(attempts) == 1:  # as one commit, or one driver without a failure, writes them
            return set(product(txids, attempts))
        return set(zip(self.txids, self.attempts, strict=True))

    def first_after(self, txid: int) -> tuple[int, int] | None:
        """Return the place of the first value that a batch after `txid` wrote, and that batch; None if there is none."""
        txids, span = self.txids, self.span
        if span is not None and span.highest <= txid:
            return None
        last = max(txids, default=ABSENT) if isinstance(txids, list) else txids.max(initial=ABSENT)
        return None if last <= txid else next((at, int(one)) for at, one in enumerate(txids) if one > txid)

    def before(self, txid: int, winners: Winners) -> Any:
        """Return the column of the values before batch `txid`, as `OpaqueValue.stands_before` decides for each."""
        txids, attempts, span = self.txids, self.attempts, self.span
        if span is not None and span.highest < txid and winners.won_all(span.lowest, span.highest, span.attempt):
            return self.currs
        if not isinstance(txids, list):
            stand = stand_before(txids, attempts, txid, winners)
            return self.currs if stand.all() else self.currs.where(stand, self.prevs)
        batches, known = {*txids} - {ABSENT}, {*attempts} - {UNKNOWN_ATTEMPT}
        if len(known) == 1 and max(batches) < txid and winners.won_all(min(batches), max(batches), *known):
            return self.currs
        # One batch wrote many keys, so each (txid, attempt) is judged once.
        fell = {head for head in self.heads() if not OpaqueValue(*head, None, None).stands_before(txid, winners)}
        if not fell:
            return self.currs
        rows = zip(zip(txids, attempts, strict=True), self.prevs, self.currs, strict=True)
        return [prev if head in fell else curr for head, prev, curr in rows]

    def values_before(self, txid: int, winners: Winners) -> list[Any]:
        found = self.before(txid, winners)
        return found if isinstance(found, list) else as_list(found)

    def combine_with(self, values: Any, function: Combine | Sequence[Combine], txid: Txid) -> OpaqueTable | None:
        """Return what the commit `txid` writes, as `NumberColumn.combine_with` combines; None: the values do not fit."""
        if isinstance(self.currs, list):
            return None
        base, number = self.before(int(txid), txid.winners), int(txid)
        new = base.combine_with(values, function)
        if new is None:
            return None
        heads = new.repeat(number), new.repeat(txid.attempt)
        return OpaqueTable((*heads, base, new), Span(txid.attempt, number, number), self.place)

    def __len__(self) -> int:
        return len(self.txids)

    def __getitem__(self, at: Any) -> Any:
        return self.at(at) if isinstance(at, slice) else next(iter(self.at([at])))

    def __iter__(self) -> Iterator[OpaqueValue | None]:
        make: Callable[..., OpaqueValue] = tuple.__new__  # past OpaqueValue's own slow __new__
        txids, *others = map(as_list, self.columns)
        values = map(make, repeat(OpaqueValue), zip(txids, *others, strict=True))
        return (None if each[0] == ABSENT else each for each in values) if ABSENT in txids else values
