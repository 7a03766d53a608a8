"""Kafka as a queue of messages: the partitions of one task, read once, and committed as far as everything is done."""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from spouts.kafka.clients import (
    OUT_OF_RANGE,
    Brokers,
    KafkaError,
    KafkaException,
    LogPosition,
    Message,
    Spot,
    TopicPartition,
    assign,
    is_final,
    truncation_of,
)
from spouts.kafka.offset_commits import Commits, PartitionWork
from spouts.kafka.options import KafkaOptions
from spouts.kafka.positions import GroupPositions, TopicWatch, replaced_text
from spouts.kafka.record_tables import RecordTables
from spouts.messages import Message as Taken
from spouts.messages import MessageQueue, decode_all
from trident.errors import SourceAwayError, SpoutError
from trident.roles import close_on_error

_log = logging.getLogger(__name__)
_ASK_EVERY_S = 5.0
_LOOK_AWAY_S = 30.0  # while no broker answers
_LEADER_S = 5.0
_WRITE_S = 5.0  # that a dead letter may take


class TopicQueue(MessageQueue):
    """The partitions of one task."""

    def __init__(self, options: KafkaOptions, task: int, tasks: int) -> None:
        self.place = f"Kafka at {options.bootstrap_servers}"
        self._options, self._look_at = options, 0.0
        self._tables = RecordTables(options)
        self._is_down = self._is_reported = self._is_awaited = False
        self._ends: dict[Spot, int] | None = {}  # that are waited for; None: they are to be asked for
        self._ask_at = 0.0
        self._is_first, self._silent = True, set[Spot]()
        self._work: dict[Spot, PartitionWork] = {}
        self._is_assigned = True
        # What `fetch` has not given yet: it may end with an error that came behind it.
        self._arrived: list[Message] = []
        self._producer: Any = None
        self._brokers = Brokers(
            options, {"error_cb": self._error, "on_commit": lambda *answer: self._commits.take_answer(*answer)}
        )
        self._commits: Commits = Commits(self._brokers, self._work)
        # The consumer joins no group: which task reads what follows from its number, so nothing is rebalanced, and a task that
        # comes back has its partitions at once. Offsets are committed to the group all the same.
        self._positions = GroupPositions(self._brokers, task, tasks)
        # The topic of dead letters is never read, even if a pattern finds it: what is given up would come again.
        self._watch = TopicWatch(self._brokers, options.dead_letters)
        with close_on_error(self._release):
            self._watch.start()
            self._look()

    def describe(self, message: Taken) -> str:
        spot, offset = _where(message.raw)
        return f"offset {offset} of {spot}"

    def fetch(self, room: int) -> Sequence[Taken]:
        if self._is_down and not self._is_reported:
            self._is_reported = True
            raise SourceAwayError(
                f"reading at {self._brokers.servers}: no broker answers ({self._brokers.reports}). Check that they run"
            )
        if time.monotonic() >= self._look_at or self._is_awaited or not self._is_assigned:
            self._is_awaited = False
            self._watch.look_again()
            self._look()
        self._find_ends()
        # Without waiting: the thread that asks also acknowledges and commits.
        taken = self._brokers.consumer.consume(min(room, self._pause_lagging()), 0) if self._work else []
        for each in taken:
            if each.error() is not None:
                self._heed(each, each.error())
                continue
            spot, offset = _where(each)
            if self._work[spot].arrive(offset, each.leader_epoch()):
                self._arrived.append(each)
        if taken or self._commits.succeeded:
            self._is_down = self._is_reported = self._commits.succeeded = False
        records, self._arrived = self._arrived, []
        return self._messages(records)

    def refresh(self) -> None:
        self._is_awaited = True  # first: partitions are looked for before it is asked where they end
        self._ends, self._ask_at = None, 0.0

    def may_have_more(self) -> bool:
        ends = self._ends
        return ends is None or bool(self._silent) or any(self._work[spot].position < ends[spot] for spot in ends)

    def acknowledge(self, done: Sequence[Taken]) -> None:
        for message in done:
            spot, offset = _where(message.raw)
            self._work[spot].finish(offset)
        self._commits.note_done(len(done))

    def note_failures(self, failed: Sequence[Taken]) -> None:
        """Have the next commit record how often each has failed."""
        for message in failed:
            spot, offset = _where(message.raw)
            self._work[spot].failures[offset] = message.failures

    def dead_letter(self, message: Taken, reason: str) -> None:
        """Write the record, as it was, and in its headers why; once all replicas have it, it counts as done."""
        record, ended = message.raw, list[Any]()
        why = {
            "reason": reason, "failures": str(message.failures), "topic": record.topic(),
            "partition": str(record.partition()), "offset": str(record.offset()),
        }  # fmt: skip
        headers = [*(record.headers() or ()), *((f"dead_letter.{name}", text.encode()) for name, text in why.items())]
        doing = f"writing a dead letter to topic {self._options.dead_letters!r}"
        if self._producer is None:
            own: dict[str, Any] = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
            self._producer = self._brokers.open_producer(**own)
        with self._brokers.wrap_errors(doing):
            self._producer.produce(
                self._options.dead_letters, record.value(), record.key(), headers=headers,
                on_delivery=lambda error, _: ended.append(error),
            )  # fmt: skip
            self._producer.flush(_WRITE_S)
            if ended and ended[0] is not None:
                raise KafkaException(ended[0])
        if not ended:
            self._drop_letters()  # it will be tried again, so what is still in the queue must not arrive later as well
            raise SourceAwayError(
                f"{doing} at {self._brokers.servers}: no broker took it in {_WRITE_S:g} seconds ({self._brokers.reports})"
            )
        self.acknowledge([message])

    def maintain(self) -> None:
        self._commits.if_due()

    def rest(self) -> None:
        self._commits.now(waits=False)

    def close(self) -> None:
        # The last chance: what is done and not committed now is emitted again after the restart.
        self._commits.now(waits=True)
        self._release()

    def _release(self) -> None:
        self._brokers.close()
        if self._producer is not None:
            self._drop_letters()

    def _drop_letters(self) -> None:
        self._producer.purge()
        self._producer.flush(0)

    def _look(self) -> None:
        self._look_at = time.monotonic() + _LOOK_AWAY_S
        self._is_down = self._is_reported = True  # by the error of a question that gets no answer
        topics = self._watch.look({spot.topic for spot in self._work})
        for spot, work in self._work.items():
            if spot.topic in topics and topics[spot.topic].id != work.topic_id:
                # Its offsets mean other records now, and the client reads on at the old ones silently.
                text = replaced_text(spot.topic, work.topic_id, topics[spot.topic].id)
                raise SpoutError(f"{text}; the worker starts again at its beginning")
        own = self._positions.own(self._watch.partitions())
        new = {spot: is_led for spot, is_led in own.items() if spot not in self._work}
        starts = self._positions.starts(new, topics, self._is_first) if new else {}
        if starts:
            # Once it is safe where they begin: so a restart begins where this start did.
            self._commits.begin(starts)
            self._work.update(starts)
        if starts or not self._is_assigned:
            self._assign()
        silent = [spot for spot in own if spot not in self._work]
        if set(silent) - self._silent:
            _log.warning("no leader answers for %s; left out until one does", ", ".join(map(str, silent)))
        self._silent, self._is_first = set(silent), False
        self._is_down = self._is_reported = False
        self._look_at = time.monotonic() + self._options.refresh_s

    def _assign(self) -> None:
        consumer, self._is_assigned = self._brokers.consumer, False
        for topic in {spot.topic for spot in self._work}:
            # Has it ask who leads: by itself it would do so after a second.
            with contextlib.suppress(KafkaException):
                consumer.list_topics(topic, _LEADER_S)
        # An assignment replaces the one before, and pauses with it: so it names all partitions, and none is paused.
        assign(consumer, {spot: LogPosition(work.position, work.epoch) for spot, work in self._work.items()})
        for work in self._work.values():
            work.is_paused = False
        self._is_assigned = True

    def _find_ends(self) -> None:
        """Ask where the partitions end, if that is waited for; those that do not answer are asked again after seconds."""
        if self._ends is not None or time.monotonic() < self._ask_at:
            return
        self._ask_at = time.monotonic() + _ASK_EVERY_S
        bounds = self._brokers.bounds(self._work)
        if bounds.keys() == self._work.keys() and not self._is_awaited:
            self._ends = {spot: found.end for spot, found in bounds.items()}

    def _pause_lagging(self) -> int:
        """Stop reading partitions whose lowest record takes too long; return how many records of others may come."""
        most = least = self._options.max_uncommitted
        for spot, work in self._work.items():
            room = most - (work.position - work.low)
            if room > 0:
                least = min(least, room)
            # A paused partition keeps its place; the others of the task are read on.
            if (room <= 0) is not work.is_paused:
                work.is_paused = not work.is_paused
                consumer = self._brokers.consumer
                (consumer.pause if work.is_paused else consumer.resume)([TopicPartition(*spot)])
        return least

    def _heed(self, message: Message, error: KafkaError) -> None:
        name = error.name()
        spot, offset = _where(message)
        if name == "_PARTITION_EOF":
            self._work[spot].skip_to(offset)
        elif (cut := truncation_of(error)) is not None or name in OUT_OF_RANGE:
            self._recover_position(spot, cut)
        elif is_final(error):
            raise self._brokers.spout_error(f"reading {spot}", error)

    def _recover_position(self, spot: Spot, cut: int | None) -> None:
        work = self._work[spot]
        position = work.position
        answers = self._positions.move(spot, work, cut)
        if answers and work.position < position:  # what is in the topology has the offsets of other records now
            self._commits.now(waits=True)
            raise SpoutError(f"{spot} lost the records from offset {work.position} on; the worker starts again there")
        self._assign()  # if it does not answer, the broker says it again

    def _error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and not self._is_down:
            self._is_down, self._look_at = True, time.monotonic() + _LOOK_AWAY_S
        self._brokers.reports.error(error)

    def _messages(self, records: list[Message]) -> list[Taken]:
        messages = []
        for record, (values, trouble) in zip(records, decode_all(records, self._tables.rows), strict=True):
            spot, offset = _where(record)
            work = self._work[spot]
            if values is not None:
                messages.append(Taken((*spot, offset), values, record, work.failures.get(offset, 0), trouble))
            else:
                work.finish(offset)  # the user's function leaves it out
        return messages


def _where(record: Any) -> tuple[Spot, int]:
    return Spot(record.topic(), record.partition()), record.offset()
