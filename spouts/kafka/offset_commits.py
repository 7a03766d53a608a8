"""What of the partitions of a task is done, in whatever order, and what of that is committed to its group."""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from spouts.kafka.clients import Brokers, KafkaError, KafkaException, LogPosition, Spot, TopicPartition, partition_at
from trident.errors import SourceAwayError
from trident.servers.kafka_client import error_of

_log = logging.getLogger(__name__)
_MOST_BYTES = 3800  # Kafka keeps a text of up to 4,096 bytes with each committed offset
_MOST_FAILURES = 60
_RENEW_S = 3600.0  # Kafka forgets an offset that was committed long ago, however quiet it is: offsets.retention.minutes


class PartitionWork:
    """The work on a partition: which of its records are in the topology, which are done, what of that is committed."""

    def __init__(self, start: int, epoch: int) -> None:
        self.position = start  # that the broker gives next; what is before it is in the topology, done, or no record
        self.epoch = epoch  # the latest one of a leader that a record was read from, or that said where reading begins
        self.failures: dict[int, int] = {}  # by offset, of records that are not done
        self.topic_id = ""  # another topic of the same name has other records under these offsets
        self.partitions = 0  # of the topic, when the group began with it
        self.is_paused = False  # whether the client was asked to read nothing more of it for now
        self._pending: OrderedDict[int, None] = OrderedDict()  # in the topology, in the order of their offsets
        self._ahead: list[tuple[int, int]] = []  # done before a restart and not reached again: each (first, end)
        self._committed: tuple[int, str] | None = None

    @classmethod
    def of(cls, committed: TopicPartition) -> PartitionWork:
        """Return the work behind a committed offset; what another program has committed beside it says nothing."""
        offset, epoch = committed.offset, committed.leader_epoch
        work = cls(offset, -1 if epoch is None else epoch)
        # What stands there already need not be written again, so a restart of many tasks commits nothing.
        work._committed = offset, committed.metadata or ""
        try:
            notes = json.loads(committed.metadata or "")
            if notes["trident"] != 1:
                return work
            numbers, done, before = iter(notes["done"]), [], offset
            # Distances and lengths, not offsets: numbers with fewer digits, and Kafka has room for few bytes.
            for distance in numbers:
                first = before + distance
                before = first + next(numbers)
                done.append((first, before))
            failures = {offset + at: count for at, count in notes["failures"]}
            work.topic_id, work.partitions, work.failures = notes["topic"], notes["partitions"], failures
        except (ValueError, TypeError, KeyError, StopIteration):
            return work
        work._ahead = done
        return work

    @property
    def low(self) -> int:
        """The lowest offset that is not done: what may be committed."""
        return next(iter(self._pending), self.position)

    @property
    def done(self) -> Iterator[tuple[int, int]]:
        """The ranges behind `low` that are done, each (first, end), in order."""
        for before, after in pairwise((*self._pending, self.position)):
            if before + 1 < after:
                yield before + 1, after
        yield from ((max(first, self.position), end) for first, end in self._ahead if end > self.position)

    @property
    def furthest(self) -> int:
        return max(self.position, self._ahead[-1][1]) if self._ahead else self.position

    def arrive(self, offset: int, epoch: int | None) -> bool:
        """Note that a record came; whether it is to be processed."""
        if epoch is not None and epoch > self.epoch:
            self.epoch = epoch
        # After an assignment the client may give again what is in the topology already, or done.
        if offset < self.position:
            return False
        self.position = offset + 1  # offsets that did not come are no records: compacted away, or of transactions
        while self._ahead and self._ahead[0][1] <= offset:
            del self._ahead[0]
        if self._ahead and self._ahead[0][0] <= offset:
            return False
        self._pending[offset] = None
        return True

    def skip_to(self, offset: int) -> None:
        """Note that what is before an offset came, or is no record."""
        self.position = max(self.position, offset)

    def finish(self, offset: int) -> None:
        self._pending.pop(offset, None)
        self.failures.pop(offset, None)

    def move(self, forgotten: int | None, offset: int, epoch: int) -> None:
        """Forget what is known from an offset on, as other records are there, and go on at another one if that is behind."""
        if forgotten is not None:
            self.position = min(self.position, forgotten)
            for at in [at for at in self._pending if at >= forgotten]:
                del self._pending[at]
            self._ahead = [(first, min(end, forgotten)) for first, end in self._ahead if first < forgotten]
            self.failures = {at: count for at, count in self.failures.items() if at < forgotten}
        self.skip_to(offset)
        # The committed offset is no place to go on from any more: where reading begins is committed before anything is read.
        self.epoch, self._committed = epoch, None

    def begin(self, topic_id: str, partitions: int) -> None:
        self.topic_id, self.partitions = topic_id, self.partitions or partitions
        self.failures = {offset: count for offset, count in self.failures.items() if offset >= self.low}

    def to_commit(self, spot: Spot) -> Any | None:
        """Return what to commit, None if that was committed already."""
        state = self._state()
        if state == self._committed:
            return None
        # It counts as committed from now on; the answer comes later, and takes that back if it failed.
        self._committed = state
        low, text = state
        return partition_at(spot, LogPosition(low, self.epoch), text)

    def commit_again(self) -> None:
        self._committed = None

    def _state(self) -> tuple[int, str]:
        """Return the lowest offset that is not done, and what is known beside, as far as there is room, the nearest first."""
        low = self.low
        failures = [[at - low, self.failures[at]] for at in sorted(self.failures)[:_MOST_FAILURES]]
        found = {"trident": 1, "topic": self.topic_id, "partitions": self.partitions, "failures": failures}
        # Failures have the first claim: without them each restart would count from 0, and never give a record up.
        room = _MOST_BYTES - len(_json({**found, "done": []}))
        done: list[int] = []
        before = low
        for first, end in self.done:  # each as its distance from the one before, and its length
            pair = (first - before, end - first)
            room -= len(f"{pair[0]},{pair[1]},")
            if room < 0:
                break
            done += pair
            before = end
        return low, _json({**found, "done": done})


