"""What you give to have a spout checked: a source that can be filled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from trident.roles import Role

Row = tuple[Any, ...]


class SpoutSource(Role, ABC):
    """A source that begins empty, and a spout that reads it. Subclass it; an instance is made for each check.

    `lost`, `outage` and `change` may be written in addition; without one, what it is for is reported as not claimed.

    Attributes
    ----------
    limit
        How many rows a batch of the spout has at most, as you declared it to the spout; about 10 is good. None: no limit.
    unit
        How many rows a batch of a backlog has at least, where they cannot be split, as in a Parquet file.
    partitions
        How many partitions the source begins with. With one, the source has no partitions.
    adds_partitions
        Whether `fill` creates a partition that is not there.
    grows
        Whether a coordinator that is open finds what is added. If not, all is added before it is opened.
    durable
        Whether another process can read the source. Rows in the memory of this process end with it.
    crashes
        Whether a driver may be left as a crash leaves it, with nothing closed, while the next one reads in the same process.
        If not, it is closed first.
    at_least_once
        Whether a non-transactional spout gives again what was not committed; one of another kind does in any case.
    patience_s
        How long the spout may take to notice what was added.
    idle_s
        How long the coordinator may take to say that there is nothing.
    """

    limit: ClassVar[int | None] = None
    unit: ClassVar[int] = 1
    partitions: ClassVar[int] = 1
    adds_partitions: ClassVar[bool] = False
    grows: ClassVar[bool] = True
    durable: ClassVar[bool] = True
    crashes: ClassVar[bool] = True
    at_least_once: ClassVar[bool] = False
    patience_s: ClassVar[float] = 5.0
    idle_s: ClassVar[float] = 0.1

    @abstractmethod
    def spout(self) -> Any:
        """Return a new spout over the source, as the program that a driver starts with does."""

    @abstractmethod
    def fill(self, numbers: Sequence[int], partition: int) -> Sequence[Row]:
        """Add one row for each number to a partition, in this order; return the rows as the spout is to emit them.

        No number is ever given twice, so have it in the row. Without partitions the argument is 0.
        """

    def row_of(self, emitted: Row) -> Row:
        """Return the part of an emitted row that `fill` knew: not, for example, the time of writing."""
        return emitted

    def lost(self, partition: int) -> AbstractContextManager[object]:
        """Return a context in which that partition is not there; it comes back with the same rows."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[object]:
        """Return a context in which the source cannot be reached; it comes back with the same rows."""
        return nullcontext()

    def change(self) -> object:
        """Change rows that were there already, or take them away, as a deleted or truncated file is."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the source after a check."""

    def offers(self, method: str) -> bool:
        """Whether the source has a method of its own: in its class, or set on this very source (None: it has not)."""
        return vars(self)[method] is not None if method in vars(self) else super().offers(method)
