"""Which partition of a state a key lives in: our own hash, the same in every process and release (R11)."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from trident.state.codec import encode
from trident.state.interfaces import Key

__all__ = ["partition_of", "partitions_of"]

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # normalizing must not round


def partition_of(key: Key, partitions: int) -> int:
    """Return the state partition of a key."""
    return 0 if partitions == 1 else zlib.crc32(encode(tuple(map(_canonical, key)))) % partitions


def _canonical(part: Any) -> Any:
    """Return one form of all equal values: a key read with another zone, scale or sign of zero is the same key."""
    if isinstance(part, dt.datetime):
        return part if part.tzinfo is None else part.astimezone(dt.UTC)
    if isinstance(part, Decimal):
        return part.normalize(_EXACT) if part else 0
    return part + 0.0 if isinstance(part, float) else part


def partitions_of(keys: Sequence[Key], partitions: int) -> dict[int, list[int]]:
    """Return the positions of `keys` by partition, in order of partition; partitions without keys are left out."""
    if partitions == 1:
        return {0: list(range(len(keys)))} if keys else {}
    places: dict[int, list[int]] = {}
    for at, key in enumerate(keys):
        places.setdefault(partition_of(key, partitions), []).append(at)
    return dict(sorted(places.items()))
