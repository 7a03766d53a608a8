"""What the spouts of single messages share: each message stays pending at its queue until its tuple tree is acknowledged.

A message is in one place at a time: *ready* to be emitted, *out* in the topology, *waiting* for its retry or its burial, or
*done*, of which the queue is notified in groups. Until then it is pending at the queue, so a crash at any moment loses nothing.
"""

import heapq
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from trident.errors import SourceAwayError, SpoutError
from trident.fields import Fields
from trident.roles import has
from trident.servers.patience import AWAY, Backoff
from trident.setting_types import Settings, seconds, whole
from trident.spout import Away
from trident.spout.interfaces import OnNewLog
from trident.spout.rich import OutputFieldsDeclarer
from trident.storm.interfaces import BaseRichSpout, SpoutOutputCollector, TopologyContext

T = TypeVar("T")
V = TypeVar("V")
_log = logging.getLogger(__name__)
_DEFAULT_LIMIT = 10
_SHORTEST_IDLE_S, _LONGEST_IDLE_S = 0.001, 0.02  # between two questions to a queue that had nothing
_WORK_EVERY_S, _MOST_ACKS = 0.005, 1000  # the queue is notified of many at once
_CHUNK = 500
_START_S = 5.0  # how long a server may be away when the spout starts: it may just be starting too


@dataclass(slots=True, eq=False)
class Message:
    """A message that was taken from a queue and not acknowledged there yet."""

    id: Hashable  # in the topology
    values: Sequence[Any]  # of its tuple; empty if it cannot be read
    raw: Any  # what its queue needs to acknowledge it, or for a dead letter
    failures: int = 0  # as far as the queue and this spout know
    trouble: str | None = None  # why it cannot be read


class MessageQueue:
    """One task's connection to a queue. No call waits for messages.

    Every call may raise `SourceAwayError`: the server does not answer, and `reconnect` is called until it does; what was taken
    stays with this task. Any other `SpoutError` ends the worker.
    """

    place: str  # kind and address, such as "Redis at queues:6379"

    def reconnect(self) -> None:
        """Connect again, if the client does not by itself."""

    def describe(self, message: Message) -> str:
        """Name a message in an error: its number and its place."""
        raise NotImplementedError

    def fetch(self, room: int) -> Sequence[Message]:
        """Take what is there, at most `room` messages; each stays pending at the queue."""
        raise NotImplementedError

    def acknowledge(self, done: Sequence[Message]) -> None:
        """Take messages off the queue for good."""

    def note_failures(self, failed: Sequence[Message]) -> None:
        """Write down how often these have failed, where the queue can keep that."""

    def dead_letter(self, message: Message, reason: str) -> None:
        """Write a dead letter, and once that is safe take the message off the queue."""

    def maintain(self) -> None:
        """Do what must be done from time to time; called often."""

    def rest(self) -> None:
        """Have the server know all that is done, if it does not: the spout is deactivated, and few calls follow."""

    def close(self) -> None:
        """Release everything. What is not acknowledged is delivered again."""

    def refresh(self) -> None:
        """Find out what is there at this moment, if `fetch` gives only what has come to this task already. For any thread."""

    def may_have_more(self) -> bool:
        """Whether something of that may not have been fetched yet."""
        return False


def decode_all(
    items: Sequence[T], decode: Callable[[Sequence[T]], Sequence[V]]
) -> list[tuple[V | tuple[()], str | None]]:
    """Return for each item its values, and why it cannot be read; many at once, and one by one if that fails."""
    if not items:
        return []
    try:
        return [(values, None) for values in decode(items)]
    except (SpoutError, ValueError) as error:
        if len(items) == 1:
            return [((), str(error))]
    return [decode_all([item], decode)[0] for item in items]


@dataclass(frozen=True, repr=False)
class RetryPolicy(Settings):
    """How often, and after which pauses, a message is tried again; without `dead_letters` the log gets what is given up."""

    max_failures: int | None = whole(None, 1)
    first_pause_s: float = seconds(0.2)
    longest_pause_s: float = seconds(60.0)
    dead_letters: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_pause_s > self.longest_pause_s:
            raise self.refused("longest_pause_s", f"give at least first_pause_s={self.first_pause_s!r}")
        if self.dead_letters == "":
            raise self.refused("dead_letters", "give the name of a place for dead letters, or None")

    @property
    def limit(self) -> int | None:
        """The number of failures after which a message is given up; None: it never is."""
        if self.max_failures is None and self.dead_letters is not None:
            return _DEFAULT_LIMIT
        return self.max_failures

    def gives_up(self, failures: int) -> bool:
        return self.limit is not None and failures >= self.limit

    def pause_s(self, failures: int) -> float:
        return Backoff(self.first_pause_s, self.longest_pause_s).pause_s(failures)


