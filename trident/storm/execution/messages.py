"""What executors send each other, in batches: tuples, news of tuple trees for ackers, and outcomes for spouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trident.storm.storm_tuples import Tuple

__all__ = ["Body", "Carrier", "Delivery", "Outcomes", "Tracking"]


@dataclass(slots=True)
class Tracking:
    """News of tuple trees for one acker.

    Attributes
    ----------
    begun
        root, xor of the edges to the copies, task of the spout; and so on for each new tree, in one flat list.
    acked
        root, xor of the edges that left and entered the tree; and so on.
    failed, extended
        Roots whose trees failed; roots whose timeout begins again.
    """

    begun: list[int] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    extended: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Outcomes:
    """What became of the trees of one spout task: their roots."""

    acked: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    extended: list[int] = field(default_factory=list)


Body = list[Tuple] | Tracking | Outcomes
Delivery = tuple[int, Body]
"""The task that it is for, and what it brings."""


class Carrier(Protocol):
    """Carries deliveries to the executors of other tasks, in this process or another."""

    def send(self, task: int, body: Body) -> None:
        """Hand over; never waits."""

    def is_open(self, task: int) -> bool:
        """Whether the queue in front of a task has room."""

    def wait_until_open(self, task: int) -> None:
        """Return when it has, or when this executor must end."""
