"""Opaque numbers as columns: what a backing map may offer so that a commit of many keys is a few operations on arrays.

The rule is the one of `values`, asked once for all values that one attempt wrote in a row of batches. What a column is, is
the store's affair: it is made of what the store is given and handed back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from trident.errors import StaleTransactionError
from trident.state.interfaces import Key
from trident.state.txid import Winners
from trident.state.values import OpaqueValue

__all__ = ["ColumnarMap", "Combine", "Span", "StoredColumns", "fallen"]

Combine = Literal["sum", "min", "max"]
"""What `Count` and `Sum`, `Min`, `Max` do with the stored value and the new one."""


class Span(NamedTuple):
    """The values of one attempt among those that were read: the lowest and the highest txid they were written in."""

    attempt: int
    lowest: int
    highest: int


class StoredColumns(Protocol):
    """What was found for some keys, in their order.

    Attributes
    ----------
    cover
        A span that covers all values, known without a look at any; None if several attempts wrote what the store holds.
    """

    cover: Span | None

    def spans(self) -> Sequence[Span]:
        """Return a span for each distinct attempt; none for keys that were never written."""

    def txids(self, attempt: int) -> Sequence[int]:
        """Return the distinct txids that an attempt wrote values in."""

    def first_after(self, txid: int) -> tuple[Key, int]:
        """Return the first key that a batch after `txid` wrote, and that batch."""

    def combine(self, values: Any, function: Combine, fallen: Sequence[tuple[int, int]]) -> Any | None:
        """Combine what stood before with `values`, a column; return the column of new values.

        What stood is `curr`, but `prev` of what a (txid, attempt) of `fallen` wrote. None if the result has no place in the
        column: a sum beyond 64 bits, a number of another type.
        """

    def stood(self, fallen: Sequence[tuple[int, int]]) -> list[Any]:
        """Return what `combine` would start from, None for nothing."""

    def written(self, txid: int, attempt: int) -> Iterator[tuple[Key, OpaqueValue]]:
        """Iterate over the keys and what this batch put for them."""


@runtime_checkable
class ColumnarMap(Protocol):
    """A backing map that reads and writes opaque numbers as columns."""

    def multi_get_columns(self, parts: Sequence[Sequence[Any]]) -> StoredColumns | None:
        """Read distinct keys, given as a list or an Arrow array of values per grouping field.

        None if the map holds something that is no column of numbers: use `multi_get` and `multi_put`.
        """

    def multi_find(self, keys: Sequence[Key]) -> StoredColumns | None:
        """Read keys; None if the map does not keep columns (now): use `multi_get`."""

    def multi_put_columns(self, found: StoredColumns, txid: int, attempt: int) -> None:
        """Write `[txid, attempt, what stood, the new value]` for all keys of a `combine`, all or none."""


def fallen(found: StoredColumns, txid: int, winners: Winners, state: str, behind: int) -> list[tuple[int, int]]:
    """Return each (txid, attempt) whose values do not stand before batch `txid`; an error says what batch is `behind`.

    Raises
    ------
    StaleTransactionError
        A later batch wrote one of the keys.
    """
    cover = found.cover
    if cover is not None and cover.highest < txid and winners.won_all(cover.lowest, cover.highest, cover.attempt):
        return []
    fell = []
    for attempt, lowest, highest in found.spans():
        if highest > txid:
            key, stored_txid = found.first_after(txid)
            raise StaleTransactionError(state, key, behind, stored_txid)
        if highest == txid or not winners.won_all(lowest, highest, attempt):
            heads = (OpaqueValue(each, attempt, None, None) for each in found.txids(attempt))
            fell += [(head.txid, attempt) for head in heads if not head.stands_before(txid, winners)]
    return fell
