"""MicroBatchIBackingMap: bounds how many keys one request to a store carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.state.interfaces import IBackingMap, Key
from trident.state.wrappers.forwarding import MapWrapper

__all__ = ["MicroBatchIBackingMap"]


class MicroBatchIBackingMap(MapWrapper):
    """Splits reads and writes of a map into chunks, in order.

    An error in a chunk leaves the chunks before it written, which the value rules undo at the replay.

    Parameters
    ----------
    delegate
        The map that gets the chunks.
    max_multi_get, max_multi_put
        The largest number of keys in one read or write; 0 does not split.
    """

    def __init__(self, delegate: IBackingMap[Any], max_multi_get: int = 0, max_multi_put: int = 0) -> None:
        if max_multi_get < 0 or max_multi_put < 0:
            raise ValueError(
                f"chunk sizes are {max_multi_get} (get) and {max_multi_put} (put); give the largest number of keys in "
                "one request, or 0 for no limit"
            )
        super().__init__(delegate)
        self.delegate, self.max_multi_get, self.max_multi_put = delegate, max_multi_get, max_multi_put

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        """Read chunk by chunk; one entry per key, in the order asked."""
        size = self.max_multi_get
        if not size or len(keys) <= size:
            return self.delegate.multi_get(keys)
        values: list[Any] = []
        for start in range(0, len(keys), size):
            values.extend(self.delegate.multi_get(keys[start : start + size]))
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write chunk by chunk."""
        size = self.max_multi_put or len(keys)
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        if len(keys) <= size:
            self.delegate.multi_put(keys, values)
            return
        for start in range(0, len(keys), size):
            self.delegate.multi_put(keys[start : start + size], values[start : start + size])
