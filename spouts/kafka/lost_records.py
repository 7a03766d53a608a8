"""Records that Kafka no longer has, or has replaced after an unclean election: what happened, and the choices.

Whether what was read of a partition is still its beginning: Kafka compares the epoch of the leader that it was
read from.

After an unclean leader election a partition ends earlier than it did, and other records take the numbers of those that are
lost. Offsets alone do not show that once there are enough of them. A broker knows at which offset each epoch ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from spouts.kafka.batch_ranges import OffsetRange, Spot
from spouts.kafka.clients import Consumer, KafkaError, KafkaException, TopicPartition
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError

_CHOICES = 'Bring the records back, or let on_data_loss="skip" go on without them (each skip is logged and counted)'


def range_lost(one: OffsetRange, low: int, high: int) -> ReplayMismatchError:
    what = f"the batch was defined as offsets {one.start} to {one.end} of {one.spot}, which has {low} to {high} now: "
    if one.start < low:
        return ReplayMismatchError(
            f"{what}its first {min(one.end, low) - one.start} offsets were deleted (retention, or delete-records). {_CHOICES}; "
            "and raise retention.ms or retention.bytes of the topic"
        )
    return ReplayMismatchError(
        f"{what}the end of the partition was lost (an unclean leader election, or the topic was created again). {_CHOICES}"
    )


def lost_before(spot: Spot, position: int, low: int, high: int) -> SpoutError:
    """Say that the records that come next are gone, or that the end of what was read is."""
    if position < low:
        return SpoutError(
            f"{spot} was read up to offset {position}, and begins at {low} now: {low - position} offsets were deleted before "
            f"they were read (retention, or delete-records). {_CHOICES}; and raise retention.ms or retention.bytes"
        )
    return SpoutError(
        f"{spot} was read up to offset {position}, and ends at {high} now: {position - high} offsets that were read were "
        "lost in Kafka (an unclean leader election: see unclean.leader.election.enable), and new records take their "
        f'numbers. Start with a new log, or let on_data_loss="skip" go on at offset {high}'
    )


def rewritten(one: OffsetRange, offset: int, epoch: int) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"the batch was defined as offsets {one.start} to {one.end} of {one.spot} under leader epoch {one.epoch}; offset "
        f"{offset} was written under epoch {epoch}: an unclean leader election lost the records, and others have their "
        f"numbers. A replay cannot be the same; start with a new log. {_CHOICES}"
    )


def cut_off(one: OffsetRange, position: int, offset: int) -> ReplayMismatchError:
    """Say that a partition was cut off before the records of a batch that was defined."""
    left = f"only what is before offset {offset} is still there" if offset >= 0 else "Kafka knows nothing of that epoch"
    return ReplayMismatchError(
        f"the batch was defined as offsets {one.start} to {one.end} of {one.spot} under leader epoch {one.epoch}; of what was "
        f"before offset {position} then {left}: an unclean leader election lost the records, and others have their numbers. A "
        f"replay cannot be the same; start with a new log. {_CHOICES}"
    )


def truncation_error(spot: Spot, position: int, offset: int) -> SpoutError:
    """Say that a partition was cut off before what was read, and has other records since."""
    if offset < 0:
        return SpoutError(
            f"{spot} was read up to offset {position}, and Kafka knows nothing of the leader that it was read from: what was "
            "read was lost (an unclean leader election: see unclean.leader.election.enable). Start with a new log"
        )
    return SpoutError(
        f"{spot} was read up to offset {position}, and only what is before offset {offset} is still what was read: "
        f"{position - offset} offsets that were read were lost in Kafka (an unclean leader election: see "
        "unclean.leader.election.enable), and other records have or take their numbers. Start with a new log, or let "
        f'on_data_loss="skip" go on at offset {offset}'
    )


def replaced_text(name: str, before: str, now: str) -> str:
    return (
        f"topic {name!r} had the id {before} when it was read and has {now} now: it was deleted and created again, so "
        "offsets mean other records"
    )


def topic_replaced(name: str, before: str, now: str) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"{replaced_text(name, before, now)}. What was not read of the old topic is lost. Start with a new log, or let "
        'on_data_loss="skip" read the new topic from its beginning'
    )


def gone_topic(name: str) -> SpoutError:
    return SpoutError(
        f"topic {name!r}, which was read before, is not there any more, or the user may not see it. Create it or permit "
        'Describe, take it out of topics together with a new log, or let on_data_loss="skip" go on without it'
    )


def compacted_topic(name: str) -> SpoutError:
    return SpoutError(
        f"topic {name!r} is compacted (cleanup.policy): Kafka may delete records between two attempts at a batch, so a replay "
        "need not be the same. Use OpaqueTridentKafkaSpout, which promises no more than the topic can keep"
    )


_ENDS = re.compile(r"broker end offset is (-?\d+)")
OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
"""A partition has no record at an offset."""
_ANSWERS = (*OUT_OF_RANGE, "_PARTITION_EOF", "_LOG_TRUNCATION")  # the epoch was compared
_STEP_S = 0.05
_PAUSE_S = 0.002
_SEEK_S = 3.0


class LogPosition(NamedTuple):
    """A position in a partition, and the epoch of a leader that had all records before it; -1: not known."""

    offset: int
    epoch: int


def partition_at(spot: Spot, place: LogPosition, metadata: str = "") -> TopicPartition:
    """Return what a consumer is assigned so that the broker compares the epoch first, or what is committed."""
    # Before offset 0 there is nothing that could have been cut off.
    known: dict[str, Any] = {"leader_epoch": place.epoch} if place.epoch >= 0 and place.offset > 0 else {}
    if metadata:
        known["metadata"] = metadata
    return TopicPartition(*spot, place.offset, **known)


def truncation_of(error: KafkaError) -> int | None:
    """Return where a partition was cut off, if a consumer's error says so; -1: the broker does not know, None: it was not."""
    text = error.str()
    if error.name() != "_LOG_TRUNCATION" and "log truncation detected" not in text:
        return None
    # Where it was cut off librdkafka says in words only.
    match = _ENDS.search(text)
    return -1 if match is None else int(match[1])


