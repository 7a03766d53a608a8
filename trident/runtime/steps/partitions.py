"""Which partition of a state a key is in, by our own hash: the same in every process and release (R11)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from trident.state.encoding.codec import encode, encode_tuples
from trident.state.encoding.equal_keys import canonical_key, canonical_keys
from trident.state.interfaces import Key

__all__ = ["partition_of", "partition_of_total", "partitions_of", "places_in"]


def partition_of(key: Key, partitions: int) -> int:
    """Return the state partition of a key."""
    return 0 if partitions == 1 else crc32(encode(canonical_key(key))) % partitions


def partition_of_total(partitions: int) -> int:
    """Return the state partition of the one value of a state without keys, for all who write or read it."""
    return partition_of((), partitions)


def places_in(keys: Sequence[Key], partitions: int) -> list[int]:
    """Return the state partition of each key: as `partition_of`, for many keys in a tenth of the time."""
    return [crc32(data) % partitions for data in encode_tuples(canonical_keys(keys))]


def partitions_of(keys: Sequence[Key], partitions: int) -> dict[int, list[int]]:
    """Return the positions of `keys` by partition, in order of partition; partitions without keys are left out."""
    if partitions == 1:
        return {0: list(range(len(keys)))} if keys else {}
    places: dict[int, list[int]] = {}
    for at, place in enumerate(places_in(keys, partitions)):
        places.setdefault(place, []).append(at)
    return dict(sorted(places.items()))
