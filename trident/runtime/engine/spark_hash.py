"""Which numbers Spark's own hash sends to which partition, so that `repartition(n, column)` reaches each task."""

from __future__ import annotations

from functools import lru_cache
from itertools import count

_SEED = 42
_BITS = 0xFFFFFFFF


def partition_of(number: int, partitions: int) -> int:
    """Return the partition to which Spark's `repartition(partitions, column)` sends an `int`: Murmur3 of four bytes."""
    k = (number & _BITS) * 0xCC9E2D51 & _BITS
    k = (k << 15 | k >> 17) * 0x1B873593 & _BITS
    h = _SEED ^ k
    h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _BITS
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _BITS
    h = (h ^ h >> 13) * 0xC2B2AE35 & _BITS
    h ^= h >> 16
    return (h - (1 << 32) if h >> 31 else h) % partitions


@lru_cache(maxsize=64)
def numbers_for(partitions: int) -> tuple[int, ...]:
    """Return for each partition the least number that is sent there."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(partition_of(number, partitions), number)
        if len(found) == partitions:
            return tuple(found[each] for each in range(partitions))
    raise AssertionError("unreachable")
