"""Records and their fold: round trips, rules, order, and random histories against a plain model."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trident.errors import FencedError, LogError
from trident.log.framing import decode, encode
from trident.log.log_interface import MemoryLog
from trident.log.log_state import HISTORY, LogState
from trident.log.records import (
    AdoptRecord,
    CommitRecord,
    DefineRecord,
    LayoutRecord,
    Record,
    RenameRecord,
    ResetRecord,
    TopologyRecord,
    record_from_data,
)
from trident.state.txid import Sentinel, Snapshot, Txid, Winners

A, B, C = 1 << 20, 2 << 20, 3 << 20


def commit(txid: int, attempt: int = A, **over: Any) -> CommitRecord:
    given: dict[str, Any] = {"spouts": {}, "touched": {}, "counts": {}, "at_ms": 0, **over}
    return CommitRecord(txid, attempt, **given)


def folded(*records: Record) -> LogState:
    state = LogState("abc", "topology")
    for record in records:
        state.apply(record)
    return state


RECORDS = [
    DefineRecord(1, "lines", {"files": [["a", 0, 10]], "raw": b"\x00\xff", "f": 0.5, "none": None, "yes": True}),
    DefineRecord(2, "lines", "name with an undecodable byte \udcff"),
    commit(7, 5, spouts={"s": [1]}, touched={"counts": [0, 3]}, counts={"tuples": 9}, at_ms=1_700_000_000_000),
    LayoutRecord("counts", 4, "opaque"),
    AdoptRecord("counts", 9, True, {0: (9, 0), 1: (8, 3)}),
    ResetRecord("counts"),
    RenameRecord("counts", "totals"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.tag)
def test_every_record_comes_back_equal_from_bytes(record: Record) -> None:
    assert record_from_data(decode(encode(record.to_data()))) == record


def test_a_snapshot_in_the_middle_of_a_commit_has_no_batch_without_its_winner() -> None:
    seen: list[Snapshot] = []

    class Watched(LogState):
        def _define_last(self, definitions: Mapping[str, Any]) -> None:
            seen.append(self.snapshot("counts"))
            super()._define_last(definitions)

    state = Watched("abc", "topology")
    state.apply(commit(1, A))
    state.apply(commit(2, B))
    assert [(each.txid, each.winners.winner(each.txid)) for each in seen] == [(0, None), (1, A)]


@pytest.mark.parametrize("data", [None, [], {}, {"record": "comit"}, {"record": ["commit"]}])
def test_data_that_is_no_record_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a record of this log"):
        record_from_data(data)


@pytest.mark.parametrize("extra", [{}, {"state": "s", "more": 1}])
def test_a_record_with_other_fields_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a reset record with fields"):
        record_from_data({"record": "reset", **extra})


@pytest.mark.parametrize("value", [{1, 2}, 1 << 64, object(), {(1, 2): 3}])
def test_a_definition_that_is_not_plain_data_is_refused_and_the_log_goes_on(value: Any) -> None:
    log = MemoryLog("topology")
    with pytest.raises(ValueError, match="transaction log: "):
        log.append(DefineRecord(1, "s", value))
    log.append(commit(1))
    assert (log.state.txid, log.state.definitions) == (1, {})


def test_a_framework_txid_is_logged_as_a_plain_number() -> None:
    back = record_from_data(decode(encode(commit(Txid(3, 4)).to_data())))
    assert isinstance(back, CommitRecord)
    assert (back.txid, type(back.txid)) == (3, int)


@pytest.mark.parametrize("txid", [0, 1, 3])
def test_only_the_next_batch_can_be_committed(txid: int) -> None:
    state = folded(commit(1))
    with pytest.raises(ValueError, match=rf"commit of batch {txid} after batch 1; only batch 2 can"):
        state.apply(commit(txid))
    assert state == folded(commit(1))


def test_a_definition_of_a_committed_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="definition of batch 1, but batch 1 is committed already"):
        folded(commit(1), DefineRecord(1, "a", 10))


def test_a_definition_never_changes() -> None:
    state = folded(DefineRecord(1, "a", 10), DefineRecord(1, "a", 10))
    with pytest.raises(ValueError, match="batch 1 of spout 'a' is already defined as 10, not as 11"):
        state.apply(DefineRecord(1, "a", 11))
    assert state.definitions == {1: {"a": 10}}


def test_the_sentinel_of_a_partition_is_that_of_its_last_touch() -> None:
    state = folded(commit(1, A, touched={"s": [0, 1]}), commit(2, B, touched={"s": [1], "t": [0]}))
    assert state.expected_sentinel("s", 0) == Sentinel("abc", 1, A)
    assert state.expected_sentinel("s", 1) == Sentinel("abc", 2, B)
    assert state.expected_sentinel("t", 0) == Sentinel("abc", 2, B)
    assert state.expected_sentinel("s", 2) is None
    assert state.expected_sentinel("u", 0) is None


def test_winners_grow_with_failures_only() -> None:
    state = folded(*(commit(txid, A if txid < 50 else B) for txid in range(1, 100)))
    assert state.winners == Winners.of([(1, A), (50, B)])
    assert state.winners.won(49, A)
    assert not state.winners.won(50, A)
    assert state.snapshot("s") == Snapshot(99, state.winners)


def test_history_holds_the_last_commits_also_after_a_round_trip() -> None:
    state = folded(*(commit(txid) for txid in range(1, HISTORY + 11)))
    back = LogState.from_data(decode(encode(state.to_data())))
    back.apply(commit(HISTORY + 11))
    assert [one.txid for one in state.history] == list(range(11, HISTORY + 11))
    assert [one.txid for one in back.history] == list(range(12, HISTORY + 12))


def test_the_first_layout_is_only_recorded() -> None:
    state = folded(commit(1, touched={"s": [0]}), LayoutRecord("s", 4, "opaque"))
    assert state.layouts == {"s": (4, "opaque")}
    assert state.touched == {"s": {0: Sentinel("abc", 1, A)}}


def test_adopting_a_foreign_store_goes_on_after_it_and_takes_every_value_as_found() -> None:
    state = folded(commit(1, touched={"s": [0, 1]}), AdoptRecord("s", 40, True, {0: (40, 0)}))
    assert state.txid == 40
    assert state.winners_of("s").won(40, 123456)
    assert not state.winners_of("t").won(1, 123456), "what was adopted with one state says nothing of another"
    assert state.touched["s"] == {0: Sentinel("abc", 40, 0)}
    state.apply(commit(41, B))
    assert not state.winners.won(41, A)


def test_adopting_an_older_store_of_this_log_keeps_txid_and_winners() -> None:
    before = folded(commit(1), commit(2, B))
    state = folded(commit(1), commit(2, B), AdoptRecord("s", 1, False, {0: (2, B)}))
    assert (state.txid, state.winners) == (2, before.winners)
    assert state.expected_sentinel("s", 0) == Sentinel("abc", 2, B)


def test_batches_beyond_the_end_of_the_log_have_no_known_winner_whoever_wrote_them() -> None:
    state = folded(commit(1, A), AdoptRecord("s", 3, False, {0: (3, B)}))
    assert state.winners_of("s").won(3, B)


def test_a_spout_that_had_nothing_in_an_adopted_batch_stays_where_it_was() -> None:
    state = folded(DefineRecord(1, "a", "one"), DefineRecord(2, "a", None), AdoptRecord("s", 2, True, {0: (2, 0)}))
    assert (state.spouts, state.definitions) == ({"a": "one"}, {})


def test_a_state_with_another_name_is_known_by_it_alone() -> None:
    declared = TopologyRecord({"s": {"kind": "opaque"}}, {})
    state = folded(LayoutRecord("s", 1, "opaque", A), declared, commit(1, touched={"s": [0]}), RenameRecord("s", "t"))
    assert state.expected_sentinel("t", 0) == Sentinel("abc", 1, A)
    assert (list(state.layouts), list(state.declared["states"])) == (["t"], ["t"])
    assert state.expected_sentinel("s", 0) is None
    assert [dict(each.touched) for each in state.history] == [{"t": (0,)}]
    assert LogState.from_data(decode(encode(state.to_data()))) == state
    with pytest.raises(ValueError, match="state 's' cannot be called 't': the log has \\['t'\\]"):
        state.apply(RenameRecord("s", "t"))


def test_something_else_is_not_folded() -> None:
    with pytest.raises(ValueError, match="not a record of this log"):
        folded(Record())


@pytest.mark.parametrize("spoil", ["winners", "history", "layouts", "touched", "incarnation"])
def test_a_folded_log_with_a_field_missing_is_refused(spoil: str) -> None:
    data = folded(commit(1)).to_data()
    del data[spoil]
    with pytest.raises(ValueError, match="not a folded log"):
        LogState.from_data(data)


def test_a_memory_log_keeps_a_copy() -> None:
    log, definition = MemoryLog("topology"), {"rows": [1]}
    log.append(DefineRecord(1, "s", definition))
    definition["rows"].append(2)
    log.check_owner()
    assert log.state.definitions == {1: {"s": {"rows": [1]}}}
    assert (log.epoch, log.state.epoch, log.state.topology) == (1, 1, "topology")


def test_two_memory_logs_are_two_incarnations() -> None:
    assert MemoryLog("topology").state.incarnation != MemoryLog("topology").state.incarnation


def test_a_closed_memory_log_refuses_records() -> None:
    log = MemoryLog("topology")
    log.close()
    with pytest.raises(LogError, match="log of topology 'topology' is closed"):
        log.append(commit(1))
    assert log.state.txid == 0


def test_a_memory_log_that_was_reopened_fences_its_earlier_writer() -> None:
    first = MemoryLog("topology")
    first.append(commit(1))
    second = first.reopen()
    with pytest.raises(FencedError, match="in memory: this writer is epoch 1, but epoch 2 has taken over"):
        first.append(commit(2))
    second.append(commit(2))
    assert (second.epoch, second.state.txid) == (2, 2)


STATES = st.sampled_from(["s", "t"])
STEPS = st.one_of(
    st.tuples(st.just("define"), st.integers(1, 3), st.sampled_from("ab")),
    st.tuples(
        st.just("commit"),
        st.integers(0, 2),
        st.dictionaries(STATES, st.lists(st.integers(0, 3), unique=True)),
        st.sets(st.sampled_from("ab")),
    ),
    st.tuples(st.just("layout"), STATES, st.integers(1, 3)),
    st.tuples(st.just("adopt"), STATES, st.integers(0, 12)),
    st.tuples(st.just("reset"), STATES),
)


class Model:
    """What a log says, kept as the plainest lists: every question is answered by walking through all that happened."""

    def __init__(self) -> None:
        self.commits: list[CommitRecord] = []
        self.txid, self.attempt = 0, A
        self.adopted: dict[str, int] = {}
        self.defined: dict[tuple[int, str], int] = {}
        self.touched: dict[tuple[str, int], tuple[int, int]] = {}
        self.partitions: dict[str, int] = {}
        self.known: set[str] = set()
        self.spouts: dict[str, Any] = {}

    def record_for(self, step: tuple[Any, ...]) -> Record:
        match step:
            case ("define", ahead, spout):
                txid = self.txid + ahead
                return DefineRecord(txid, spout, self.defined.setdefault((txid, spout), len(self.defined)))
            case ("commit", retries, touched, spouts):
                self.txid, self.attempt = self.txid + 1, self.attempt + retries
                for state, partitions in touched.items():
                    self.known.add(state)
                    self.touched.update({(state, one): (self.txid, self.attempt) for one in partitions})
                batch = {spout: self.defined.get((self.txid, spout), -1) for spout in spouts}
                self.spouts.update(batch)
                self.commits.append(
                    commit(self.txid, self.attempt, spouts=batch, touched=touched, counts={"tuples": retries})
                )
                return self.commits[-1]
            case ("layout", state, partitions):
                at = self.txid if state in self.known else 0
                self.forget(state)
                self.touched.update({(state, one): (at, self.attempt) for one in range(partitions)})
                self.partitions[state] = partitions
                return LayoutRecord(state, partitions, "opaque", self.attempt)
            case ("adopt", state, txid):
                self.txid = self.adopted[state] = max(txid, self.txid)
                for (at, spout), definition in sorted(self.defined.items()):
                    if at <= self.txid and not any(each.txid == at for each in self.commits):
                        self.spouts[spout] = definition
                        del self.defined[at, spout]
                self.forget(state)
                self.touched[state, 0] = (self.txid, 0)
                return AdoptRecord(state, txid, True, {0: (self.txid, 0)})
            case (_, state):
                self.forget(state)
                self.adopted.pop(state, None)
                return ResetRecord(state)
        raise AssertionError(step)

    def forget(self, state: str) -> None:
        self.known.add(state)
        self.touched = {place: what for place, what in self.touched.items() if place[0] != state}

    def agrees_with(self, state: LogState) -> None:
        assert state.txid == self.txid
        assert state.spouts == self.spouts
        flat = {(name, one): found[1:3] for name, all_ in state.touched.items() for one, found in all_.items()}
        assert flat == self.touched
        assert {name: partitions for name, (partitions, _) in state.layouts.items()} == self.partitions
        ahead = {(txid, spout): one for txid, by_spout in state.definitions.items() for spout, one in by_spout.items()}
        assert ahead == {place: one for place, one in self.defined.items() if place[0] > self.txid}
        assert state.history == deque(self.commits)
        assert state.totals.get("batches", 0) == len(self.commits)
        assert state.totals.get("tuples", 0) == sum(each.counts["tuples"] for each in self.commits)
        for each in self.commits:
            assert state.winners.won(each.txid, each.attempt)
            for name in ("s", "t"):
                stands = each.txid <= self.adopted.get(name, 0)
                assert state.winners_of(name).won(each.txid, each.attempt + 1) == stands


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_random_histories_agree_with_a_plain_model(steps: list[tuple[Any, ...]]) -> None:
    model, log = Model(), MemoryLog("topology")
    for step in steps:
        log.append(model.record_for(step))
        model.agrees_with(log.state)
    assert LogState.from_data(decode(encode(log.state.to_data()))) == log.state
