"""What an executor is about to send: tuples by task and messages by acker, until a batch is full or the executor is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trident.storm.execution.messages import Carrier, Tracking
from trident.storm.storm_tuples import SentTuple

BATCH = 128


class Outbox:
    """Gathers deliveries of one executor.

    `ackers`: the tasks of the ackers; a root's acker is the one at `root % len(ackers)`.
    `uncontrolled`: the tasks on a cycle with this executor, whose full queues do not hold it up.
    """

    def __init__(self, mail: Carrier, ackers: Sequence[int], uncontrolled: frozenset[int] = frozenset()) -> None:
        self._mail = mail
        self._ackers = tuple(ackers)
        self._uncontrolled = uncontrolled
        self.tuples: defaultdict[int, list[SentTuple]] = defaultdict(list)
        self.acks: dict[int, int] = {}
        """The xor that each root's acker must hear of; acks of one root are combined here before they are sent."""
        self._tracking = [Tracking() for _ in self._ackers]
        self._has_tracking = False

    @property
    def tracks(self) -> bool:
        """Whether there are ackers."""
        return bool(self._ackers)

    def put(self, task: int, tuple: SentTuple) -> None:
        """Take one copy of a tuple; a full batch is sent at once."""
        batch = self.tuples[task]
        batch.append(tuple)
        if len(batch) >= BATCH:
            self.send_full(task)

    def send_full(self, task: int) -> None:
        """Send what is gathered for a task."""
        self._send(task, self.tuples.pop(task))

    def begin(self, root: int, edges: int, spout_task: int) -> None:
        """Tell of a new tree."""
        self._tracking[root % len(self._ackers)].begun += (root, edges, spout_task)
        self._has_tracking = True

    def fail(self, roots: Sequence[int]) -> None:
        """Tell of trees that failed."""
        for root in roots:
            self._tracking[root % len(self._ackers)].failed.append(root)
        self._has_tracking = True

    def extend(self, roots: Sequence[int]) -> None:
        """Ask for the whole timeout again for these trees."""
        for root in roots:
            self._tracking[root % len(self._ackers)].extended.append(root)
        self._has_tracking = True

    def flush(self) -> None:
        """Send everything. Messages for ackers never wait for a queue that is full."""
        if self.acks or self._has_tracking:
            self._flush_news()
        if self.tuples:
            for task in list(self.tuples):
                self.send_full(task)

    def _flush_news(self) -> None:
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

    def _send(self, task: int, batch: list[SentTuple]) -> None:
        if task not in self._uncontrolled and not self._mail.is_open(task):
            self._mail.wait_until_open(task)
        self._mail.send(task, batch)
