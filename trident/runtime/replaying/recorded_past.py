"""RecordedPast: what a log's history says of each state beside its batches, and from which batch on it says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trident.coordination.history import read_history
from trident.coordination.records import (
    AdoptRecord,
    CommitRecord,
    LayoutRecord,
    Record,
    ResetRecord,
    StartRecord,
    TopologyRecord,
)
from trident.planner.evolution import goes_on
from trident.state.txid import RETRY_BITS, Sentinel, epoch_of


class Mark(NamedTuple):
    """What a start has laid in all partitions of a state; 0 for an attempt that was not recorded."""

    txid: int
    attempt: int

    def is_after(self, sentinel: Sentinel) -> bool:
        """Whether what was written with a sentinel was there before: an earlier driver's last batch may have failed."""
        return (sentinel.txid, sentinel.attempt) < self or epoch_of(sentinel.attempt) < epoch_of(self.attempt)


class RecordedPast:
    """What was recorded between the batches that a log still has, and which batch wrote a partition next.

    `place`: the log.
    `reached`: by state and partition, the batch behind which `whole_until` looks.
    `first`: the first batch that it has; None: none.
    `whole_after`: what was recorded between batches is known from this batch on; None: the log keeps no history.
    `emptied`: by state, when it was emptied last.
    `adopted`, `laid_out`: by state, what was laid when its totals were kept, or it got another number of partitions, for the
    last time.
    `changed`: by "states" or "streams" and the name of one, the batch after which it began to mean something else for the last
    time.
    """

    def __init__(self, place: str, reached: Mapping[str, Sequence[int]]) -> None:
        self.first: int | None = None
        self.whole_after: int | None = None
        self.emptied: dict[str, Mark] = {}
        self.adopted: dict[str, Mark] = {}
        self.laid_out: dict[str, Mark] = {}
        self.changed: dict[tuple[str, str], int] = {}
        self._reached = reached
        self._begun: dict[str, int] = {}  # the first batch that wrote a state since it was emptied
        self._next: dict[tuple[str, int], int] = {}
        self._streams: set[str] = set()
        self._partitions: dict[str, int] = {}
        self._means: dict[tuple[str, str], Mapping[str, Any]] = {}
        for record in read_history(place, beside=self._beside):
            self._follow(record)

    def whole_until(self, state: str, partition: int, reached: int, last: int) -> int:
        """Return the batch before the next one that wrote a partition, `last` if none did."""
        if state not in self.emptied and (self.whole_after is None or reached < self.whole_after):
            return reached  # what was before the history may have written it, or emptied the state
        if state in self.laid_out and not reached:  # the partitions of then are not those of now
            return self._begun.get(state, last + 1) - 1
        return self._next.get((state, partition), last + 1) - 1

    def attempt_at(self, state: str, txid: int) -> int:
        """Return the attempt of what a start has laid at a batch, 0 if it laid nothing."""
        marks = (self.adopted.get(state), self.laid_out.get(state))
        return max((mark.attempt for mark in marks if mark is not None and mark.txid == txid), default=0)

    def _follow(self, record: CommitRecord) -> None:
        self.first = self.first or record.txid
        for kind, facts in record.declares.items():
            self._note_meanings(kind, facts, record.txid - 1)
        self._streams.update(record.spouts)
        for state, partitions in record.touched.items():
            self._begun.setdefault(state, record.txid)
            reached = self._reached.get(state, ())
            for partition in partitions:
                if partition < len(reached) and record.txid > reached[partition]:
                    self._next.setdefault((state, partition), record.txid)

    def _beside(self, record: Record, txid: int) -> None:
        if isinstance(record, StartRecord):
            self._note_start(record, txid)
        elif isinstance(record, ResetRecord):
            self.emptied[record.state] = Mark(txid, 0)
            self._begun.pop(record.state, None)
            self.adopted.pop(record.state, None)
            self._next = {place: first for place, first in self._next.items() if place[0] != record.state}
        elif isinstance(record, AdoptRecord):
            attempts = [attempt for _, attempt in record.sentinels.values()]
            self.adopted[record.state] = Mark(record.txid, min(attempts, default=0))
        elif isinstance(record, LayoutRecord):
            if self._partitions.setdefault(record.state, record.partitions) != record.partitions:
                self.laid_out[record.state] = Mark(txid, record.attempt or 0)
            self._partitions[record.state] = record.partitions
            self._note_meanings("states", {record.state: record.means} if record.means else {}, txid)
        elif isinstance(record, TopologyRecord):
            self._note_meanings("states", record.states, txid)
            self._note_meanings("streams", record.streams, txid)

    def _note_start(self, record: StartRecord, txid: int) -> None:
        """Note whose epoch emptied states: a start does it before its record, and writes to none before that."""
        self.whole_after = txid if self.whole_after is None else self.whole_after
        for name, mark in self.emptied.items():
            self.emptied[name] = mark if mark.attempt else mark._replace(attempt=record.epoch << RETRY_BITS)

    def _note_meanings(self, kind: str, facts_of: Mapping[str, Mapping[str, Any]], txid: int) -> None:
        there = self._begun if kind == "states" else self._streams
        for name, facts in facts_of.items():
            if name in there and not goes_on(self._means.get((kind, name)), facts):
                self.changed[kind, name] = txid
            self._means[kind, name] = facts
