"""The records of the transaction log, as plain data; `log_state.py` says what they mean together."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class Record:
    """One entry of the log."""

    tag: ClassVar[str]
    later: ClassVar[tuple[str, ...]] = ()  # fields that are not written while they are empty

    def to_data(self) -> dict[str, Any]:
        data = {"record": self.tag, **vars(self)}
        for name in self.later:
            if not data[name]:
                del data[name]
        return data

    def with_state_names(self, names: Mapping[str, str]) -> Self:
        """Return the record with other names of states; `names` by the former ones."""
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name == "state":
                found[name] = names.get(value, value)
            elif name in ("states", "touched"):
                found[name] = _rename_keys(value, names)
            elif name == "declares" and value:
                found[name] = {**value, "states": _rename_keys(value["states"], names)}
        return replace(self, **found)


@dataclass(frozen=True)
class DefineRecord(Record):
    """What batch `txid` of a transactional spout contains, or where a spout begins; logged before anything reads the source."""

    tag = "define"
    txid: int
    spout: str
    definition: Any


@dataclass(frozen=True)
class CommitRecord(Record):
    """The commit of a batch: this record, and nothing else, makes the batch committed.

    `spouts`: definition of each spout that had one in this batch; under `LETTERS` the dead letters that it put back, which this
    record marks as put back.
    `declares`: "states" and "streams" that from this batch on mean something new, as in `TopologyRecord`.
    """

    tag = "commit"
    txid: int
    attempt: int
    spouts: Mapping[str, Any]
    touched: Mapping[str, Sequence[int]]  # state name -> partitions that had input
    counts: Mapping[str, int]  # the counts of the batch, such as `{"tuples": 1000}`; summed in `LogState.totals`
    at_ms: int  # the time, in milliseconds since 1970
    declares: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        touched = {state: tuple(map(int, partitions)) for state, partitions in self.touched.items()}
        counts = {name: int(count) for name, count in self.counts.items()}
        vars(self).update(spouts=dict(self.spouts), touched=touched, counts=counts)


@dataclass(frozen=True)
class StartRecord(Record):
    """The driver of an epoch has compared log and stores; from now on it may write to the states."""

    tag, later = "start", ("run",)
    epoch: int
    executors: Sequence[str] = ()  # the states that tasks of Spark commit for it, by name
    run: str = ""  # tells it from a driver that gets the same epoch because the log was set back

    def __post_init__(self) -> None:
        object.__setattr__(self, "executors", tuple(self.executors))

    @classmethod
    def now(cls, epoch: int, executors: Sequence[str]) -> StartRecord:
        return cls(epoch, executors, secrets.token_hex(4))


@dataclass(frozen=True)
class LayoutRecord(Record):
    """The layout of a state: the number of its partitions and its kind.

    `attempt`: the sentinels of all partitions were written again, at `LogState.claimed_at` and this attempt; None: none was.
    `means`: what the state means from now on, as in `TopologyRecord`; empty: as before.
    """

    tag, later = "layout", ("means",)
    state: str
    partitions: int
    kind: str
    attempt: int | None = None
    means: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AdoptRecord(Record):
    """A store was taken as it is, up to batch `txid`.

    `foreign`: True if another log wrote the store, so that the winners of its batches are unknown: each value is valid as
    found.
    `sentinels`: partition -> (txid, attempt), exactly as just written to the store.
    """

    tag = "adopt"
    state: str
    txid: int
    foreign: bool
    sentinels: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        laid = {int(partition): (int(txid), int(attempt)) for partition, (txid, attempt) in self.sentinels.items()}
        object.__setattr__(self, "sentinels", laid)


@dataclass(frozen=True)
class ResetRecord(Record):
    """A state was emptied."""

    tag = "reset"
    state: str


@dataclass(frozen=True)
class RenameRecord(Record):
    """A state that was called `old` is called `new` from here on, wherever it is read; its store keeps the name."""

    tag = "rename"
    old: str
    new: str


@dataclass(frozen=True)
class TopologyRecord(Record):
    """The meaning of new or changed states and streams, before anything is written; see `trident.plan.meaning`."""

    tag = "topology"
    states: Mapping[str, Mapping[str, Any]]
    streams: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", {name: dict(facts) for name, facts in self.states.items()})
        object.__setattr__(self, "streams", {name: dict(facts) for name, facts in self.streams.items()})


@dataclass(frozen=True)
class DiscardRecord(Record):
    """Dead letters were given up: they wait no more, and no batch puts them back."""

    tag = "discard"
    letters: Mapping[int, Sequence[Sequence[int]]]  # which, as `Ranges`
    reason: str  # in the words of who did it


_RECORDS: dict[str, type[Record]] = {
    record.tag: record
    for record in (
        DefineRecord, CommitRecord, StartRecord, LayoutRecord, AdoptRecord, ResetRecord, RenameRecord, TopologyRecord,
        DiscardRecord,
    )
}  # fmt: skip


def _rename_keys(by_state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in by_state.items()}


def record_from_data(data: Any) -> Record:
    """Build a record from the result of `Record.to_data`; ValueError if it is something else."""
    tag = data.get("record") if isinstance(data, dict) else data
    record = _RECORDS.get(tag) if isinstance(tag, str) else None
    if record is None:
        raise ValueError(f"not a record of this log: {tag!r}; known are {sorted(_RECORDS)}")
    values = dict(data)
    del values["record"]
    try:
        return record(**values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a {tag} record with fields {sorted(values)}: {error}") from error


TIME = "$time"  # the key, among the definitions of a batch's spouts, of the time of the batch; no stream has this name

LETTERS = "$letters"
"""The key, among the definitions of a batch's spouts, of the dead letters that it puts back; no stream has this name."""

Ranges = Mapping[int, Sequence[Sequence[int]]]  # by the batch that left tuples out: ranges of their numbers, ascending


def numbers_of(ranges: Iterable[Sequence[int]]) -> list[int]:
    return [number for first, end in ranges for number in range(first, end)]


def ranges_of(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges


def count_of(letters: Ranges) -> int:
    return sum(end - first for ranges in letters.values() for first, end in ranges)


def with_letters(known: Ranges, more: Ranges) -> dict[int, list[list[int]]]:
    together = {txid: [list(one) for one in ranges] for txid, ranges in known.items()}
    for txid, ranges in more.items():
        together[txid] = ranges_of([*numbers_of(together.get(txid, ())), *numbers_of(ranges)])
    return together