class Deliveries:
    """The messages of one task between its queue and the topology."""

    def __init__(
        self,
        queue: MessageQueue,
        policy: RetryPolicy,
        max_pending: int,
        emit: Callable[..., Any],
        report: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._policy, self._most, self._clock = queue, policy, max_pending, clock
        self._emit, self._report = emit, report
        self._ready: deque[Message] = deque()
        self._out: dict[Hashable, Message] = {}
        self._waiting: list[tuple[float, int, Message]] = []  # a heap, by when they are due
        self._numbers = itertools.count()
        self._done: list[Message] = []
        self._failed: list[Message] = []  # of which the queue does not know yet
        self._is_active = True
        self.away: Away | None = None  # the server, while it does not answer
        self._is_awaited = False  # whether someone waits for all that the queue has, and it was not asked since
        self._vain_tries, self._idle_s = 0, _SHORTEST_IDLE_S
        self._try_at = self._work_at = self._fetch_at = 0.0

    @property
    def pending(self) -> int:
        return len(self._ready) + len(self._out) + len(self._waiting) + len(self._done)

    def refresh(self) -> None:
        self._queue.refresh()
        self._is_awaited = True  # from any thread

    @property
    def may_have_more(self) -> bool:
        """Whether something of that may come: a retry, or what the queue has that was not asked, or has not given all."""
        if any(message.trouble is None for _, _, message in self._waiting):
            return True
        return self._is_awaited or self.away is not None or self._queue.may_have_more()

    def emit_next(self) -> None:
        """Emit one message if there is one, and do what is due at the queue."""
        now = self._clock()
        if now >= self._work_at if self._ready else now >= self._try_at:
            self._work_at = now + _WORK_EVERY_S
            self._run_guarded(lambda: self._work(now))
        if self._ready:
            message = self._ready.popleft()
            self._out[message.id] = message
            self._emit(message.values, message_id=message.id)

    def ack(self, id: Hashable) -> None:
        message = self._out.pop(id, None)
        if message is None:
            return  # it was answered before
        self._done.append(message)
        if len(self._done) >= _MOST_ACKS or not self._is_active:  # then `emit_next` is not called
            self._try_to(self._settle)

    def fail(self, id: Hashable) -> None:
        message = self._out.pop(id, None)
        if message is not None:
            self._failed_once_more(message)

    def activate(self) -> None:
        self._is_active = True

    def deactivate(self) -> None:
        self._is_active = False
        self._try_to(self._rest)

    def close(self) -> None:
        self._try_to(self._acknowledge)
        self._queue.close()

    def _work(self, now: float) -> None:
        if self.away is not None:
            self._queue.reconnect()
        self.away, self._vain_tries = None, 0
        self._settle()
        if self._failed:
            self._queue.note_failures(self._failed)
            self._failed.clear()
        while self._waiting and self._waiting[0][0] <= now:
            message = heapq.heappop(self._waiting)[2]
            if self._is_dead(message):
                self._bury(message)
            elif message.trouble is not None:
                self._failed_once_more(message)
            else:
                self._ready.appendleft(message)
        if not self._ready and (self._is_awaited or now >= self._fetch_at):
            self._fetch(now)

    def _fetch(self, now: float) -> None:
        room = min(self._most - self.pending, _CHUNK)
        if room <= 0:
            return
        self._is_awaited = False
        fetched = self._queue.fetch(room)
        self._idle_s = _SHORTEST_IDLE_S if fetched else min(2 * self._idle_s, _LONGEST_IDLE_S)
        self._fetch_at = now if fetched else now + self._idle_s
        for message in fetched:
            if message.trouble is None and not self._policy.gives_up(message.failures):
                self._ready.append(message)
            else:
                self._failed_once_more(message)

    def _settle(self) -> None:
        self._acknowledge()
        self._queue.maintain()

    def _acknowledge(self) -> None:
        if self._done:
            self._queue.acknowledge(self._done)
            self._done.clear()

    def _rest(self) -> None:
        self._acknowledge()
        self._queue.rest()

    def _failed_once_more(self, message: Message) -> None:
        message.failures += 1
        if message.trouble is not None:
            self._report(SpoutError(f"{self._queue.describe(message)} cannot be read: {message.trouble}"))
        self._failed.append(message)
        self._wait(message, 0.0 if self._is_dead(message) else self._policy.pause_s(message.failures))

    def _wait(self, message: Message, pause_s: float) -> None:
        heapq.heappush(self._waiting, (self._clock() + pause_s, next(self._numbers), message))

    def _is_dead(self, message: Message) -> bool:
        if message.trouble is not None:  # what cannot be read now cannot be read later
            return self._policy.limit is not None
        return self._policy.gives_up(message.failures)

    def _bury(self, message: Message) -> None:
        times = "once" if message.failures == 1 else f"{message.failures} times"
        reason, name = message.trouble or f"it failed {times}", self._queue.describe(message)
        if self._policy.dead_letters is None:
            _log.error("%s is given up: %s. It was %.1000r", name, reason, message.values or message.raw)
            self._done.append(message)
            return
        try:
            self._queue.dead_letter(message, reason)
        except SourceAwayError:
            self._wait(message, 0.0)
            raise
        except SpoutError as error:  # the place is not there any more, or refuses it
            self._report(error)
            self._wait(message, self._policy.longest_pause_s)
            return
        self._report(SpoutError(f"{name} is a dead letter in {self._policy.dead_letters!r} now: {reason}"))

    def _try_to(self, act: Callable[[], None]) -> None:
        if self.away is None:
            self._run_guarded(act)

    def _run_guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except SourceAwayError as error:
            if self.away is None:
                self._report(error)
                self.away = Away(self._queue.place, time.time_ns() // 1_000_000)
            self._vain_tries += 1
            self._try_at = self._work_at = self._clock() + AWAY.pause_s(self._vain_tries)


class MessageSpout(BaseRichSpout, ABC):
    """Emits each message of a queue, and acknowledges it there when its tuple tree is complete. At-least-once."""

    on_new_log: OnNewLog = "behind"

    def __init__(self, fields: Fields, policy: RetryPolicy, max_pending: int) -> None:
        self._fields, self._policy, self._max_pending = fields, policy, max_pending
        self._opened: Deliveries | None = None

    @abstractmethod
    def _connect(self, context: TopologyContext, report: Callable[[BaseException], None]) -> MessageQueue:
        """Connect a task to the queue, in the worker; `SourceAwayError` is tried again for some seconds."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self._fields)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect; `SpoutError` if the server cannot be reached or does not have what is named."""
        # The collector of a Trident topology shows no errors.
        report = collector.report_error if has(collector, "report_error") else partial(_log.error, "%s")
        queue = self._connect_with_retries(context, report)
        self._opened = Deliveries(queue, self._policy, self._max_pending, collector.emit, report)

    def _connect_with_retries(self, context: TopologyContext, report: Callable[[BaseException], None]) -> MessageQueue:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return self._connect(context, report)
            except SourceAwayError as error:
                if time.monotonic() >= deadline:
                    raise SpoutError(f"{error} (it was tried for {_START_S:g} seconds)") from error
            time.sleep(0.1)

    def close(self) -> None:
        """Acknowledge what is done, and disconnect; what is not done is delivered again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def activate(self) -> None:
        self._deliveries.activate()

    def deactivate(self) -> None:
        """Have what is done acknowledged; what was not emitted waits for `activate`."""
        self._deliveries.deactivate()

    def next_tuple(self) -> None:
        self._deliveries.emit_next()

    def ack(self, msg_id: Any) -> None:
        """Have the message acknowledged at the queue, within some milliseconds and together with others."""
        self._deliveries.ack(msg_id)

    def fail(self, msg_id: Any) -> None:
        """Have the message tried again after a pause, or given up if it has failed too often."""
        self._deliveries.fail(msg_id)

    def refresh(self) -> None:
        self._deliveries.refresh()

    def may_have_more(self) -> bool:
        """Whether something of that may still come, although nothing was emitted: the queue did not say that it is empty."""
        return self._deliveries.may_have_more

    def unavailable(self) -> Away | None:
        return self._deliveries.away

    @property
    def pending(self) -> int:
        """How many messages this task has taken from its queue that are not acknowledged there."""
        return 0 if self._opened is None else self._opened.pending

    @property
    def _deliveries(self) -> Deliveries:
        if self._opened is None:
            raise SpoutError(f"{type(self).__name__} is not open: open(conf, context, collector) comes first")
        return self._opened
