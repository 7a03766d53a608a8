"""What the records of a log mean together: `LogState.apply` folds them; nothing here reads a file or the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from trident.errors import CorruptLogError, LogError
from trident.log import records
from trident.log.framing import decode
from trident.log.lock import SegmentName
from trident.retention import Retention
from trident.state.txid import CHANGES, FORMER, Epochs, Sentinel, Snapshot, Txid, Winners, epoch_of, renamed_facts

FORMAT = "trident-log"
VERSION = 1
HISTORY = 100  # commits that the folded state remembers in full
_LATER = ("runs", "retention", "discarded", "renamed")  # not written while there is none


class CommittedUpTo(NamedTuple):
    """What decides which stored values are committed: as of which batch, by which attempts; by state, up to which as found."""

    txid: int
    winners: Winners
    adopted: Mapping[str, int]


class Writers(NamedTuple):
    """Who committed the batches of a log, as of one moment; a log that was set back has others under the same numbers."""

    txid: int
    winners: Winners
    runs: Mapping[int, str]

    def of(self, txid: int) -> tuple[int, str] | None:
        attempt = self.winners.winner(txid) if self.winners.adopted < txid <= self.txid else None
        return None if attempt is None else (attempt, self.runs.get(epoch_of(attempt), ""))


@dataclass
class LogState:
    """Everything the log says, folded. Changed only by `apply`.

    `definitions`: logged and not yet committed: txid -> spout -> definition.
    `spouts`: last committed definition per spout; a spout without one in a batch keeps its older one.
    `touched`: state -> partition -> the sentinel that its last committed touch left in the store.
    `adopted`: state -> the batch up to which every value is accepted as it was found.
    `history`: the last `HISTORY` commits, oldest first.
    `declared`: "states" and "streams": what each of them means, by name; empty if no topology was recorded.
    `put_back`: the dead letters that committed batches have put back, and those that were discarded.
    `discarded`: the latter, with the reasons: of each time the reason and the letters.
    `runs`: by epoch, what tells its driver from one that got the same epoch in a log that was set back.
    `renamed`: the states that got another name: after which batch, the former name, and the one that they got.
    `retention`: how long the log keeps its history, as the last start that said so asked for; None: it keeps none.
    """

    incarnation: str
    topology: str
    epoch: int = 0
    txid: int = 0  # the last committed batch, 0 if there is none
    winners: Winners = field(default_factory=Winners)
    definitions: dict[int, dict[str, Any]] = field(default_factory=dict)
    spouts: dict[str, Any] = field(default_factory=dict)
    touched: dict[str, dict[int, Sentinel]] = field(default_factory=dict)
    adopted: dict[str, int] = field(default_factory=dict)
    layouts: dict[str, tuple[int, str]] = field(default_factory=dict)  # state -> (number of partitions, kind)
    totals: dict[str, int] = field(default_factory=dict)  # sums of all counts; "batches": the number of commits
    history: deque[records.CommitRecord] = field(default_factory=lambda: deque(maxlen=HISTORY))
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    epochs: Epochs = field(default_factory=Epochs)  # the epochs whose drivers may have written to the states
    put_back: dict[int, list[list[int]]] = field(default_factory=dict)
    executors: list[str] = field(default_factory=list)  # the states that tasks of Spark commit for the last driver
    runs: dict[int, str] = field(default_factory=dict)
    retention: Retention | None = None
    discarded: list[list[Any]] = field(default_factory=list)
    renamed: list[tuple[int, str, str]] = field(default_factory=list)

    def check(self, record: records.Record) -> None:
        """Raise ValueError if `record` cannot come next; nothing is changed."""
        if isinstance(record, records.CommitRecord) and record.txid != self.txid + 1:
            raise ValueError(f"commit of batch {record.txid} after batch {self.txid}; only batch {self.txid + 1} can")
        if isinstance(record, records.RenameRecord):
            known = self.declared.get("states", {})
            if record.old not in known or record.new in known:
                raise ValueError(f"state {record.old!r} cannot be called {record.new!r}: the log has {sorted(known)}")
        if isinstance(record, records.DefineRecord):
            if record.txid <= self.txid:
                raise ValueError(f"definition of batch {record.txid}, but batch {self.txid} is committed already")
            known = self.definitions.get(record.txid, {})
            if record.spout in known and known[record.spout] != record.definition:
                raise ValueError(
                    f"batch {record.txid} of spout {record.spout!r} is already defined as {known[record.spout]!r}, "
                    f"not as {record.definition!r}; a definition never changes, replay the logged one"
                )

    def apply(self, record: records.Record) -> None:
        """Fold one record in; ValueError (and no change) if it cannot come next."""
        self.check(record)
        self.fold(record)

    def fold(self, record: records.Record) -> None:
        match record:
            case records.DefineRecord():
                self.definitions.setdefault(record.txid, {})[record.spout] = record.definition
            case records.CommitRecord():
                self._commit(record)
            case records.StartRecord():
                self._start(record)
            case records.LayoutRecord():
                self._lay_out(record)
            case records.AdoptRecord():
                self._adopt(record)
            case records.ResetRecord():
                self.touched[record.state] = {}
                self.adopted.pop(record.state, None)
                facts = self.declared.get("states", {}).get(record.state, {})
                if CHANGES in facts:  # the feed of its changes ends
                    self._declare({record.state: {name: fact for name, fact in facts.items() if name != CHANGES}}, {})
            case records.RenameRecord():
                self._rename(record)
            case records.TopologyRecord():
                self._declare(record.states, record.streams)
            case records.DiscardRecord():
                self.put_back = records.with_letters(self.put_back, record.letters)
                self.discarded = [*self.discarded, [record.reason, dict(record.letters)]]
            case _:
                raise ValueError(f"not a record of this log: {record!r}")

    def committed_with(self, record: records.Record | None) -> CommittedUpTo:
        """Return what is committed once `record`, which may come next, is there; None: now."""
        after = self
        if isinstance(record, records.CommitRecord):  # each batch has one
            return CommittedUpTo(record.txid, self.winners.with_winner(record.txid, record.attempt), self.adopted)
        if isinstance(record, (records.AdoptRecord, records.ResetRecord)):
            after = deepcopy(self)
            after.fold(record)
        return CommittedUpTo(after.txid, after.winners, after.adopted)

    def snapshot(self, state: str) -> Snapshot:
        """Return the committed point to read a state at. May be called while another thread applies a commit."""
        txid = self.txid  # before the winners: winners that are ahead of the txid are harmless, the reverse is not
        return Snapshot(txid, self.winners_of(state))

    def winners_of(self, state: str) -> Winners:
        """Return the winners as a state must see them: values adopted with it are valid, no matter who wrote them."""
        winners = self.winners.with_adopted(self.adopted[state]) if state in self.adopted else self.winners
        former = self.declared.get("states", {}).get(state, {}).get(FORMER)
        return winners.with_types(former) if former else winners

    def writers(self, state: str) -> Writers:
        """Return who committed the batches up to now, as far as a reader of a state's changes may compare them."""
        return Writers(self.txid, self.winners.with_adopted(self.adopted.get(state, 0)), self.runs)

    def changes_since(self, state: str) -> int | None:
        """Return the batch after which a state's store was given each change; None: it is given none."""
        since: int | None = self.declared.get("states", {}).get(state, {}).get(CHANGES)
        return None if since is None else max(since, self.adopted.get(state, 0))

    def expected_sentinel(self, state: str, partition: int) -> Sentinel | None:
        """Return the sentinel that this partition must have; None if no committed batch ever touched it."""
        return self.touched.get(state, {}).get(partition)

    def commits(self, state: str, partitions: int, txid: int | None = None, attempt: int = 0) -> list[Txid]:
        """Return a commit, the next one by default, as each partition of a state must see it."""
        # In this order, because the txid changes last while a commit is being recorded.
        txid = self.txid + 1 if txid is None else txid
        expected = [self.expected_sentinel(state, partition) for partition in range(partitions)]
        winners = self.winners_of(state)
        return [Txid(txid, attempt, winners, self.incarnation, each, self.epochs) for each in expected]

    def claimed_at(self, state: str) -> int:
        """Return the txid of the sentinels that a start writes for a state: the last one, 0 if the state is new."""
        return self.txid if state in self.layouts or state in self.touched else 0

    def _start(self, record: records.StartRecord) -> None:
        self.epochs = self.epochs.with_epoch(record.epoch)
        self.executors = list(record.executors)
        won = {epoch_of(attempt) for _, attempt in self.winners.ranges}
        self.runs = {epoch: run for epoch, run in self.runs.items() if epoch in won}  # another object: see `writers`
        if record.run:
            self.runs[record.epoch] = record.run

    def _commit(self, record: records.CommitRecord) -> None:
        self._define_last(record.spouts)
        self.winners = self.winners.with_winner(record.txid, record.attempt)
        sentinel = Sentinel(self.incarnation, record.txid, record.attempt)
        for state, partitions in record.touched.items():
            self.touched.setdefault(state, {}).update(dict.fromkeys(partitions, sentinel))
        for name, count in {**record.counts, "batches": 1}.items():
            self.totals[name] = self.totals.get(name, 0) + count
        if record.declares:
            self._declare(**record.declares)
        self.history.append(record)
        self.definitions.pop(record.txid, None)
        self.txid = record.txid  # last, so that a thread that sees the new txid sees its winner (see snapshot)

    def _define_last(self, definitions: Mapping[str, Any]) -> None:
        """Store the definitions of a batch that is committed now; None: the spout had nothing, and keeps its definition."""
        self.spouts.update({spout: one for spout, one in definitions.items() if one is not None})
        letters = self.spouts.pop(records.LETTERS, None)
        if letters:
            self.put_back = records.with_letters(self.put_back, letters)

    def _lay_out(self, record: records.LayoutRecord) -> None:
        if record.attempt is not None:
            laid = Sentinel(self.incarnation, self.claimed_at(record.state), record.attempt)
            self.touched[record.state] = dict.fromkeys(range(record.partitions), laid)
        self.layouts[record.state] = (record.partitions, record.kind)
        if record.means:
            self._declare({record.state: dict(record.means)}, {})

    def _declare(self, states: Mapping[str, Any], streams: Mapping[str, Any]) -> None:
        self.declared = {
            "states": {**self.declared.get("states", {}), **states},
            "streams": {**self.declared.get("streams", {}), **streams},
        }

    def _rename(self, record: records.RenameRecord) -> None:
        names = {record.old: record.new}
        places: tuple[dict[str, Any], ...] = (self.touched, self.adopted, self.layouts)
        for by_state in places:
            if record.old in by_state:
                by_state[record.new] = by_state.pop(record.old)
        states = dict(self.declared["states"])
        states[record.new] = renamed_facts(states.pop(record.old), record.old)
        self.declared = {**self.declared, "states": states}
        self.executors = [names.get(name, name) for name in self.executors]
        self.history = deque((each.with_state_names(names) for each in self.history), maxlen=HISTORY)
        self.renamed = [*self.renamed, (self.txid, record.old, record.new)]

    def _adopt(self, record: records.AdoptRecord) -> None:
        txid = max(self.txid, record.txid)
        # The winners of batches beyond the log's own end are unknown too, even if this very log once knew them.
        if record.foreign or record.txid > self.txid:
            self.adopted[record.state] = txid
        # An adopted batch is treated as committed, so the source continues after it, as defined if that was logged.
        for passed in sorted(each for each in self.definitions if each <= txid):
            self._define_last(self.definitions.pop(passed))
        self.touched[record.state] = {
            partition: Sentinel(self.incarnation, *laid) for partition, laid in record.sentinels.items()
        }
        self.txid = txid

    def to_data(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["winners"] = list(self.winners.ranges)
        values["history"] = [record.to_data() for record in self.history]
        values["touched"] = {
            state: {partition: sentinel[:3] for partition, sentinel in partitions.items()}
            for state, partitions in self.touched.items()
        }
        values["epochs"] = list(self.epochs.ranges)
        values["renamed"] = list(map(list, self.renamed))
        values["retention"] = self.retention and [self.retention.batches, self.retention.ms]
        return {name: value for name, value in values.items() if value or name not in _LATER}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> LogState:
        """Build the state from `to_data`'s result; ValueError if it is something else."""
        try:
            commits = (records.record_from_data(each) for each in data["history"])
            changed = {
                "winners": Winners.of(data["winners"]),
                "adopted": dict(data["adopted"]),
                "definitions": {txid: dict(spouts) for txid, spouts in data["definitions"].items()},
                "spouts": dict(data["spouts"]),
                "touched": {
                    state: {partition: Sentinel(*sentinel) for partition, sentinel in partitions.items()}
                    for state, partitions in data["touched"].items()
                },
                "layouts": {state: (partitions, kind) for state, (partitions, kind) in data["layouts"].items()},
                "totals": dict(data["totals"]),
                "epochs": Epochs.of(data["epochs"]),
                "history": deque((each for each in commits if isinstance(each, records.CommitRecord)), maxlen=HISTORY),
                "retention": Retention(*data["retention"]) if data.get("retention") else None,
                "renamed": [(txid, old, new) for txid, old, new in data.get("renamed", ())],
            }
            return cls(**{**data, **changed})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a folded log: {type(error).__name__}: {error}") from error


def header_state(payload: bytes, segment: SegmentName, where: str) -> LogState:
    """Return the state in the header of a segment; `CorruptLogError` if it is something else."""
    try:
        return state_of(decode(payload), segment, where)
    except (ValueError, KeyError) as error:
        raise CorruptLogError(where, 0, str(error)) from error


def header_of(segment: SegmentName, state: LogState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "incarnation": state.incarnation,
        "topology": state.topology,
        "epoch": segment.epoch,
        "seq": segment.seq,
        "state": state.to_data(),
    }


def state_of(header: Any, segment: SegmentName, where: str) -> LogState:
    """Return the state that the header of a segment holds; ValueError or KeyError if it is something else."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("this is not the header of a transaction log")
    if header["version"] != VERSION:
        raise LogError(
            f"{where} is of format version {header['version']}; this version of the software reads version {VERSION}. "
            "Use the version that wrote the log"
        )
    if (header["epoch"], header["seq"]) != segment:
        raise ValueError(f"the header is of segment {header['seq']} of epoch {header['epoch']}")
    return LogState.from_data(header["state"])
