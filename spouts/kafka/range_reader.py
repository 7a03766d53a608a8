"""Reads an offset range of a partition: every record in it, and nothing else. Readers stay open between batches."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, TypeVar

from spouts.kafka.batch_ranges import OffsetRange, Spot
from spouts.kafka.clients import UNKNOWN, Brokers, KafkaError, KafkaException, Message, TopicPartition, is_final
from spouts.kafka.lost_records import (
    OUT_OF_RANGE,
    LogPosition,
    cut_off,
    gone_topic,
    partition_at,
    range_lost,
    rewritten,
    topic_replaced,
    truncation_of,
)
from trident.arrow import COLLECTOR_PAUSE
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.servers.kafka_client import error_of

T = TypeVar("T")
_log = logging.getLogger(__name__)
_error = methodcaller("error")
_STEP_S = 0.25
_ASK_S = 3.0
_SHORT_S = 10.0  # how long a partition may end below the end of a range: a new leader needs some seconds
_IDLE_S = 30.0  # then a reader that is not lent is closed


class RangeReader:
    """A consumer that reads one range after the other.

    `settings`: of the consumer.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._brokers = Brokers(settings)
        self._consumer = self._brokers.open_consumer()
        # What the consumer gives next, and the epoch up to which it was checked that all before that is still there.
        self._next: tuple[Spot, LogPosition] | None = None

    def close(self) -> None:
        self._consumer.close()
        self._brokers.close()

    def rest(self) -> None:
        if self._next is not None:
            self._next = None
            self._consumer.unassign()

    def check_topics(self, ids: dict[str, str]) -> None:
        """Make sure that the topics still have the ids that the definition says; `ReplayMismatchError` if not.

        Call it after reading: no topic gets back an id that it had, so it was the same topic all the time.
        """
        for name, found in self._brokers.ask_topics(list(ids), _ASK_S).items():
            if isinstance(found, KafkaException):
                if error_of(found).name() in UNKNOWN:
                    raise gone_topic(name) from found
                raise self._brokers.spout_error(f"asking for the id of topic {name!r}", found) from found
            if str(found.topic_id) != ids[name]:
                raise topic_replaced(name, ids[name], str(found.topic_id))

    def read(
        self, one: OffsetRange, most: int, make: Callable[[list[Message]], T], patience_s: float, may_skip: bool
    ) -> Iterator[T]:
        """Give what `make` makes of the records of a range, of at most `most` at a time.

        `patience_s`: how many seconds nothing may come before `SpoutError` is raised.
        `may_skip`: whether records that are gone are left out, with a warning.
        """
        position, since = self._begin(one, one.start), time.monotonic()
        while position < one.end:
            # Only progress sets the clock back: a partition may send marks and errors for ever, and no record.
            first = self._consumer.poll(_STEP_S)
            if first is None:
                if time.monotonic() - since > patience_s:
                    error = self._silent(one, position, patience_s)
                    if not may_skip or not isinstance(error, ReplayMismatchError):
                        raise error
                    position = self._leave_out(one, position, error)
                continue
            with COLLECTOR_PAUSE:  # until the messages are gone again
                made, after, errors = self._take(one, first, min(most, one.end - position), make, may_skip)
            if after > position:
                position, since = after, time.monotonic()
            if made is not None:
                yield made
            for each in errors:
                patience_s = min(patience_s, _SHORT_S) if _ends_short(each, one) else patience_s
                position = max(position, self._heed(one, position, each, may_skip))
        # The consumer goes on by itself behind the range: the next batch finds what was fetched ahead, without an assignment.
        if self._next is not None:
            self._next = (one.spot, LogPosition(one.end, one.epoch))

    def _take(
        self, one: OffsetRange, first: Message, most: int, make: Callable[[list[Message]], T], may_skip: bool
    ) -> tuple[T | None, int, Sequence[Message]]:
        """Take what is there after a first message: what is made of it, the offset behind it, and errors.

        Asked for all at once, the client would wait until all are there.
        """
        got = [first, *self._consumer.consume(most - 1, 0)] if most > 1 else [first]
        errors = [each for each in got if each.error()] if any(map(_error, got)) else ()
        records = [each for each in got if not each.error()] if errors else got
        if not records:
            return None, -1, errors
        after = offset_of(records[-1]) + 1
        inside = self._inside(one, records, may_skip)
        return make(inside) if inside else None, after, errors

    def _begin(self, one: OffsetRange, position: int) -> int:
        """Have the consumer go on at a position: what it has fetched ahead under an earlier epoch may be gone by now.

        A new client compares the epoch with the broker's; of one that knows the leader each record's own epoch tells.
        """
        if self._next != (one.spot, LogPosition(position, one.epoch)):
            since = one.since if position == one.start else one.epoch
            self._consumer.assign([partition_at(one.spot, LogPosition(position, since))])
        self._next = (one.spot, LogPosition(position, one.epoch))
        return position

    def _inside(self, one: OffsetRange, records: list[Message], may_skip: bool) -> list[Message]:
        """Leave out the records behind a range: its last offsets may be no records."""
        if offset_of(records[-1]) >= one.end:
            # It has given away records of the next range, so it must be sent back for that one.
            self._next = None
            records = [each for each in records if offset_of(each) < one.end]
        epoch = records[-1].leader_epoch() if records else None
        if epoch is not None and epoch > one.epoch >= 0:
            error = rewritten(one, offset_of(records[-1]), epoch)
            if not may_skip:
                raise error
            _log.warning("on_data_loss=skip: %s; these are left out, and read in the next batch", error)
            records = [each for each in records if (each.leader_epoch() or 0) <= one.epoch]
        return records

    def _heed(self, one: OffsetRange, position: int, message: Message, may_skip: bool) -> int:
        """Return the position after an error: the end of the range, if the partition ends there or later."""
        error: KafkaError = message.error()  # type: ignore[assignment]  # only messages with one come here
        name = error.name()
        if name == "_PARTITION_EOF":
            # An end within the range is a leader that has not caught up, or a loss; patience tells which.
            if offset_of(message) < one.end:
                return position
            # The last offsets are no records: markers of transactions, or compacted away.
            self.rest()
            return one.end
        if (cut := truncation_of(error)) is not None:
            gone = cut_off(one, position, cut)
            if not may_skip or cut < 0:
                raise gone
            return self._leave_out(one, position, gone)
        if name in OUT_OF_RANGE:
            return self._skip_lost(one, position, may_skip)
        if name in UNKNOWN:
            raise gone_topic(one.spot.topic)
        if is_final(error):
            raise self._brokers.spout_error(f"reading {one.spot}", error)
        return position

    def _skip_lost(self, one: OffsetRange, position: int, may_skip: bool) -> int:
        # Out of range says neither where the partition begins now nor where it ends.
        low, high = self._watermarks(one.spot)
        if not may_skip:
            raise range_lost(one, low, high)
        end = max(position, min(one.end, low if position < low else one.end))
        _log.warning("on_data_loss=skip: offsets %d to %d of %s are gone and were left out", position, end, one.spot)
        return self._begin(one, end) if end < one.end else end

    def _leave_out(self, one: OffsetRange, position: int, error: SpoutError) -> int:
        """Leave out the rest of a range; what has its offsets now is found when the next batch is defined."""
        _log.warning("on_data_loss=skip: %s; offsets %d to %d of %s are left out", error, position, one.end, one.spot)
        self._next = None
        self._consumer.unassign()
        return one.end

    def _silent(self, one: OffsetRange, position: int, patience_s: float) -> SpoutError:
        what = f"{one.spot}, offset {position}: no record came within partition_timeout_s={patience_s:g} seconds"
        # Why nothing comes is asked only now: each question is a request, and most silences end by themselves.
        try:
            topic = self._consumer.list_topics(one.spot.topic, _ASK_S).topics[one.spot.topic]
            partition = topic.partitions.get(one.spot.partition)
            if partition is None or partition.leader < 0:
                replicas = "" if partition is None else f" Its replicas are on the brokers {list(partition.replicas)}."
                return SourceAwayError(
                    f"{what}; it has no leader.{replicas} Start them; the batch is then read as it was defined"
                )
            low, high = self._watermarks(one.spot)
        except KafkaException as error:
            return self._brokers.spout_error(what, error)
        if high < one.end:
            return range_lost(one, low, high)
        return SourceAwayError(
            f"{what}; its leader is broker {partition.leader} ({self._brokers.reports}). Check that broker"
        )

    def _watermarks(self, spot: Spot) -> tuple[int, int]:
        with self._brokers.wrap_errors(f"asking where {spot} begins and ends"):
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*spot), _ASK_S)
        return low, high


