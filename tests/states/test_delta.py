"""The Delta state: real tables, real processes that are killed, real stale writers."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from states.delta import DeltaBackingMap, DeltaOptions, DeltaState
from trident.errors import (
    BackendError,
    CorruptValueError,
    EnvironmentProblem,
    FencedError,
    StaleTransactionError,
    StateError,
    StateMismatchError,
    UnsupportedOperation,
)
from trident.state.interfaces import FencedMap, Key, Resettable, StateConf, StateType
from trident.state.snapshottable import SnapshottableMap
from trident.state.txid import Sentinel, Snapshot, Txid, Winners
from trident.state.values import CombinerValueUpdater, OpaqueValue, TransactionalValue

WORDS = StateConf("words", "counts", key_fields=(("word", "string"),), value_type="bigint")
KINDS = {
    StateType.OPAQUE: DeltaState.opaque,
    StateType.TRANSACTIONAL: DeltaState.transactional,
    StateType.NON_TRANSACTIONAL: DeltaState.non_transactional,
}
ROOT = Path(__file__).resolve().parents[2]


def add(left: int, right: int) -> int:
    return left + right


def state_at(path: Path, conf: StateConf = WORDS, kind: StateType = StateType.OPAQUE, **options: Any) -> Any:
    state = KINDS[kind](path, **options).factory.make_state(conf, 0, 1)
    assert isinstance(state, SnapshottableMap)
    return state


def reader_at(path: Path, kind: StateType = StateType.OPAQUE) -> Any:
    conf = StateConf("words", "counts", key_fields=WORDS.key_fields, value_type="bigint", read_only=True)
    return state_at(path, conf, kind)


class Log:
    """The driver's side of a commit: winners, attempts and the sentinel that the partition must have."""

    def __init__(self) -> None:
        self.winners, self.expected = Winners(), None

    winners: Winners
    expected: Sentinel | None

    def txid(self, number: int, attempt: int) -> Txid:
        return Txid(number, attempt, self.winners, "inc", self.expected)

    def record(self, txid: Txid) -> None:
        self.winners, self.expected = self.winners.with_winner(int(txid), txid.attempt), txid.sentinel


def update(state: Any, counts: Mapping[str, int]) -> list[Any]:
    keys = [(word,) for word in counts]
    return list(state.multi_update(keys, [CombinerValueUpdater(add, n) for n in counts.values()]))


def commit(state: Any, log: Log, number: int, attempt: int, counts: Mapping[str, int], record: bool = True) -> None:
    txid = log.txid(number, attempt)
    state.begin_commit(txid)
    update(state, counts)
    state.commit(txid)
    if record:
        log.record(txid)


def values(state: Any, *words: str) -> list[Any]:
    return list(state.multi_get([(word,) for word in words]))


def version_of(path: Path) -> int:
    return DeltaTable(str(path)).version()


def live_files(path: Path) -> int:
    return len(DeltaTable(str(path)).file_uris())


# ---- the value rules over Delta -------------------------------------------------------------------------------------


def test_worked_example_of_an_opaque_state(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 3, "dog": 4, "apple": 10})
    commit(state, log, 2, 1, {"man": 1, "dog": 1}, record=False)
    # The replay of batch 2 has another content: "dog" is no longer in it, "apple" is.
    commit(state, log, 2, 2, {"man": 2, "apple": 5})
    assert values(state, "man", "apple") == [5, 15]
    commit(state, log, 3, 2, {"dog": 1})
    assert values(state, "man", "dog", "apple", "none") == [5, 5, 15, None]
    backing = state.map_state.backing
    assert backing.multi_get([("dog",), ("man",)]) == [OpaqueValue(3, 2, 4, 5), OpaqueValue(2, 2, 3, 5)]


def test_worked_example_of_a_transactional_state(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, kind=StateType.TRANSACTIONAL), Log()
    commit(state, log, 1, 1, {"man": 3})
    commit(state, log, 2, 1, {"man": 1, "dog": 1}, record=False)
    commit(state, log, 2, 2, {"man": 1, "dog": 1})
    assert values(state, "man", "dog") == [4, 1]
    backing = state.map_state.backing
    assert backing.multi_get([("man",)]) == [TransactionalValue(2, 4)]


def test_a_non_transactional_state_counts_a_replay_twice(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, kind=StateType.NON_TRANSACTIONAL), Log()
    commit(state, log, 1, 1, {"man": 3}, record=False)
    commit(state, log, 1, 2, {"man": 3})
    assert values(state, "man") == [6]


