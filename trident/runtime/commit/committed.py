"""What a batch changed, and what became of one partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from trident.runtime.steps.failures import Failure, StepFailed

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
    """

    touched: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    captured: list[Failure] = field(default_factory=list)


class Updated(NamedTuple):
    """What became of one partition: the rows that it gives and what operations counted, or why it failed."""

    values: pa.Table | None = None
    counts: Mapping[str, int] = MappingProxyType({})
    failure: StepFailed | None = None