class ReaderPool:
    """Lends readers, whose consumers stay open between batches; who borrows one has it alone. Idle ones are closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, RangeReader, float]] = []
        self._timer: threading.Timer | None = None
        atexit.register(self.close)

    @contextmanager
    def borrow(self, settings: Mapping[str, Any]) -> Iterator[RangeReader]:
        """Lend a reader with these settings; after an error it is closed, because its state is not known."""
        key = _key_of(settings)
        with self._lock:
            # The last one that came back: it most likely stands where this range begins.
            idle = [at for at, (of, _, _) in enumerate(self._idle) if of == key]
            found = self._idle.pop(idle[-1])[1] if idle else None
        lent = found or RangeReader(dict(settings))
        try:
            yield lent
        except BaseException:
            lent.close()
            raise
        with self._lock:
            self._idle.append((key, lent, time.monotonic()))
            self._watch()

    def close(self, settings: Mapping[str, Any] | None = None) -> None:
        """Close all idle readers, or those with some settings."""
        key = None if settings is None else _key_of(settings)
        self._close_if(lambda of, since: key in (None, of))

    def _close_if(self, due: Callable[[str, float], bool]) -> None:
        with self._lock:
            closing = [one for of, one, since in self._idle if due(of, since)]
            self._idle = [each for each in self._idle if not due(each[0], each[2])]
            if self._timer is not None and not self._idle:
                self._timer.cancel()
                self._timer = None
        # Not under the lock: to close a consumer may take seconds, and tasks wait for the lock.
        for one in closing:
            one.close()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_IDLE_S / 4, self._sweep)
            self._timer.daemon = True
            self._timer.start()

    def _sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._timer = None
            # First it stops fetching ahead, later it is closed: memory matters sooner than connections.
            for _, one, since in self._idle:
                if now - since >= _IDLE_S / 4:
                    one.rest()
        self._close_if(lambda of, since: now - since >= _IDLE_S)
        with self._lock:
            if self._idle:
                self._watch()


def _key_of(settings: Mapping[str, Any]) -> str:
    return repr(sorted(settings.items(), key=str))


def _ends_short(message: Message, one: OffsetRange) -> bool:
    error = message.error()
    return error is not None and error.name() == "_PARTITION_EOF" and offset_of(message) < one.end


def offset_of(message: Message) -> int:
    return message.offset()  # type: ignore[return-value]  # each message of a consumer has one


READERS = ReaderPool()
"""The readers of this process."""
