"""What users implement to process several streams of one batch together, for `TridentTopology.multi_reduce`."""

from __future__ import annotations

from typing import Generic, TypeVar

from trident.operations.interfaces import Operation
from trident.tuples import TridentCollector, TridentTuple

__all__ = ["BaseMultiReducer", "GroupedMultiReducer", "MultiReducer"]

T = TypeVar("T")


class MultiReducer(Operation, Generic[T]):
    """Sees all tuples of several streams, batch by batch, also of an empty batch; may emit at any time.

    The tuples of the first stream come first, then those of the second, and so on.
    """

    def init(self, collector: TridentCollector) -> T:
        """Return the value to start with."""
        raise NotImplementedError

    def execute(self, state: T, stream_index: int, input: TridentTuple, collector: TridentCollector) -> T | None:
        """Take one tuple; returns the value to go on with, None to go on with `state` itself."""
        raise NotImplementedError

    def complete(self, state: T, collector: TridentCollector) -> None:
        """All tuples of the batch were seen."""
        raise NotImplementedError


class GroupedMultiReducer(Operation, Generic[T]):
    """As `MultiReducer`, once for each key that occurs in any of the streams.

    `group` is the key as a tuple; what is emitted is the whole output, the key is not added to it.
    """

    def init(self, collector: TridentCollector, group: TridentTuple) -> T:
        """Return the value to start with."""
        raise NotImplementedError

    def execute(
        self, state: T, stream_index: int, group: TridentTuple, input: TridentTuple, collector: TridentCollector
    ) -> T | None:
        """Take one tuple; returns the value to go on with, None to go on with `state` itself."""
        raise NotImplementedError

    def complete(self, state: T, group: TridentTuple, collector: TridentCollector) -> None:
        """All tuples of the key were seen."""
        raise NotImplementedError


BaseMultiReducer = MultiReducer
