"""Cuts long lists into requests that a server accepts, by number of keys and by bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["by_count", "by_size"]

T = TypeVar("T")


def by_count(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut a list into slices of at most `most` items, in order."""
    return (items[start : start + most] for start in range(0, len(items), most))


def by_size(items: Sequence[T], sizes: Iterable[int], most: int, room: int) -> Iterator[Sequence[T]]:
    """Cut a list into chunks of at most `most` items and `room` bytes, in order; a larger item goes alone.

    Parameters
    ----------
    sizes
        The bytes of each item.
    """
    measured = list(sizes)
    if sum(measured) <= room:
        yield from by_count(items, most)
        return
    start = used = 0
    for at, size in enumerate(measured):
        if at > start and (at - start == most or used + size > room):
            yield items[start:at]
            start, used = at, 0
        used += size
    yield items[start:]
