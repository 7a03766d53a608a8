"""Groupings as they are declared: which task of a bolt gets a tuple."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trident.storm.interfaces import CustomStreamGrouping

GroupingKind = Literal[
    "shuffle", "fields", "all", "global", "none", "direct", "local_or_shuffle", "partial_key", "custom"
]


@dataclass(frozen=True)
class Grouping:
    """One grouping; `fields` for `fields` and `partial_key`, `chooser` for `custom`."""

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    chooser: CustomStreamGrouping | None = None


@dataclass(frozen=True)
class Subscription:
    """A stream that a bolt reads, and how its tuples are spread over the bolt's tasks."""

    component: str
    stream: str
    grouping: Grouping