class Commits:
    """The commits of one task; the `on_commit` of the reader's consumer is `take_answer`."""

    def __init__(self, brokers: Brokers, work: Mapping[Spot, PartitionWork]) -> None:
        self._brokers, self._work = brokers, work
        self._every_s, self._most, self._done = brokers.options.commit_every_s, brokers.options.max_pending, 0
        self._renewed = time.monotonic()
        self._due = self._renewed + self._every_s
        self.succeeded = False  # whether a commit has; the reader sets it back

    def note_done(self, count: int) -> None:
        self._done += count

    def if_due(self) -> None:
        now = time.monotonic()
        if now >= self._renewed + _RENEW_S:
            self._renewed = now
            for work in self._work.values():
                work.commit_again()
        if now >= self._due or self._done >= self._most:
            self._due, self._done = now + self._every_s, 0
            self.now(waits=False)

    def begin(self, begun: Mapping[Spot, PartitionWork]) -> None:
        """Commit where partitions begin that are read from now on; return once that is safe, `SpoutError` if it is not."""
        offsets = _to_commit(begun)
        if not offsets:
            return
        with self._brokers.wrap_errors(f"committing where reading begins to group {self._brokers.options.group_id!r}"):
            self._brokers.consumer.commit(offsets=list(offsets.values()), asynchronous=False)
        # The answer to a commit does not cover each partition, so it is read back.
        for each in self._brokers.committed(offsets.values()):
            wanted, spot = offsets[Spot(each.topic, each.partition)].offset, Spot(each.topic, each.partition)
            if each.offset != wanted:
                raise SourceAwayError(
                    f"committing where reading of {spot} begins: offset {wanted} was committed, and "
                    f"{'none' if each.offset < 0 else each.offset} was read back"
                )

    def now(self, waits: bool) -> None:
        offsets = list(_to_commit(self._work).values())
        if not offsets:
            return
        try:
            self._brokers.consumer.commit(offsets=offsets, asynchronous=not waits)
        except KafkaException as error:
            self.take_answer(error_of(error), offsets)

    def take_answer(self, error: KafkaError | None, offsets: Sequence[Any]) -> None:
        failed = [each for each in offsets if error is not None or each.error is not None]
        self.succeeded |= len(failed) < len(offsets)
        if not failed:
            return
        _log.warning("offsets were not committed, which is tried again: %s", (error or failed[0].error).str())
        # Only these: the answer to one commit differs from partition to partition.
        for each in failed:
            if (work := self._work.get(Spot(each.topic, each.partition))) is not None:
                work.commit_again()


def _to_commit(works: Mapping[Spot, PartitionWork]) -> dict[Spot, TopicPartition]:
    return {spot: offset for spot, work in works.items() if (offset := work.to_commit(spot)) is not None}


def _json(notes: Mapping[str, Any]) -> str:
    return json.dumps(notes, separators=(",", ":"))