def test_a_key_updated_twice_in_one_commit_sees_the_first_update(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    txid = log.txid(1, 1)
    state.begin_commit(txid)
    assert update(state, {"man": 1}) == [1]
    assert update(state, {"man": 2}) == [3]
    state.commit(txid)
    assert values(state_at(tmp_path), "man") == [3]


def test_a_batch_is_one_delta_version_with_the_transaction_id_of_its_attempt(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 7, {str(n): n for n in range(5000)})
    assert version_of(tmp_path) == 1
    assert DeltaTable(str(tmp_path)).transaction_version("trident/words/counts/0") == 8
    commit(state, log, 2, 7, {"1": 1})
    assert version_of(tmp_path) == 2


def test_nothing_is_created_before_the_first_commit(tmp_path: Path) -> None:
    state = state_at(tmp_path / "table")
    assert values(state, "man") == [None]
    assert state.read_sentinel() is None
    assert not (tmp_path / "table").exists()


def test_puts_of_an_unfinished_commit_are_not_visible_and_are_forgotten(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    state.begin_commit(log.txid(2, 1))
    update(state, {"man": 10, "dog": 10})
    assert values(reader_at(tmp_path), "man", "dog") == [1, None]
    commit(state, log, 2, 2, {"man": 100})
    assert values(state_at(tmp_path), "man", "dog") == [101, None]


def test_an_empty_batch_moves_the_sentinel(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {})
    assert state_at(tmp_path).read_sentinel() == Sentinel("inc", 1, 1)
    commit(state, log, 2, 1, {"man": 1})
    assert values(state, "man") == [1]


def test_plain_txids_work_without_a_sentinel(tmp_path: Path) -> None:
    state = state_at(tmp_path)
    for txid in (1, 2, 2):
        state.begin_commit(txid)
        update(state, {"man": 1})
        state.commit(txid)
    assert values(state_at(tmp_path), "man") == [2]
    assert state.read_sentinel() is None


def test_a_stored_later_batch_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    state = state_at(tmp_path)
    state.begin_commit(5)
    update(state, {"man": 1})
    state.commit(5)
    state.begin_commit(4)
    with pytest.raises(StaleTransactionError, match="batch 4 is behind batch 5"):
        update(state, {"man": 1})
    assert version_of(tmp_path) == 1


def test_snapshot_reads_see_the_batch_before_the_one_being_tried(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    commit(state, log, 2, 1, {"man": 1, "dog": 1}, record=False)
    at = Snapshot(1, log.winners)
    for one in (state, state_at(tmp_path), reader_at(tmp_path)):
        assert one.multi_get_at([("man",), ("dog",)], at) == [1, None]


def test_wiped_table_is_found_at_begin(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    commit(state, log, 1, 1, {"man": 1})
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(StateMismatchError, match="no commit at all"):
        state_at(tmp_path / "t").begin_commit(log.txid(2, 1))
    with pytest.raises(StateMismatchError):  # the instance that still holds an index of the deleted table
        commit(state, log, 2, 1, {"man": 1})
    assert values(state, "man") == [None]


def test_a_table_that_is_wiped_in_the_middle_of_a_commit_fails_the_commit(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    commit(state, log, 1, 1, {"man": 1})
    txid = log.txid(2, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(StateError, match="restore _delta_log"):
        state.commit(txid)


def test_a_table_that_was_rolled_back_is_found_at_begin(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    commit(state, log, 1, 1, {"man": 1})
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    commit(state, log, 2, 1, {"man": 1})
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "copy").rename(tmp_path / "t")
    for one in (state, state_at(tmp_path / "t")):
        with pytest.raises(StateMismatchError, match="log expects batch 2 .* store has batch 1"):
            one.begin_commit(log.txid(3, 1))


def test_reset_empties_the_table_and_the_sentinel(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    state.reset()
    for one in (state, state_at(tmp_path), reader_at(tmp_path)):
        assert values(one, "man") == [None]
        assert one.read_sentinel() is None
    commit(state, Log(), 1, 1, {"man": 7})
    assert values(state_at(tmp_path), "man") == [7]


def test_a_forced_sentinel_is_laid_at_once_and_may_go_back(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 9, 1, {"man": 1})
    low = Sentinel("other", 3, 1)
    with pytest.raises(FencedError, match="batch 9 attempt 1"):
        state.move_sentinel(low)
    state.move_sentinel(low, force=True)
    for one in (state, state_at(tmp_path), reader_at(tmp_path)):
        assert one.read_sentinel() == low
        assert values(one, "man") == [1]


def test_offers_the_optional_abilities_of_a_backing_map(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.OPAQUE, WORDS)
    assert isinstance(backing, FencedMap)
    assert isinstance(backing, Resettable)
    state = state_at(tmp_path)
    commit(state, Log(), 1, 1, {"man": 3, "dog": 4})
    assert sorted(state.get_tuples()) == [("dog", 4), ("man", 3)]
    assert sorted(reader_at(tmp_path).get_tuples()) == [("dog", 4), ("man", 3)]


def test_rows_copied_from_a_table_of_higher_versions_are_older_than_new_ones(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    for number in range(1, 8):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    write_deltalake(str(tmp_path / "copy"), DeltaTable(str(tmp_path / "t")).to_pyarrow_table())
    for number in range(8, 12):
        copy = state_at(tmp_path / "copy", compact_after_commits=64 if number < 10 else 2)
        commit(copy, log, number, 1, {"man": 1})
        assert values(state_at(tmp_path / "copy"), "man", "w3") == [number, 1]
    assert version_of(tmp_path / "copy") < 8


def test_puts_outside_of_a_commit_are_durable_at_once(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.NON_TRANSACTIONAL, WORDS)
    backing.multi_put([("man",)], [1])
    backing.multi_put([("man",), ("dog",)], [2, 3])
    backing.multi_put([], [])
    again = DeltaBackingMap(tmp_path, StateType.NON_TRANSACTIONAL, WORDS)
    assert again.multi_get([("dog",), ("cat",), ("man",)]) == [3, None, 2]
    assert version_of(tmp_path) == 2


def test_end_without_begin_is_refused(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.OPAQUE, WORDS)
    with pytest.raises(StateError, match="end of batch 3 .* without its begin"):
        backing.end(Txid(3))


# ---- fencing --------------------------------------------------------------------------------------------------------


def test_a_paused_writer_is_fenced_once_its_successor_has_committed(tmp_path: Path) -> None:
    old, new, log = state_at(tmp_path), state_at(tmp_path), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    commit(new, log, 2, 2, {"man": 1})
    rows, version = DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows, version_of(tmp_path)
    with pytest.raises(FencedError, match="this writer is batch 2 attempt 1 .* but batch 2 attempt 2"):
        old.commit(paused)
    assert (DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows, version_of(tmp_path)) == (rows, version)
    with pytest.raises(FencedError):
        old.begin_commit(paused)
    assert values(state_at(tmp_path), "man") == [2]


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
def test_a_paused_writer_that_commits_between_begin_and_end_of_its_successor(tmp_path: Path, kind: StateType) -> None:
    old, new, log = state_at(tmp_path, kind=kind), state_at(tmp_path, kind=kind), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused, live = log.txid(2, 1), log.txid(2, 2)
    # A transactional state belongs to a spout whose replay is identical; an opaque one may change.
    first = {"man": 10} if kind is StateType.TRANSACTIONAL else {"man": 100, "dog": 100}
    old.begin_commit(paused)
    update(old, first)
    new.begin_commit(live)
    update(new, {"man": 10})
    old.commit(paused)
    with pytest.raises(BackendError, match="committed meanwhile.* batch 2 attempt 1") as caught:
        new.commit(live)
    assert caught.value.retryable
    commit(new, log, 2, 3, {"man": 10})
    assert values(state_at(tmp_path, kind=kind), "man") == [11]
    if kind is StateType.OPAQUE:
        commit(new, log, 3, 3, {"dog": 1})
        assert values(state_at(tmp_path), "man", "dog") == [11, 1]


def test_a_batch_is_refused_if_another_program_committed_meanwhile_and_its_replay_is_exact(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    commit(state, log, 2, 1, {"man": 1})
    txid = log.txid(3, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    DeltaTable(str(tmp_path)).optimize.compact()
    with pytest.raises(BackendError, match="version 3 was committed meanwhile"):
        state.commit(txid)
    commit(state, log, 3, 2, {"man": 1})
    assert values(state_at(tmp_path), "man") == [3]


def test_a_lower_claim_is_refused(tmp_path: Path) -> None:
    backing, log = DeltaBackingMap(tmp_path, StateType.OPAQUE, WORDS), Log()
    commit(state_at(tmp_path), log, 5, 2, {"man": 1})
    for lower in (Sentinel("inc", 5, 1), Sentinel("inc", 4, 9), Sentinel("another", 6, 3)):
        with pytest.raises(FencedError):
            backing.move_sentinel(lower)
    backing.move_sentinel(Sentinel("inc", 5, 2))
    assert backing.read_sentinel() == Sentinel("inc", 5, 2)


def test_a_stale_writer_is_refused_after_the_log_was_cleaned(tmp_path: Path) -> None:
    old, new, log = state_at(tmp_path), state_at(tmp_path, checkpoint_interval=2), Log()
    commit(new, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    for number in range(2, 6):
        commit(new, log, number, 2, {"man": 1})
    DeltaTable(str(tmp_path)).create_checkpoint()
    entries = sorted((tmp_path / "_delta_log").glob("*.json"))
    for entry in entries[:-1]:  # what the clean-up does with entries that a checkpoint holds
        entry.unlink()
    with pytest.raises(FencedError):
        old.commit(paused)
    assert not entries[2].exists()
    assert values(state_at(tmp_path), "man") == [5]


# ---- types ----------------------------------------------------------------------------------------------------------

TYPED = [
    ("string", ["", "a", "ünï\U0001f600", "\x00", None]),
    ("bigint", [0, -(2**63), 2**63 - 1, None]),
    ("binary", [b"", b"\x00\xff", None]),
    ("boolean", [True, False, None]),
    ("double", [0.1, 1, float("inf"), float("nan"), None]),
    ("float", [0.1, -1.5, None]),
    ("decimal(10,2)", [Decimal("1.5"), Decimal("-99999999.99"), None]),
    ("date", [dt.date(1, 1, 1), dt.date(2024, 2, 29), None]),
    ("timestamp", [dt.datetime(2024, 1, 1, 12, 0, 0, 1), dt.datetime(1969, 1, 1, tzinfo=dt.UTC), None]),
    ("timestamp_ntz", [dt.datetime(2024, 1, 1, 12), None]),
]
NESTED = [
    ("array<bigint>", [[1, None], [], None]),
    ("map<string,bigint>", [{"a": 1, "b": None}, {}, None]),
    ("struct<a:bigint,b:array<string>>", [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None]),
]


@pytest.mark.parametrize(("ddl", "parts"), TYPED, ids=[ddl for ddl, _ in TYPED])
def test_typed_keys_are_found_again_by_warm_and_cold_instances(tmp_path: Path, ddl: str, parts: list[Any]) -> None:
    conf = StateConf(key_fields=(("k", ddl), ("txid", "bigint")), value_type="bigint")
    keys = [(part, n % 2) for n, part in enumerate(parts)]
    state = state_at(tmp_path, conf)
    cold = StateConf(key_fields=conf.key_fields, value_type="bigint", read_only=True)
    for txid in (1, 2):
        state.begin_commit(txid)
        state.multi_update(keys, [CombinerValueUpdater(add, 1)] * len(keys))
        state.commit(txid)
    for one in (state, state_at(tmp_path, conf), state_at(tmp_path, cold)):
        assert one.multi_get([*keys, (parts[0], 7)]) == [2] * len(keys) + [None]


@pytest.mark.parametrize(("ddl", "parts"), TYPED + NESTED, ids=[ddl for ddl, _ in TYPED + NESTED])
def test_typed_values_are_the_same_to_warm_and_cold_instances(tmp_path: Path, ddl: str, parts: list[Any]) -> None:
    conf = StateConf(key_fields=(("k", "bigint"),), value_type=ddl)
    keys = [(n,) for n in range(len(parts))]
    state = state_at(tmp_path, conf)
    state.begin_commit(1)
    state.multi_put(keys, parts)
    state.commit(1)
    warm, cold = state.multi_get(keys), state_at(tmp_path, conf).multi_get(keys)
    assert repr(warm) == repr(cold)
    assert cold[-1] is None
    if ddl not in ("float", "double", "timestamp", "decimal(10,2)"):
        assert repr(cold) == repr(parts)


UNTYPED: list[Any] = [
    "", "ünï", b"", b"\x00\xff", 0, -1, 2**70, 1.5, True, None, Decimal("1.10"), dt.date(2024, 1, 1), (1, ("a", None)),
    dt.datetime(2024, 1, 1, tzinfo=dt.UTC), frozenset({1, 2}), float("nan"), "\x00trident-sentinel",
]  # fmt: skip


def test_untyped_keys_and_values_keep_their_types(tmp_path: Path) -> None:
    conf, cold = StateConf(), StateConf(read_only=True)
    keys: list[Key] = [(part,) for part in UNTYPED] + [(part, n) for n, part in enumerate(UNTYPED)] + [()]
    stored: list[Any] = [*UNTYPED, *([part] for part in UNTYPED), {"a": [1, {"b": None}]}]
    state = state_at(tmp_path, conf)
    state.begin_commit(1)
    state.multi_put(keys, stored)
    state.commit(1)
    for one in (state, state_at(tmp_path, conf), state_at(tmp_path, cold)):
        got = one.multi_get(keys)
        assert [repr(value) for value in got] == [repr(value) for value in stored]


def test_the_single_value_of_an_ungrouped_aggregate(tmp_path: Path) -> None:
    conf = StateConf(value_type="bigint")
    state, log = state_at(tmp_path, conf), Log()
    for number in (1, 2):
        txid = log.txid(number, 1)
        state.begin_commit(txid)
        assert state.update(CombinerValueUpdater(add, 5)) == 5 * number
        state.commit(txid)
        log.record(txid)
    assert state_at(tmp_path, conf).get() == 10
    assert state_at(tmp_path, StateConf(value_type="bigint", read_only=True)).get() == 10


def test_key_columns_that_would_collide_are_renamed(tmp_path: Path) -> None:
    conf = StateConf(key_fields=(("curr", "string"), ("key_curr", "string"), ("TXID", "bigint")), value_type="bigint")
    state = state_at(tmp_path, conf)
    state.begin_commit(1)
    state.multi_put([("a", "b", 1)], [5])
    state.commit(1)
    assert state_at(tmp_path, conf).multi_get([("a", "b", 1)]) == [5]
    names = DeltaTable(str(tmp_path)).to_pyarrow_table().column_names
    assert names[:3] == ["key_key_curr", "key_curr", "key_TXID"]


def test_what_a_caller_does_to_a_value_does_not_reach_the_state(tmp_path: Path) -> None:
    for conf in (StateConf(), StateConf(value_type="array<bigint>")):
        state = state_at(tmp_path / str(conf.value_type), conf)
        mine = [1]
        state.begin_commit(1)
        state.multi_put([("k",)], [mine])
        mine.append(2)
        state.commit(1)
        (got,) = state.multi_get([("k",)])
        got.append(3)
        assert state.multi_get([("k",)]) == [[1]]


def test_a_value_that_does_not_fit_its_type_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    txid = log.txid(2, 1)
    state.begin_commit(txid)
    state.multi_put([("man",), ("dog",)], [5, "many"])
    with pytest.raises(CorruptValueError, match=r"cannot write 'many' \(str\) into column 'curr' of type int64"):
        state.commit(txid)
    assert version_of(tmp_path) == 1
    commit(state, log, 2, 2, {"man": 1})
    assert values(state_at(tmp_path), "man", "dog") == [2, None]


def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptValueError, match="has 2 parts"):
        state_at(tmp_path).multi_get([("a", "b")])


# ---- compaction, readers, other processes ---------------------------------------------------------------------------


def test_compaction_keeps_everything_and_bounds_the_files(tmp_path: Path) -> None:
    dice, model = random.Random(7), dict[str, int]()
    state, log = state_at(tmp_path, compact_after_commits=16, fsync=False), Log()
    reader, most = reader_at(tmp_path), 0
    for number in range(1, 301):
        # First the keys grow (files are merged), then the same keys come again (rows are dropped).
        counts = {f"w{dice.randrange(number * 20 if number < 150 else 200)}": 1 for _ in range(10)}
        commit(state, log, number, 1, counts)
        for word, n in counts.items():
            model[word] = model.get(word, 0) + n
        if number % 10 == 0:
            most = max(most, live_files(tmp_path))
            words = dice.sample(sorted(model), 10)
            assert values(reader, *words) == [model[word] for word in words]
    assert most <= 17
    assert dict(state_at(tmp_path).get_tuples()) == model
    assert state_at(tmp_path).read_sentinel() == Sentinel("inc", 300, 1)
    notes = {entry.get("trident.compaction") for entry in DeltaTable(str(tmp_path)).history()}
    assert notes >= {"rows", "files"}
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert rows.num_rows <= 3 * len(model)


def test_the_sentinel_survives_compaction_by_other_programs_and_log_clean_up(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    for number in range(1, 5):
        commit(state, log, number, 1, {"man": 1})
    table = DeltaTable(str(tmp_path))
    table.optimize.compact()
    table.create_checkpoint()
    for entry in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert state_at(tmp_path).read_sentinel() == log.expected
    commit(state, log, 5, 1, {"man": 1})
    assert values(state_at(tmp_path), "man") == [5]


def test_the_sentinel_survives_a_compaction_right_after_its_commit(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=1), Log()
    for number in range(1, 6):
        commit(state, log, number, 1, {"man": 1})
        assert live_files(tmp_path) == 1
        assert state_at(tmp_path).read_sentinel() == log.expected
    assert DeltaTable(str(tmp_path)).history(1)[0]["trident.compaction"] == "rows"


def test_files_that_nobody_refers_to_are_deleted_once_they_are_old(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=1, vacuum_after_hours=1), Log()
    commit(state, log, 1, 1, {"man": 1})
    old, young = tmp_path / "part-left-over.snappy.parquet", tmp_path / "part-under-way.snappy.parquet"
    for orphan in (old, young):
        shutil.copy(DeltaTable(str(tmp_path)).file_uris()[0], orphan)
    os.utime(old, (old.stat().st_mtime - 7200,) * 2)
    for number in range(2, 12):
        commit(state, log, number, 1, {"man": 1})
    assert (old.exists(), young.exists()) == (False, True)
    assert values(state_at(tmp_path), "man") == [11]


def test_a_reader_whose_files_were_deleted_moves_on_to_the_newer_version(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=4), Log()
    for number in range(1, 4):
        commit(state, log, number, 1, {"man": 1})
    reader = DeltaBackingMap(
        tmp_path, StateType.OPAQUE, StateConf(key_fields=WORDS.key_fields, value_type="bigint", read_only=True)
    )
    table = reader._table
    before = table.refresh()
    old = DeltaTable(str(tmp_path)).file_uris()
    commit(state, log, 4, 1, {"man": 1})
    for file in old:
        Path(file).unlink()
    assert table.version == before  # the reader is still at the version of which no file is left
    assert table.scan().num_rows == 2
    assert table.version > before
    assert reader.multi_get([("man",)]) == [OpaqueValue(4, 1, 3, 4)]


def test_a_reader_asks_the_store_once_per_version(tmp_path: Path) -> None:
    state, log, reader = state_at(tmp_path), Log(), reader_at(tmp_path)
    assert values(reader, "man") == [None]
    for number in (1, 2):
        commit(state, log, number, 1, {"man": 1})
        assert values(reader, "man", "dog") == [number, None]
    for file in DeltaTable(str(tmp_path)).file_uris():
        Path(file).unlink()
    assert values(reader, "man", "dog") == [2, None]


def test_a_read_only_instance_writes_nothing(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.OPAQUE, StateConf(read_only=True))
    with pytest.raises(UnsupportedOperation, match="opened to be read only"):
        backing.multi_put([("a",)], [OpaqueValue(1, 1, None, 1)])
    with pytest.raises(UnsupportedOperation):
        backing.begin(Txid(1))
    with pytest.raises(UnsupportedOperation):
        backing.move_sentinel(Sentinel("inc", 1, 1), force=True)
    with pytest.raises(UnsupportedOperation):
        backing.reset()
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys
from tests.states.test_delta import *
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
state, log = state_at(path, compact_after_commits=4, fsync=False), Log()
attempt = first
if first > 1:
    log.winners = Winners.of(json.loads(sys.argv[4]))
    log.expected = Sentinel("inc", first - 1, log.winners.winner(first - 1))
for number in range(first, last + 1):
    commit(state, log, number, attempt, {"all": 1, f"w{number % 7}": number})
    print(number, flush=True)
"""


def child(path: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def model_after(txid: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number in range(1, txid + 1):
        for word, n in (("all", 1), (f"w{number % 7}", number)):
            counts[word] = counts.get(word, 0) + n
    return counts


def test_a_new_process_goes_on_where_another_stopped(tmp_path: Path) -> None:
    with child(tmp_path, 1, 6) as process:
        assert process.wait(60) == 0
    assert dict(state_at(tmp_path).get_tuples()) == model_after(6)
    with child(tmp_path, 7, 9, json.dumps([[1, 1]])) as process:
        assert process.wait(60) == 0
    assert dict(reader_at(tmp_path).get_tuples()) == model_after(9)


@pytest.mark.timeout(300)  # ten processes, on a machine that may be busy
def test_ten_kills_in_the_middle_of_commits_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    dice, done, ranges = random.Random(seed), 0, list[list[int]]()
    for _ in range(10):
        arguments = [json.dumps(ranges)] if done else []
        with child(tmp_path, done + 1, 1_000_000, *arguments) as process:
            assert process.stdout is not None
            first, stop = done + 1, done + dice.randrange(1, 12)
            reported = done
            for line in process.stdout:
                reported = int(line)
                if reported == stop:
                    # Any moment of the commits that follow: how many steps this loop takes is left to chance.
                    for _ in range(dice.randrange(200_000)):
                        pass
                    process.send_signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL
        assert reported >= stop, seed
        found = dict(state_at(tmp_path).get_tuples())
        assert found in (model_after(reported), model_after(reported + 1)), (seed, reported, found)
        # The record of the log: what was reported is committed; what came after it is tried again by the next child.
        ranges.append([first, first])
        done = reported
    assert done >= 10


def test_a_reader_in_another_process_sees_whole_batches_while_a_writer_runs(tmp_path: Path) -> None:
    reader = reader_at(tmp_path)
    with child(tmp_path, 1, 60) as process:
        assert process.stdout is not None
        for line in process.stdout:
            at_least = int(line)
            all_, *rest = values(reader, "all", *(f"w{n}" for n in range(7)))
            assert all_ >= at_least
            expected = model_after(all_)
            assert rest == [expected.get(f"w{n}") for n in range(7)]
        assert process.wait(60) == 0
    assert values(reader, "all") == [60]


# ---- what can be wrong with the directory ---------------------------------------------------------------------------


def test_a_table_with_other_columns_is_refused_with_both_lists(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"word": ["a"], "n": [1]}))
    wanted = r"expected columns \['word: string', 'txid: long'.*found \['word: string', 'n: long'\]"
    with pytest.raises(StateError, match=wanted):
        values(state_at(tmp_path), "a")


def test_the_table_of_another_kind_or_type_is_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    with pytest.raises(StateError, match="expected columns"):
        values(state_at(tmp_path, kind=StateType.TRANSACTIONAL), "man")
    typed = state_at(tmp_path / "b", StateConf(value_type="binary"))
    typed.begin_commit(1)
    typed.multi_put([("k",)], [b"x"])
    typed.commit(1)
    with pytest.raises(StateError, match="marked as trident opaque state; keys encoded, values typed"):
        state_at(tmp_path / "b", StateConf()).multi_get([("k",)])


def test_a_directory_of_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    state = state_at(tmp_path)
    with pytest.raises(StateError, match=r"holds \['letter.txt'\] and is no Delta table"):
        state.begin_commit(Log().txid(1, 1))
    assert [found.name for found in tmp_path.iterdir()] == ["letter.txt"]


def test_a_creation_that_was_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    assert values(state_at(tmp_path), "man") == [1]


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text("{garbage")
    with pytest.raises(StateError, match="cannot open Delta table .* damaged") as caught:
        values(state_at(tmp_path), "man")
    assert "start_thread" not in str(caught.value)


CUTS = [lambda data: data[: len(data) // 2], lambda data: data[:8] + b"\xff" * 300 + data[308:]]


@pytest.mark.parametrize("damage", CUTS, ids=["cut off", "overwritten"])
def test_a_damaged_data_file_is_refused(tmp_path: Path, damage: Any) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {f"w{n}": n for n in range(100)})
    (file,) = map(Path, DeltaTable(str(tmp_path)).file_uris())
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StateError, match="cannot read Delta table .* damaged"):
        values(state_at(tmp_path), "w1")


def test_a_missing_data_file_is_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    for file in DeltaTable(str(tmp_path)).file_uris():
        Path(file).unlink()
    with pytest.raises(StateError, match="data files are missing"):
        values(state_at(tmp_path), "man")


def test_a_path_that_cannot_be_made_is_a_backend_error() -> None:
    with pytest.raises(BackendError, match="cannot create Delta table /proc/trident-state"):
        state_at(Path("/proc/trident-state")).begin_commit(Log().txid(1, 1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 400 kB."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path)], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_fails_the_batch_and_leaves_the_state_as_it_was(small_disk: Path) -> None:
    path = small_disk / "table"
    state, log = state_at(path), Log()
    commit(state, log, 1, 1, {"man": 1})
    words = {f"{random.getrandbits(256):x}": 1 for _ in range(10_000)}
    with pytest.raises(BackendError, match="cannot commit to Delta table .*No space left on device") as caught:
        commit(state, log, 2, 1, words)
    assert caught.value.retryable
    assert dict(state_at(path).get_tuples()) == {"man": 1}
    commit(state, log, 2, 2, {"man": 1})
    assert values(state_at(path), "man") == [2]


def test_a_read_only_disk_is_a_backend_error_that_no_replay_mends(small_disk: Path) -> None:
    path = small_disk / "table"
    state, log = state_at(path), Log()
    commit(state, log, 1, 1, {"man": 1})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(BackendError, match="Read-only file system.*make the directory writable") as caught:
        commit(state, log, 2, 1, {"man": 1})
    assert not caught.value.retryable
    with pytest.raises(BackendError, match="cannot create"):
        state_at(small_disk / "new").begin_commit(Log().txid(1, 1))
    assert values(reader_at(path), "man") == [1]


def test_a_missing_driver_package_is_named() -> None:
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from states.delta import DeltaState; from trident.state.interfaces import StateConf\n"
        "spec = DeltaState.opaque('somewhere')\n"
        "from trident.errors import EnvironmentProblem\n"
        "try: spec.factory.make_state(StateConf(), 0, 1)\n"
        "except EnvironmentProblem as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pip install 'trident-spark[delta]'" in run.stdout
    assert issubclass(EnvironmentProblem, Exception)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="vacuum_after_hours is 0; it must be at least 1"):
        DeltaState.opaque("somewhere", vacuum_after_hours=0)
    assert DeltaOptions(vacuum_after_hours=None).snapshot_key == "$GLOBAL$"


def test_partitions_have_tables_of_their_own(tmp_path: Path) -> None:
    spec = DeltaState.opaque(tmp_path)
    for partition in (0, 1):
        state = spec.factory.make_state(WORDS, partition, 2)
        commit(state, Log(), 1, 1, {"man": partition + 1})
    assert values(state_at(tmp_path / "part-00001"), "man") == [2]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["part-00000", "part-00001"]


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "states" / "delta.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert version_of(tmp_path / "state" / "word-count") == 2


# ---- Spark ----------------------------------------------------------------------------------------------------------

SPARK = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from states.delta import delta_dataframe, delta_session_conf
from trident.errors import StateError
from tests.states.test_delta import *

path, other = Path(sys.argv[1]), Path(sys.argv[2])
settings = {
    "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1", "spark.sql.session.timeZone": "UTC",
} | delta_session_conf(ROOT / "build" / "ivy")
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
say = lambda **facts: print("FACTS " + json.dumps(facts), flush=True)

def counts():
    frame = delta_dataframe(spark, path)
    return [frame.schema.simpleString(), dict(sorted(tuple(row) for row in frame.collect()))]

say(before=counts())
files = live_files(path)
spark.sql(f"OPTIMIZE delta.`{path}`")
say(merged=files > live_files(path), optimized=counts()[1])
state, log = state_at(path), Log()
log.winners, log.expected = Winners(((1, 1),)), Sentinel("inc", 5, 1)
commit(state, log, 6, 1, {"man": 1})
# What a program on Spark's side appends is a write like any other: it has the highest number, so it counts.
row = spark.createDataFrame([("added", 6, 1, None, 50, 10**6, None)], spark.read.format("delta").load(str(path)).schema)
row.write.format("delta").mode("append").save(str(path))
say(state=dict(sorted(state.get_tuples())), reader=values(reader_at(path), "added", "man"))
commit(state, log, 7, 1, {"man": 1, "added": 1})
say(after=counts()[1], again=dict(sorted(state_at(path).get_tuples())))
spark.range(3).write.format("delta").save(str(other))
try:
    delta_dataframe(spark, other)
except StateError as error:
    say(refused=str(error))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(600)  # the first run on a machine fetches the library
def test_spark_reads_what_the_state_wrote_and_the_state_reads_what_spark_wrote(tmp_path: Path) -> None:
    path, log = tmp_path / "state", Log()
    state = state_at(path)
    for number in range(1, 6):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    run = subprocess.run(
        [sys.executable, "-c", SPARK, str(path), str(tmp_path / "other")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    facts: dict[str, Any] = {}
    for line in run.stdout.splitlines():
        if line.startswith("FACTS "):
            facts |= json.loads(line[6:])
    words = {f"w{n}": n for n in range(1, 6)}
    assert facts.pop("before") == ["struct<word:string,value:bigint>", {"man": 5, **words}]
    assert facts.pop("refused").startswith("read Delta table")
    assert facts == {
        "merged": True,
        "optimized": {"man": 5, **words},
        "state": {"added": 50, "man": 6, **words},
        "reader": [50, 6],
        "after": {"added": 51, "man": 7, **words},
        "again": {"added": 51, "man": 7, **words},
    }
