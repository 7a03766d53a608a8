"""Committed: what a batch changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from trident.runtime.steps.failures import Failure

__all__ = ["Committed"]


@dataclass
class Committed:
    """What a batch changed.

    Attributes
    ----------
    touched
        The partitions of each state that had input, ascending.
    keys
        How many keys (or rows of `partition_persist`) each state got.
    metrics
        What operations counted, as `operation/counter`.
    captured
        Tuples behind states that were left out as dead letters.
    """

    touched: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    captured: list[Failure] = field(default_factory=list)
