"""Which batches the stores of states lack, by their sentinels and by the log; what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from trident.errors import RewindError
from trident.graph import Graph
from trident.log.log_address import read_history
from trident.log.log_interface import TransactionLog
from trident.log.log_state import LogState
from trident.log.records import (
    AdoptRecord,
    CommitRecord,
    LayoutRecord,
    Record,
    ResetRecord,
    StartRecord,
    TopologyRecord,
)
from trident.plan import make_plan
from trident.plan.evolution import REWRITTEN, goes_on
from trident.plan.meaning import Meaning, compare
from trident.run.accidents import Found
from trident.run.recovery import empty, lay
from trident.state.interfaces import State, StateType, kind_of
from trident.state.map_state import committed_map
from trident.state.txid import EMPTIED, RETRY_BITS, Sentinel, epoch_of


def reached_batch(found: Found, log: LogState, partition: int) -> int:
    """Return the batch up to which the store of a partition has all that the sentinel can say."""
    if partition not in found.mismatches:
        return log.txid
    sentinel, expected = found.sentinels[partition], log.expected_sentinel(found.name, partition)
    if sentinel is None or sentinel.incarnation == EMPTIED:
        return 0
    what = f"partition {partition} has {sentinel}"
    if sentinel.incarnation != log.incarnation:  # of a store that knows of a loss
        why = (
            f"{what}, and nothing says which values are gone. If the history begins with the first batch, empty the whole "
            "store, and all batches are replayed into it"
        )
        raise RewindError(found.name, why, 0)
    if expected is not None and (sentinel.txid, sentinel.attempt) > (expected.txid, expected.attempt):
        raise RewindError(found.name, f"{what}, so the store is ahead of the log, which has {expected}", 0)
    winner = log.winners_of(found.name).winner(sentinel.txid) or 0
    # A start lays its claim at a batch that an earlier driver has committed; a failed attempt is of the winner's driver.
    is_whole = sentinel.attempt == winner or epoch_of(sentinel.attempt) > epoch_of(winner) or not sentinel.txid
    return sentinel.txid if is_whole and sentinel.sealed else sentinel.txid - 1


class Lacking:
    """A state that takes part: it lacks batches, or one that does depends on it."""

    def __init__(
        self, found: Found, log: LogState, past: RecordedPast, sentinels_reach: Sequence[int], is_read: bool
    ) -> None:
        name, partitions = found.name, range(len(found.instances))
        self.found, self.name, self.is_read, self.is_behind = found, name, is_read, bool(found.mismatches)
        self.expected = [log.expected_sentinel(name, partition) for partition in partitions]
        self.done, self.writes = list(sentinels_reach), [partition in found.mismatches for partition in partitions]
        self.laid_out_after = past.laid_out[name].txid if name in past.laid_out else 0  # since it has these partitions
        self.content, self.laid = 0, list[Sentinel]()  # the last batch of which anything may be in the store
        for partition in found.mismatches:
            self._refuse_other_past(partition, past)
            self.done[partition] = past.whole_until(name, partition, sentinels_reach[partition], log.txid)
        emptied = past.emptied.get(name)
        self.empties = any(_is_of_before(each, emptied) for each in self._of_behind(found.sentinels))
        if self.empties:
            self.lower_to(0 if emptied is None else emptied.txid)
        else:
            self.content = max(map(_last_written, found.sentinels, found.instances), default=0)
        # The last batch that the store lacks, and how many until then.
        self.goal = max((each.txid for each in self._of_behind(self.expected) if each is not None), default=0)
        self.lacks = max(0, self.goal - min(self.done))
        if is_read and found.mismatches:
            first = min(self.done) + 1
            if self.content > first:
                why = (
                    f"partition {self.done.index(first - 1)} lacks batch {first}, another one has batch {self.content}, and "
                    "the topology reads what the state was before each batch"
                )
                raise RewindError(self.name, why, 0)
            self.lower_to(first - 1)

    def lower_to(self, txid: int) -> None:
        """Let all partitions that a batch has written take part from a batch on."""
        for partition, expected in enumerate(self.expected):
            if expected is not None:
                self.done[partition], self.writes[partition] = txid, True

    def is_written(self, partition: int, txid: int) -> bool:
        return self.writes[partition] and txid > self.done[partition]

    def begin(self, log: TransactionLog, past: RecordedPast) -> None:
        """Empty the store, if it has to be; lay the sentinels of partitions that lack nothing."""
        for instance in self.found.instances if self.empties else ():
            empty(log, instance)
            instance.read_sentinel()  # a sentinel is laid over the one that was read last
        winners = log.state.winners_of(self.name)
        for partition, (done, expected) in enumerate(zip(self.done, self.expected, strict=True)):
            attempt = max(winners.winner(done) or 0, past.attempt_at(self.name, done)) if done else 0
            self.laid.append(Sentinel(log.state.incarnation, done, attempt))
            if expected is not None and expected.txid <= done:
                self.laid[-1] = expected
                if partition in self.found.mismatches:
                    lay(log, self.found.instances[partition], expected)

    def take_part(self, log: TransactionLog, partition: int, txid: int) -> Sentinel:
        """Return the sentinel of a partition that lacks batch `txid`. With the first such batch it is laid."""
        own, expected = self.laid[partition], self.expected[partition]
        # It may be a step back, so not before: until then the store says of which batch it is, to the start after a kill.
        if txid == self.done[partition] + 1 and own != expected:
            lay(log, self.found.instances[partition], own)
        return own

    def end(self, log: TransactionLog) -> None:
        """Lay what the log expects where the last batches had no rows."""
        for partition, expected in enumerate(self.expected):
            if self.writes[partition] and expected is not None:
                found = self.found.instances[partition].read_sentinel()
                if found != expected or not found.sealed:
                    lay(log, self.found.instances[partition], expected)

    def _of_behind(self, values: Iterable[Any]) -> list[Any]:
        return [each for each, is_written in zip(values, self.writes, strict=True) if is_written]

    def _refuse_other_past(self, partition: int, past: RecordedPast) -> None:
        name, sentinel, why = self.name, self.found.sentinels[partition], ""
        at = sentinel or Sentinel("", 0, 0)
        if name in past.adopted and past.adopted[name].is_after(at):
            why = f"after batch {past.adopted[name].txid} its totals were kept as they were found, which is in no batch"
        elif name in past.laid_out and sentinel is not None and past.laid_out[name].is_after(at):
            why = f"after batch {past.laid_out[name].txid} it got another number of partitions, and its store is of before"
        elif self.expected[partition] is None and not _is_of_before(sentinel, past.emptied.get(name)):
            why = f"partition {partition} has {sentinel}, so the store is ahead of the log, which has no commit there"
        if why:
            raise RewindError(name, why, 0)


def _is_of_before(sentinel: Sentinel | None, emptied: Mark | None) -> bool:
    """Whether a store may have what was there before its state was emptied, the last time; or its emptying has not ended."""
    if sentinel is not None and sentinel.incarnation == EMPTIED:
        return True
    return emptied is not None and (sentinel is None or sentinel.txid <= emptied.txid or emptied.is_after(sentinel))


def _last_written(sentinel: Sentinel | None, state: State) -> int:
    """Return the last batch of which a partition may have anything: its store may be a copy from the middle of a commit."""
    found = committed_map(state)
    return max(0 if found is None else found.begun_txid(), 0 if sentinel is None else sentinel.txid)


def span_of(past: RecordedPast, lacking: Sequence[Lacking], streams: Iterable[str]) -> range:
    """Return the batches to replay, and lower states that are read to the batch before the first."""
    behind = [one for one in lacking if one.is_behind]
    first = min(min(one.done) for one in behind) + 1
    last = max(one.goal for one in behind)
    if first > last:
        return range(0)
    for one in lacking:
        if one.is_read and min(one.done) >= first:
            first = _first_with(one, first, past, behind[0].name)
    used = {("states", one.name) for one in lacking} | {("streams", stream) for stream in streams}
    _check_history(past, used, behind[0].name, first)
    return range(first, last + 1)


def _first_with(read: Lacking, first: int, past: RecordedPast, name: str) -> int:
    """Return the batch to begin with so that a state which is read, and has that batch, is as it was before each batch."""
    if read.content <= first and kind_of(read.found.instances[0]) is StateType.OPAQUE:
        read.lower_to(first - 1)
        return first
    if past.whole_after == 0 and read.name not in past.adopted:
        return 1
    why = (
        f"it reads state {read.name!r} as of batch {first - 1}, which has batch {read.content}, and the history does not "
        "begin with the first batch, from which on that value could be computed"
    )
    raise RewindError(name, why, 0)


def _check_history(past: RecordedPast, used: set[tuple[str, str]], name: str, first: int) -> None:
    if past.whole_after is None or past.whole_after >= first or past.first is None or past.first > first:
        begins = "this start" if past.whole_after is None else f"batch {max(past.first or 1, past.whole_after + 1)}"
        why = f"a partition in its store ends with batch {first - 1}, and the history begins with {begins}"
        raise RewindError(name, why, 0)
    for changed, after in past.changed.items():
        if after >= first and changed in used:
            why = f"from batch {after + 1} on {changed[1]!r} means something else; the batches from {first} on ran other code"
            raise RewindError(name, why, 0)


def check_states_fit(graph: Graph, log: LogState, meaning: Meaning, lacking: Sequence[Lacking]) -> None:
    """Refuse states whose values a batch could not make again exactly, whatever the batches are."""
    names = {one.name for one in lacking}
    states = {name: facts for name, facts in log.declared.get("states", {}).items() if name in names}
    refused = compare(Meaning(states, log.declared.get("streams", {})), meaning).refused
    changed = "; ".join(change.text for change in refused)
    partitions = make_plan(graph).partitions
    for one in lacking:
        rewritten = states.get(one.name, {}).get(REWRITTEN, 0)
        why = _unfit(one, graph, partitions)
        if not why and one.content < rewritten:
            why = (
                f"after batch {rewritten} its values were given another form (trident state migrate), and the store is of "
                "before: restore a newer copy"
            )
        if why or changed:
            raise RewindError(
                one.name, why or f"the topology is declared otherwise than its batches ran ({changed})", 0
            )


def _unfit(one: Lacking, graph: Graph, partitions: Mapping[str, int]) -> str:
    facts, kind, found = graph.state(one.name).spec.facts, kind_of(one.found.instances[0]), one.found
    if kind not in (StateType.OPAQUE, StateType.TRANSACTIONAL):
        return "its values do not say which batch wrote them, as those of opaque and transactional states do"
    if kind is StateType.TRANSACTIONAL and one.is_read:
        return "the topology reads what it was before each batch, which only an opaque state knows"
    if facts.forgets or facts.expires_after_s is not None:
        return "its store forgets or expires values, which no batch records"
    if not found.known == len(found.instances) == partitions[one.name]:
        return f"it has {found.known} partitions and is declared with {partitions[one.name]}: rewind first"
    return ""


class Mark(NamedTuple):
    """What a start has laid in all partitions of a state; 0 for an attempt that was not recorded."""

    txid: int
    attempt: int

    def is_after(self, sentinel: Sentinel) -> bool:
        """Whether what was written with a sentinel was there before: an earlier driver's last batch may have failed."""
        return (sentinel.txid, sentinel.attempt) < self or epoch_of(sentinel.attempt) < epoch_of(self.attempt)


