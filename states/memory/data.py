"""What a state in memory holds: values that its partitions share, and a sentinel for each of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from trident.state.columns.kept_values import KeptValues
from trident.state.columns.number_columns import NumberForm
from trident.state.columns.number_table import NumberTable
from trident.state.interfaces import Key
from trident.state.txid import Sentinel


class MemoryData:
    """The values and the sentinel of one partition.

    Parameters
    ----------
    max_size
        How many entries are kept; the least recently used ones are dropped beyond it. 0: all.
    beside
        Another partition of the same state, whose values this one shares.
    form
        Of the values; see `KeptValues`.
    """

    def __init__(self, max_size: int = 0, beside: MemoryData | None = None, form: NumberForm | None = None) -> None:
        self.max_size = max_size
        self.sentinel: Sentinel | None = None
        self.lock: threading.Lock = threading.Lock() if beside is None else beside.lock
        own: KeptValues = LastUsedValues(max_size) if max_size else KeptValues(form=form)
        self.values: KeptValues = own if beside is None else beside.values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def entries(self) -> dict[Key, Any]:
        """The values, while they are a dict."""
        return self.values.entries

    @property
    def columns(self) -> NumberTable | None:
        """The values as arrays; None while they are a dict."""
        return self.values.columns

    def keep(self, partitions: int) -> None:
        """Keep `max_size` entries for each of so many partitions."""
        if isinstance(self.values, LastUsedValues):
            self.values.max_size = self.max_size * partitions

    def clear(self) -> None:
        """Forget the values of all partitions, and this one's sentinel."""
        self.values.clear()
        self.sentinel = None


class LastUsedValues(KeptValues):
    """The `max_size` values that were read or written last."""

    entries: OrderedDict[Key, Any]

    def __init__(self, max_size: int) -> None:
        super().__init__(may_be_columns=False)
        self.max_size = max_size
        self.entries = OrderedDict()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key; what is read counts as used."""
        values = super().get(keys)
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                self.entries.move_to_end(key)
        return values

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write a value per key, and drop those that were used least recently."""
        super().put(keys, values)
        for key in keys:
            self.entries.move_to_end(key)
        while len(self.entries) > self.max_size:
            self.entries.popitem(last=False)
