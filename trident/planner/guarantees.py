"""The guarantee matrix: which spout and which state are exact together, and what each of them promises."""

from __future__ import annotations

from typing import Any

from trident.spout.interfaces import SpoutType
from trident.state.interfaces import StateType

__all__ = ["EXACT", "spout_type_of"]

EXACT = frozenset(
    {
        (SpoutType.TRANSACTIONAL, StateType.TRANSACTIONAL),
        (SpoutType.TRANSACTIONAL, StateType.OPAQUE),
        (SpoutType.OPAQUE, StateType.OPAQUE),
    }
)


def spout_type_of(spout: Any) -> SpoutType:
    """Return what a spout promises; non-transactional for an `IBatchSpout` that says nothing."""
    kind = getattr(spout, "spout_type", SpoutType.NON_TRANSACTIONAL)
    return kind if isinstance(kind, SpoutType) else SpoutType.NON_TRANSACTIONAL