class RecordedPast:
    """What was recorded between the batches that a log still has, and which batch wrote a partition next."""

    def __init__(self, place: str, reached: Mapping[str, Sequence[int]]) -> None:
        self.first: int | None = None  # batch that it has
        self.whole_after: int | None = None  # from then on it has what is between batches; None: no history
        self.emptied: dict[str, Mark] = {}  # by state, the last time
        self.adopted: dict[str, Mark] = {}
        self.laid_out: dict[str, Mark] = {}
        self.changed: dict[tuple[str, str], int] = {}  # the batch after which it means something else
        self._reached = reached  # the batch behind which `whole_until` looks
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
            # A start empties states before its record, and writes to none before that.
            self.whole_after = txid if self.whole_after is None else self.whole_after
            for name, mark in self.emptied.items():
                self.emptied[name] = mark if mark.attempt else mark._replace(attempt=record.epoch << RETRY_BITS)
        elif isinstance(record, ResetRecord):
            self.emptied[record.state] = Mark(txid, 0)
            self._begun.pop(record.state, None)
            self.adopted.pop(record.state, None)
            self._next = {place: first for place, first in self._next.items() if place[0] != record.state}
        elif isinstance(record, AdoptRecord):
            attempts = map(itemgetter(1), record.sentinels.values())
            self.adopted[record.state] = Mark(record.txid, min(attempts, default=0))
        elif isinstance(record, LayoutRecord):
            if self._partitions.setdefault(record.state, record.partitions) != record.partitions:
                self.laid_out[record.state] = Mark(txid, record.attempt or 0)
            self._partitions[record.state] = record.partitions
            self._note_meanings("states", {record.state: record.means} if record.means else {}, txid)
        elif isinstance(record, TopologyRecord):
            self._note_meanings("states", record.states, txid)
            self._note_meanings("streams", record.streams, txid)

    def _note_meanings(self, kind: str, facts_of: Mapping[str, Mapping[str, Any]], txid: int) -> None:
        there = self._begun if kind == "states" else self._streams
        for name, facts in facts_of.items():
            if name in there and not goes_on(self._means.get((kind, name)), facts):
                self.changed[kind, name] = txid
            self._means[kind, name] = facts
