"""Which partition of a state a key is in, by our own hash: the same in every process and release (R11)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from trident.state.encoding.codec import encode, encode_tuples
from trident.state.encoding.equal_keys import canonical_key, canonical_keys
from trident.state.interfaces import Key

__all__ = ["partition_of", "partitions_of"]


def partition_of(key: Key, partitions: int) -> int:
    """Return the state partition of a key."""
    return 0 if partitions == 1 else crc32(encode(canonical_key(key))) % partitions


def partitions_of(keys: Sequence[Key], partitions: int) -> dict[int, list[int]]:
    """Return the positions of `keys` by partition, in order of partition; partitions without keys are left out."""
    if partitions == 1:
        return {0: list(range(len(keys)))} if keys else {}
    places: dict[int, list[int]] = {}
    for at, data in enumerate(encode_tuples(canonical_keys(keys))):
        places.setdefault(crc32(data) % partitions, []).append(at)
    return dict(sorted(places.items()))
