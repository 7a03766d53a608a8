"""What executors send each other, in batches, and the inbox of each: tuples, tracking for ackers, outcomes for spouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

from trident.channel import Channel
from trident.storm.storm_tuples import SentTuple


@dataclass(slots=True)
class Tracking:
    """What happened to tuple trees, for one acker.

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


Body = list[SentTuple] | Tracking | Outcomes
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


_AT_ONCE = 9


class Inbox:
    """Deliveries of one executor: many threads put, one takes.

    Putting never fails and never waits, so messages for ackers and spouts are never held up. A sender of tuples asks first
    whether the inbox is open, and so waits in front of it, not in it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._box = Channel[Delivery | None]()
        self._open = Event()
        self._open.set()

    def put(self, delivery: Delivery | None) -> None:
        """Add a delivery; None only wakes the executor."""
        box = self._box
        box.put(delivery)
        if len(box.messages) >= self._capacity:
            self._open.clear()
            if len(box.messages) < self._capacity:  # all was taken in between, and then no one else opens it
                self._open.set()

    def take(self, wait_s: float) -> list[Delivery]:
        """Return what is there, up to a limit; wait at most this long for the first."""
        found = self._box.take(wait_s, _AT_ONCE)
        if not self._open.is_set() and len(self._box.messages) <= self._capacity // 2:
            self._open.set()
        return [each for each in found if each is not None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._box.messages

    @property
    def is_open(self) -> bool:
        """Whether there is room."""
        return self._open.is_set()

    def wait_until_open(self, wait_s: float) -> bool:
        """Wait until there is room; whether there is."""
        return self._open.wait(wait_s)
