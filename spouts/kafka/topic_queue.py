"""Kafka as a queue of messages: the partitions of one task, read once, and committed as far as everything is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from spouts.kafka.admin import BrokerView
from spouts.kafka.batch_ranges import Spot
from spouts.kafka.clients import UNKNOWN, DeadTopic, KafkaError, Message, TopicPartition, is_final
from spouts.kafka.lost_records import OUT_OF_RANGE, assign, gone_topic, truncation_of
from spouts.kafka.offset_commits import Commits, PartitionWork
from spouts.kafka.options import KafkaOptions, ReadLimits
from spouts.kafka.positions import OwnPartitions
from spouts.kafka.record_tables import RecordValues
from spouts.messages.deliveries import Message as Taken
from spouts.messages.deliveries import MessageQueue, decode_all
from trident.errors import SourceAwayError, SpoutError
from trident.roles import close_on_error

_log = logging.getLogger(__name__)
_ASK_EVERY_S = 5.0
_LOOK_AWAY_S = 30.0  # while no broker answers


class TopicQueue(MessageQueue):
    """The partitions of one task.

    The consumer joins no group: which task reads what follows from its number, so nothing is rebalanced, and a task that
    comes back has its partitions at once. Offsets are committed to the group all the same.

    `options`: what is read; `group_id` is where offsets are committed.
    `task`, `tasks`: the number of the task in its component, from 0, and how many there are.
    `dead_letters`: the topic for what is given up.
    `limits`: how much it may hold.
    """

    def __init__(
        self, options: KafkaOptions, task: int, tasks: int, dead_letters: str | None, limits: ReadLimits
    ) -> None:
        self.place = f"Kafka at {options.bootstrap_servers}"
        self._options, self._dead_letters = options, dead_letters
        self._max_uncommitted = limits.max_uncommitted
        self._look_at = 0.0
        self._values = RecordValues(options)
        self._is_down = self._is_reported = self._is_awaited = False
        self._ends: dict[Spot, int] | None = {}  # that are waited for; None: they are to be asked for
        self._ask_at = 0.0
        self._is_first, self._silent = True, set[Spot]()
        self._work: dict[Spot, PartitionWork] = {}
        self._commits = Commits(self._work, limits)
        self._dead: DeadTopic | None = None
        self._view = BrokerView(options)
        self._consumer: Any = self._view.open_consumer(error_cb=self._error, on_commit=self._commits.take_answer)
        self._own = OwnPartitions(options, self._view, task, tasks)
        with close_on_error(self._release):
            self._view.wait_for_brokers()
            self._look()

    # ---- what a queue does --------------------------------------------------------------------------------------------

    def describe(self, message: Taken) -> str:
        spot, offset = _where(message.raw)
        return f"offset {offset} of {spot}"

    def fetch(self, room: int) -> Sequence[Taken]:
        if self._is_down and not self._is_reported:
            self._is_reported = True
            raise SourceAwayError(
                f"reading at {self._view.servers}: no broker answers ({self._view.reports}). Check that they run"
            )
        if time.monotonic() >= self._look_at or self._is_awaited:
            self._is_awaited = False
            self._look()
        self._find_ends()
        # Without waiting: the thread that asks also acknowledges and commits.
        taken = self._consumer.consume(min(room, self._pause_lagging()), 0) if self._work else []
        records = []
        for each in taken:
            if each.error() is not None:
                self._heed(each, each.error())
                continue
            spot, offset = _where(each)
            if self._work[spot].arrive(offset, each.leader_epoch()):
                records.append(each)
        if taken or self._commits.succeeded:
            self._is_down = self._is_reported = self._commits.succeeded = False
        return self._messages(records)

    def refresh(self) -> None:
        self._is_awaited = True  # first: partitions are looked for before it is asked where they end
        self._ends, self._ask_at = None, 0.0

    def may_have_more(self) -> bool:
        """Whether a partition does not say where it ends, or was not read up to there."""
        ends = self._ends
        return ends is None or bool(self._silent) or any(self._work[spot].window.position < ends[spot] for spot in ends)

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
        """Write the record to the topic of dead letters, and only then count it as done."""
        assert self._dead_letters is not None
        if self._dead is None:
            self._dead = DeadTopic(self._dead_letters, self._view)
        record = message.raw
        why = {
            "dead_letter.reason": reason, "dead_letter.failures": str(message.failures),
            "dead_letter.topic": record.topic(), "dead_letter.partition": str(record.partition()),
            "dead_letter.offset": str(record.offset()),
        }  # fmt: skip
        self._dead.write(record, why)
        self.acknowledge([message])

    def maintain(self) -> None:
        self._commits.if_due(self._consumer)

    def rest(self) -> None:
        self._commits.now(self._consumer, waits=False)

    def close(self) -> None:
        # The last chance: what is done and not committed now is emitted again after the restart.
        self._commits.now(self._consumer, waits=True)
        self._release()

    def _release(self) -> None:
        self._consumer.close()
        self._view.close()
        if self._dead is not None:
            self._dead.close()

    # ---- partitions ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._look_at = time.monotonic() + _LOOK_AWAY_S
        self._is_down = self._is_reported = True  # by the error of a question that gets no answer
        more = () if self._dead_letters is None else (self._dead_letters,)
        topics = self._own.topics(more)
        # The topic of dead letters is never read, even if a pattern finds it: what is given up would come again.
        own = self._own.of(topics, self._dead_letters)
        new = {spot: is_led for spot, is_led in own.items() if spot not in self._work}
        starts = self._own.starts(new, topics, self._consumer, self._is_first) if new else {}
        if starts:
            self._begin(starts)
        self._warn([spot for spot in own if spot not in self._work], is_empty=topics.keys() <= set(more))
        self._is_first = False
        self._is_down = self._is_reported = False
        self._look_at = time.monotonic() + self._options.refresh_s

    def _begin(self, work: Mapping[Spot, PartitionWork]) -> None:
        """Read more partitions, once it is safe where they begin: so a restart begins where this start did."""
        with self._view.wrap_errors(f"committing where reading begins to group {self._options.group_id!r}"):
            self._commits.begin(self._consumer, work)
        self._work.update(work)
        self._assign()

    def _warn(self, silent: Sequence[Spot], is_empty: bool) -> None:
        """Say once which partitions are not read, and that a pattern matches none."""
        if self._is_first and is_empty and self._options.topics.pattern is not None:
            _log.warning(
                "no topic matches %s on %s yet. A topic that appears while this task runs is read from its first "
                "record. A group has no offsets before it has a topic: one that appears between runs begins as first_poll says",
                self._options.topics, self._options.bootstrap_servers,
            )  # fmt: skip
        if set(silent) - self._silent:
            _log.warning("no leader answers for %s; left out until one does", ", ".join(map(str, silent)))
        self._silent = set(silent)

    def _assign(self) -> None:
        self._own.learn_leaders({spot.topic for spot in self._work}, self._consumer)
        # An assignment replaces the one before, and pauses with it: so it names all partitions, and none is paused.
        assign(self._consumer, {spot: work.place for spot, work in self._work.items()})
        for work in self._work.values():
            work.is_paused = False

    def _find_ends(self) -> None:
        """Ask where the partitions end, if that is waited for; those that do not answer are asked again after seconds."""
        if self._ends is not None or time.monotonic() < self._ask_at:
            return
        self._ask_at = time.monotonic() + _ASK_EVERY_S
        bounds = self._view.bounds(self._work)
        if bounds.keys() == self._work.keys() and not self._is_awaited:
            self._ends = {spot: found.end for spot, found in bounds.items()}

    def _pause_lagging(self) -> int:
        """Stop reading partitions whose lowest record takes too long; return how many records of others may come."""
        least = self._max_uncommitted
        for spot, work in self._work.items():
            room = self._max_uncommitted - work.window.gap
            if room > 0:
                least = min(least, room)
            # A paused partition keeps its place; the others of the task are read on.
            if (room <= 0) is not work.is_paused:
                work.is_paused = not work.is_paused
                change = self._consumer.pause if work.is_paused else self._consumer.resume
                change([TopicPartition(*spot)])
        return least

    def _heed(self, message: Message, error: KafkaError) -> None:
        name = error.name()
        spot, offset = _where(message)
        if name == "_PARTITION_EOF":
            self._work[spot].window.skip_to(offset)
        elif (cut := truncation_of(error)) is not None or name in OUT_OF_RANGE:
            self._recover_position(spot, cut)
        elif name in UNKNOWN:
            raise gone_topic(spot.topic)
        elif is_final(error):
            raise self._view.spout_error(f"reading {spot}", error)

    def _recover_position(self, spot: Spot, cut: int | None) -> None:
        """Go on where there are records, if that is permitted; `SpoutError` if not."""
        work = self._work[spot]
        position = work.window.position
        answers = self._own.move(spot, work, cut)
        self._assign()  # if it does not, the broker says it again
        if answers and work.window.position < position:  # what is in the topology has the offsets of other records now
            self._commits.now(self._consumer, waits=True)
            raise SpoutError(
                f"{spot} lost the records from offset {work.window.position} on; the worker starts again there"
            )

    def _error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and not self._is_down:
            self._is_down, self._look_at = True, time.monotonic() + _LOOK_AWAY_S
        self._view.reports.error(error)

    # ---- records -------------------------------------------------------------------------------------------------------

    def _messages(self, records: list[Message]) -> list[Taken]:
        messages = []
        for record, (values, trouble) in zip(records, decode_all(records, self._values), strict=True):
            spot, offset = _where(record)
            work = self._work[spot]
            if values is not None:
                messages.append(Taken((*spot, offset), values, record, work.failures.get(offset, 0), trouble))
            else:
                work.finish(offset)  # the user's function leaves it out
        return messages


def _where(record: Any) -> tuple[Spot, int]:
    return Spot(record.topic(), record.partition()), record.offset()
