"""Reads an offset range of a partition: every record in it, and nothing else. Readers stay open between batches."""

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import TypeVar

from spouts.kafka.clients import (
    GONE,
    OUT_OF_RANGE,
    Brokers,
    KafkaError,
    LogPosition,
    Message,
    Spot,
    is_final,
    partition_at,
    reading_settings,
    truncation_of,
)
from spouts.kafka.options import KafkaOptions
from spouts.kafka.positions import THERE_S, OffsetRange, gone_topic, range_lost, rewritten, topic_replaced
from trident.channel import COLLECTOR_PAUSE
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_error = methodcaller("error")
_STEP_S = 0.25
_SHORT_S = 10.0  # how long a partition may end below the end of a range: a new leader needs some seconds
_IDLE_S = 10.0  # then a reader that is not lent is closed, with what it has fetched ahead


class RangeReader:
    """A consumer that reads one range after the other."""

    def __init__(self, options: KafkaOptions) -> None:
        self._may_skip, self._patience_s = options.on_data_loss == "skip", options.partition_timeout_s
        self._brokers = Brokers(options, {})
        self._consumer = self._brokers.consumer
        # What the consumer gives next, and the epoch up to which it was checked that all before that is still there.
        self._next: tuple[Spot, LogPosition] | None = None

    def close(self) -> None:
        self._brokers.close()

    def drop_gone(self, part: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
        """Return ranges without those of topics that were deleted since they were defined, where these may be left out."""
        if not self._may_skip:
            return part
        names = {one.spot.topic for one in part}
        found = self._brokers.topics(names)
        if names - found.keys():
            time.sleep(THERE_S)  # a broker that was just started may not know its topics yet
            found |= self._brokers.topics(names - found.keys())
        there = {(name, topic.id) for name, topic in found.items()}
        kept = [one for one in part if (one.spot.topic, one.topic_id) in there]
        for one in sorted({*part} - {*kept}):
            _log.warning("on_data_loss=skip: %s, whose topic was deleted: they were left out", one)
        return kept

    def check_topics(self, ids: Mapping[str, str]) -> None:
        """Make sure that the topics still have the ids that the definition says; `ReplayMismatchError` if not."""
        found = self._brokers.topics(ids)
        for name, id_ in ids.items():
            if name not in found:
                raise gone_topic(name)
            if found[name].id != id_:
                raise topic_replaced(name, id_, found[name].id)

    def read(self, one: OffsetRange, most: int, make: Callable[[list[Message]], T]) -> Iterator[T]:
        """Give what `make` makes of the records of a range, at most `most` at a time; `SourceAwayError` if nothing comes."""
        made: T | None
        errors: Sequence[Message]
        position, since, patience_s = one.start, time.monotonic(), self._patience_s
        self._begin(one, position)
        while position < one.end:
            before, made, errors = position, None, ()
            first = self._consumer.poll(_STEP_S)
            if first is not None:
                with COLLECTOR_PAUSE:  # until the messages are gone again
                    made, after, errors = self._take(one, first, min(most, one.end - position), make)
                position = max(position, after)
            if made is not None:
                yield made
            for each in errors:
                error = each.error()
                if error is not None and error.name() == "_PARTITION_EOF" and offset_of(each) < one.end:
                    patience_s = min(patience_s, _SHORT_S)
                position = max(position, self._heed(one, position, each))
            # Only progress sets the clock back: a partition may send marks and errors for ever, and no record.
            if position > before:
                since = time.monotonic()
            elif time.monotonic() - since > patience_s:
                position = self._skip(one, position, one.end, self._silence(one, position, patience_s))
        # The consumer goes on by itself behind the range: the next batch finds what was fetched ahead, without an assignment.
        if self._next is not None:
            self._next = (one.spot, LogPosition(one.end, one.epoch))

    def _take(
        self, one: OffsetRange, first: Message, most: int, make: Callable[[list[Message]], T]
    ) -> tuple[T | None, int, Sequence[Message]]:
        """Take what is there after a first message: what is made of it, the offset behind it, and errors."""
        # Without waiting: asked for all at once, the client would wait until all are there.
        got = [first, *self._consumer.consume(most - 1, 0)] if most > 1 else [first]
        errors = [each for each in got if each.error()] if any(map(_error, got)) else ()
        records = [each for each in got if not each.error()] if errors else got
        if not records:
            return None, -1, errors
        after = offset_of(records[-1]) + 1
        inside = self._inside(one, records)
        return make(inside) if inside else None, after, errors

    def _begin(self, one: OffsetRange, position: int) -> None:
        """Have the consumer go on at a position: what it has fetched ahead under an earlier epoch may be gone by now."""
        # A new client compares the epoch with the broker's; of one that knows the leader each record's own epoch tells.
        if self._next != (one.spot, LogPosition(position, one.epoch)):
            since = one.since if position == one.start else one.epoch
            self._consumer.assign([partition_at(one.spot, LogPosition(position, since))])
        self._next = (one.spot, LogPosition(position, one.epoch))

    def _rest(self) -> None:
        self._next = None
        self._consumer.unassign()

    def _inside(self, one: OffsetRange, records: list[Message]) -> list[Message]:
        if offset_of(records[-1]) >= one.end:
            # It has given away records of the next range, so it must be sent back for that one.
            self._next = None
            records = [each for each in records if offset_of(each) < one.end]
        epoch = records[-1].leader_epoch() if records else None
        if epoch is not None and epoch > one.epoch >= 0:
            error = rewritten(one, f"offset {offset_of(records[-1])} was written under epoch {epoch}")
            if not self._may_skip:
                raise error
            _log.warning("on_data_loss=skip: %s; these are left out, and read in the next batch", error)
            records = [each for each in records if (each.leader_epoch() or 0) <= one.epoch]
        return records

    def _heed(self, one: OffsetRange, position: int, message: Message) -> int:
        """Return the position after an error: the end of the range, if the partition ends there or later."""
        error: KafkaError = message.error()  # type: ignore[assignment]  # only messages with one come here
        name = error.name()
        if name == "_PARTITION_EOF":
            # An end within the range is a leader that has not caught up, or a loss; patience tells which.
            if offset_of(message) < one.end:
                return position
            # The last offsets are no records: markers of transactions, or compacted away.
            self._rest()
            return one.end
        if (cut := truncation_of(error)) is not None:
            left = f"only what is before offset {cut} is still there" if cut >= 0 else "Kafka does not know that epoch"
            gone = rewritten(one, f"of what was before offset {position} then {left}")
            if cut < 0:  # skipped or not, where to go on is not known
                raise gone
            return self._skip(one, position, one.end, gone)
        if name in OUT_OF_RANGE:
            # That says neither where the partition begins now nor where it ends.
            low, high = self._bounds(one.spot)
            if low <= position < high:  # it is about the topic that was there before, or of a leader that had less
                self._rest()
                self._begin(one, position)
                return position
            end = max(position, min(one.end, low if position < low else one.end))
            return self._skip(one, position, end, range_lost(one, low, high))
        if is_final(error):
            raise self._brokers.spout_error(f"reading {one.spot}", error)
        return position

    def _skip(self, one: OffsetRange, position: int, end: int, error: SpoutError) -> int:
        """Leave out what is gone, up to an offset, if that may be; raise the error if not."""
        if not self._may_skip or not isinstance(error, ReplayMismatchError):
            raise error
        _log.warning(
            "on_data_loss=skip: %s; offsets %d to %d of %s are gone and were left out", error, position, end, one.spot
        )
        self._rest()
        if end < one.end:  # what has the numbers of the rest now is found when the next batch is defined
            self._begin(one, end)
        return end

    def _silence(self, one: OffsetRange, position: int, patience_s: float) -> SpoutError:
        """Say why nothing comes."""
        what = f"{one.spot}, offset {position}: no record came within partition_timeout_s={patience_s:g} seconds"
        name, partition = one.spot
        try:
            topic = self._brokers.topics([name]).get(name)
            if topic is None or partition not in topic.leaders:
                return SourceAwayError(f"{what}; {GONE}")
            if (leader := topic.leaders[partition]) is None:
                return SourceAwayError(
                    f"{what}; it has no leader. Its replicas are on the brokers {topic.copies[partition]}. Start them; the "
                    "batch is then read as it was defined"
                )
            low, high = self._bounds(one.spot)
        except SourceAwayError as error:  # no broker answers that either
            return SourceAwayError(f"{what}; {error}")
        if high < one.end:
            return range_lost(one, low, high)
        return SourceAwayError(f"{what}; its leader is broker {leader} ({self._brokers.reports}). Check that broker")

    def _bounds(self, spot: Spot) -> tuple[int, int]:
        bounds = self._brokers.bounds([spot], "read_uncommitted")
        if spot not in bounds:
            raise SourceAwayError(
                f"asking where {spot} begins and ends at {self._brokers.servers}: no answer ({self._brokers.reports})"
            )
        return bounds[spot].low, bounds[spot].end


class ReaderPool:
    """Lends readers, whose consumers stay open between batches; who borrows one has it alone. Idle ones are closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[RangeReader, tuple[str, float]] = {}  # and since when
        self._timer: threading.Timer | None = None  # one for all: to start a thread takes longer than to lend a reader
        atexit.register(self.close)

    @contextmanager
    def borrow(self, options: KafkaOptions) -> Iterator[RangeReader]:
        """Lend a reader with these options; after an error it is closed, because its state is not known."""
        key = _key_of(options)
        with self._lock:
            # The last one that came back: it most likely stands where this range begins.
            found = next((reader for reader, (of, _) in reversed(self._idle.items()) if of == key), None)
            if found is not None:
                del self._idle[found]
        lent = found or RangeReader(options)
        try:
            yield lent
        except BaseException:
            lent.close()
            raise
        with self._lock:
            self._idle[lent] = key, time.monotonic()
            self._watch()

    def close(self, options: KafkaOptions | None = None) -> None:
        """Close all idle readers, or those with some options."""
        key = None if options is None else _key_of(options)
        self._close_if(lambda of, since: key in (None, of))

    def _watch(self) -> None:
        if self._idle and self._timer is None:
            self._timer = threading.Timer(_IDLE_S / 4, self._sweep)
            self._timer.daemon = True
            self._timer.start()

    def _sweep(self) -> None:
        self._close_if(lambda of, since: time.monotonic() - since >= _IDLE_S)
        with self._lock:
            self._timer = None
            self._watch()

    def _close_if(self, is_due: Callable[[str, float], bool]) -> None:
        with self._lock:
            closing = [reader for reader, (of, since) in self._idle.items() if is_due(of, since)]
            for each in closing:
                del self._idle[each]
        # Not under the lock: to close a consumer may take seconds, and tasks wait for the lock.
        for each in closing:
            each.close()


def _key_of(options: KafkaOptions) -> str:
    return repr((sorted(reading_settings(options).items()), options.on_data_loss, options.partition_timeout_s))


def offset_of(message: Message) -> int:
    return message.offset()  # type: ignore[return-value]  # each message of a consumer has one


READERS = ReaderPool()
"""The readers of this process."""
