"""The ability "commits columns": a backing map that reads and writes opaque numbers as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trident.ability import Ability
from trident.state.interfaces import Key

if TYPE_CHECKING:
    from trident.state.columns.number_columns import NumberColumns

__all__ = ["ColumnarMap"]


@runtime_checkable
class ColumnarMap(Ability, Protocol):
    """A backing map of opaque values that also takes a commit as columns. `OpaqueMap` needs nothing else."""

    def multi_get_columns(self, parts: Sequence[Sequence[Any]]) -> NumberColumns | None:
        """Read distinct keys.

        Parameters
        ----------
        parts
            The keys: for each grouping field its values, a list or an Arrow array.

        Returns
        -------
        NumberColumns | None
            One entry per key, in the order asked. None if the map holds other values than numbers of one type, or if
            rows are faster now; then `multi_get` and `multi_put` are used.
        """

    def multi_find(self, keys: Sequence[Key]) -> NumberColumns | None:
        """Read keys for a snapshot; None if the map does not keep columns now: then `multi_get` is used."""

    def multi_put_columns(self, found: NumberColumns, new: NumberColumns) -> None:
        """Write `new` for the keys of `found`, which `multi_get_columns` gave in this commit; as `multi_put` otherwise."""
