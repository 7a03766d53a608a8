"""What executors send each other: batches of tuples, tracking for ackers, outcomes for spouts; the inbox and outbox of each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

from trident.channel import Channel
from trident.storm.storm_tuples import SentTuple


@dataclass(slots=True)
class Tracking:
    """What happened to tuple trees, for one acker.

    `begun`: root, xor of the edges to the copies, task of the spout; and so on for each new tree, in one flat list.
    `acked`: root, xor of the edges that left and entered the tree; and so on.
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
    """Deliveries of one executor. Putting never waits, so nothing for ackers is held up; senders of tuples ask first."""

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
        found = self._box.take(wait_s, _AT_ONCE)
        if not self._open.is_set() and len(self._box.messages) <= self._capacity // 2:
            self._open.set()
        return [each for each in found if each is not None]

    @property
    def is_empty(self) -> bool:
        return not self._box.messages

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def wait_until_open(self, wait_s: float) -> bool:
        return self._open.wait(wait_s)


class LocalMail:
    """Carries to the inboxes of this process what one worker's executors send; `ended` is set when they must end."""

    def __init__(self, inboxes: Mapping[int, Inbox]) -> None:
        self.inboxes, self.ended = inboxes, Event()

    def send(self, task: int, body: Body) -> None:
        self.inboxes[task].put((task, body))

    def is_open(self, task: int) -> bool:
        return self.inboxes[task].is_open

    def wait_until_open(self, task: int) -> None:
        while not self.ended.is_set() and not self.inboxes[task].wait_until_open(0.05):
            pass


BATCH = 128


class Outbox:
    """Gathers deliveries of one executor. Full queues of `uncontrolled` tasks, on a cycle with it, do not hold it up."""

    def __init__(self, mail: Carrier, ackers: Sequence[int], uncontrolled: frozenset[int] = frozenset()) -> None:
        self._mail = mail
        self._ackers = tuple(ackers)
        self.tracks = bool(ackers)
        self._uncontrolled = uncontrolled
        self.tuples: defaultdict[int, list[SentTuple]] = defaultdict(list)
        self.acks: dict[int, int] = {}
        """The xor that each root's acker must hear of; acks of one root are combined here before they are sent."""
        self._tracking = [Tracking() for _ in self._ackers]
        self._has_tracking = False

    def put(self, task: int, tuple: SentTuple) -> None:
        batch = self.tuples[task]
        batch.append(tuple)
        if len(batch) >= BATCH:
            self.send_full(task)

    def send_full(self, task: int) -> None:
        if task not in self._uncontrolled and not self._mail.is_open(task):
            self._mail.wait_until_open(task)
        self._mail.send(task, self.tuples.pop(task))

    def begin(self, root: int, edges: int, spout_task: int) -> None:
        self._of(root).begun += (root, edges, spout_task)

    def fail(self, roots: Iterable[int]) -> None:
        for root in roots:
            self._of(root).failed.append(root)

    def extend(self, roots: Iterable[int]) -> None:
        for root in roots:
            self._of(root).extended.append(root)

    def _of(self, root: int) -> Tracking:
        self._has_tracking = True
        return self._tracking[root % len(self._ackers)]

    def flush(self) -> None:
        """Send everything. Messages for ackers never wait for a queue that is full."""
        if self.acks or self._has_tracking:
            ackers, acked = len(self._ackers), [each.acked for each in self._tracking]
            for root, edges in self.acks.items():
                if edges:
                    acked[root % ackers] += (root, edges)
            self.acks.clear()
            self._has_tracking = False
            for at, tracking in enumerate(self._tracking):
                if tracking.begun or tracking.acked or tracking.failed or tracking.extended:
                    self._tracking[at] = Tracking()
                    self._mail.send(self._ackers[at], tracking)
        if self.tuples:
            for task in list(self.tuples):
                self.send_full(task)
