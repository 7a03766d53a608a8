"""What a batch changed, and what became of one partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from trident.runtime.engine.step_figures import Figures
from trident.runtime.steps.failures import Failure, StepFailed
from trident.state.key_counts import NO_KEYS, KeyCounts

__all__ = ["Committed", "Updated"]


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
    key_counts
        How many keys of each state were read, found in a memory, and written.
    figures, put_back
        As of `TaskOutput`, of the steps behind what the driver commits.
    took_ns
        By node that the driver committed, how long that and the steps behind it took.
    """

    touched: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    captured: list[Failure] = field(default_factory=list)
    key_counts: dict[str, KeyCounts] = field(default_factory=dict)
    figures: Figures | None = None
    put_back: Mapping[str, int] | None = None
    took_ns: Mapping[str, int] | None = None

    def add_keys(self, state: str, counts: KeyCounts) -> None:
        """Add what a partition of a state, or a query of it, read and wrote."""
        before = self.key_counts.get(state)
        self.key_counts[state] = counts if before is None else before.plus(counts)


class Updated(NamedTuple):
    """What became of one partition: the rows that it gives, what operations counted and its keys, or why it failed."""

    values: pa.Table | None = None
    counts: Mapping[str, int] = MappingProxyType({})
    failure: StepFailed | None = None
    keys: KeyCounts = NO_KEYS