def assign(consumer: Consumer, places: Mapping[Spot, LogPosition]) -> None:
    """Have a consumer go on at places; of those with an epoch nothing comes before the broker has compared it.

    By itself a client compares when it hears of another leader, which it may have done before: only a `seek` always asks.

    Raises `SourceAwayError`: the client does not take the places.
    """
    given = [partition_at(spot, place) for spot, place in places.items()]
    consumer.assign(given)
    # Behind the assignment, because only in a partition that is assigned can be sought.
    for each, place in zip(given, places.values(), strict=True):
        if place.epoch >= 0 and place.offset > 0:
            _seek(consumer, each)


def _seek(consumer: Consumer, place: TopicPartition) -> None:
    deadline = time.monotonic() + _SEEK_S
    while True:
        try:
            return consumer.seek(place)
        except KafkaException as error:
            name = error.args[0].name()
            if name == "_UNKNOWN_PARTITION":  # nothing comes of it but the error that says so
                return None
            if name != "_STATE" or time.monotonic() > deadline:  # what was assigned before is still being given up
                raise SourceAwayError(f"going on at offset {place.offset} of {place.topic!r}: {error}") from error
            time.sleep(_PAUSE_S)


def truncations(consumer: Consumer, places: Mapping[Spot, LogPosition], patience_s: float) -> dict[Spot, int | None]:
    """Return by partition where it was cut off before a place, None if it was not; those that do not answer are left out.

    `consumer`: a new one, to which no answer to an earlier question may come.
    """
    ends: dict[Spot, int | None] = {}
    deadline = time.monotonic() + patience_s
    assign(consumer, places)
    try:
        while len(ends) < len(places) and time.monotonic() < deadline:
            message = consumer.poll(_STEP_S)
            if message is None:
                continue
            error, spot = message.error(), Spot(str(message.topic()), message.partition() or 0)
            # What is no answer is passed over; a partition that gives nothing else is left out when the time is over.
            if spot in ends or (error is not None and error.name() not in _ANSWERS):
                continue
            ends[spot] = None if error is None else truncation_of(error)
            # It has answered: its records would fill the queue before the answers of the others.
            consumer.incremental_unassign([partition_at(spot, LogPosition(0, -1))])
    finally:
        consumer.unassign()
    return ends
