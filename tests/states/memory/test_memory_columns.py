"""Opaque numbers in columns: whatever is committed, fails, is removed or does not fit, a plain dict gives the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from states.memory import ColumnarMemoryMap, LRUMemoryMapState, MemoryBackingMap, MemoryData, MemoryMapState
from tests.harness.column_schedules import ColumnPromises
from tests.harness.crashing_stores import DictMap, tuples_at
from trident.errors import FencedError
from trident.operations import Max, Min, Sum
from trident.state import OpaqueMap, OpaqueValue, Sentinel, Snapshot, StateConf, StateType, Txid, Winners
from trident.state.number_columns import NumberForm
from trident.state.number_table import NumberTable
from trident.state.table import KeyColumns, as_list
from trident.state.values import CombinerUpdates
from trident.testing import InjectedFault

pytestmark = pytest.mark.usefixtures("always_columns")

COMBINE = {"sum": Sum().combine, "min": Min().combine, "max": Max().combine}
MOST = (1 << 63) - 1


# ---- one schedule, two maps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of a commit: `sum`, `min`, `max`, `put` or `remove`."""

    what: str
    values: dict[Any, Any]


@dataclass(frozen=True)
class Attempt:
    calls: list[Call]
    wins: bool


INTS = st.integers(-9, 9) | st.sampled_from([MOST, -MOST - 1, MOST // 2 + 1])
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, 1e308])
LETTERS = st.sampled_from("abcdef")
COMBINED = st.sampled_from(["sum", "sum", "sum", "min", "max"])


def calls(numbers: st.SearchStrategy[Any], others: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    combined = st.builds(Call, COMBINED, st.dictionaries(LETTERS | st.none(), numbers, min_size=1))
    put = st.builds(Call, st.just("put"), st.dictionaries(LETTERS, numbers | others, min_size=1))
    removed = st.builds(Call, st.just("remove"), st.dictionaries(LETTERS, st.none(), min_size=1))
    return combined | combined | combined | put | removed


def attempts(of: st.SearchStrategy[Call]) -> st.SearchStrategy[list[Attempt]]:
    return st.lists(st.builds(Attempt, st.lists(of, min_size=1, max_size=3), st.booleans()), max_size=24)


MIXED = attempts(calls(INTS, st.none() | FLOATS | st.booleans() | st.text(max_size=1) | st.just(MOST + 1)))
BIGINT, DOUBLE = NumberForm(("bigint",)), NumberForm(("double",))


def key(part: Any, width: int) -> tuple[Any, ...]:
    return (part,) if width == 1 else (part, 1)


def apply(state: Any, call: Call, width: int, by_arrow: bool) -> Any:
    keys = [key(part, width) for part in call.values]
    values = list(call.values.values())
    if call.what == "put":
        return state.multi_put(keys, values)
    if call.what == "remove":
        return state.multi_remove(keys)
    dtype = np.float64 if isinstance(values[0], float) else np.int64
    parts: list[Any] = [list(call.values)] + [[1] * len(keys)] * (width - 1)
    if by_arrow:
        parts = [pa.array(part) for part in parts]
    new = state.multi_combine(parts, np.array(values, dtype), call.what)
    if new is not None:
        return new.tolist()
    return state.multi_update(keys, CombinerUpdates(combine_of(call.what), values))


def combine_of(what: str) -> Any:
    def combine(stored: Any, value: Any) -> Any:  # an aggregator meets no text in real life
        return value if isinstance(stored, str) else COMBINE[what](stored, value)

    return combine


def readable(state: OpaqueMap, committed: int, winners: Winners, width: int) -> str:
    keys = [key(part, width) for part in (*"abcdefgh", None)]
    snapshot = Snapshot(committed, winners)
    everything = (
        state.multi_get(keys),
        state.multi_get_at(keys, snapshot),
        list(state.get_tuples()),
        list(tuples_at(state, snapshot)),
        list(state.backing.multi_get(keys)),
        state.read_sentinel(),
    )
    return repr(everything)  # tells -0.0 from 0.0 and 1 from 1.0, and NaN equals NaN


@pytest.mark.long
@pytest.mark.parametrize(("width", "by_arrow"), [(1, False), (1, True), (2, False), (2, True)])
@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_columns_and_a_dict_tell_the_same_of_any_schedule(width: int, by_arrow: bool, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from([BIGINT, DOUBLE]))
    schedule = data.draw(attempts(calls(FLOATS if form is DOUBLE else INTS, st.none())) | MIXED)
    memory = ColumnarMemoryMap(MemoryData(form=form))
    check_schedule(memory, schedule, width, lambda state, call: apply(state, call, width, by_arrow))


def check_schedule(backing: Any, schedule: Any, width: int, apply: Any) -> None:
    """Commit the attempts of a schedule to a map of columns and to a dict, and compare all that each answers."""
    states = [OpaqueMap(backing), OpaqueMap(MemoryBackingMap(MemoryData()))]
    winners, committed, number, expected = Winners(), 0, 1 << 20, None
    for attempt in schedule:
        txid = Txid(committed + 1, number, winners, "log", expected)
        answers = []
        for state in states:
            state.begin_commit(txid)
            answers.append(repr([apply(state, call) for call in attempt.calls]))
            answers[-1] += repr(state.multi_get([key(part, width) for part in "abcdefgh"]))
            if attempt.wins:
                state.commit(txid)
        assert answers[0] == answers[1]
        if attempt.wins:
            committed, winners = committed + 1, winners.with_winner(committed + 1, number)
            expected = Sentinel("log", committed, number)
        else:
            number += 1
            for state in states:
                state._forget()  # as in a process that starts anew: nothing is remembered of the commit that broke off
        assert readable(states[0], committed, winners, width) == readable(states[1], committed, winners, width)


# ---- what columns hold, and what they do not ---------------------------------------------------------------------------


def numbers() -> MemoryData:
    return MemoryData(form=BIGINT)


def opened(data: MemoryData) -> OpaqueMap:
    return OpaqueMap(ColumnarMemoryMap(data))


def summed(state: OpaqueMap, txid: int, **values: Any) -> list[Any] | None:
    state.begin_commit(txid)
    new = state.multi_combine([list(values)], np.array(list(values.values())), "sum")
    state.commit(txid)
    return None if new is None else new.tolist()


def test_a_dict_stays_one_until_a_commit_of_many_keys_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.state.number_table._FEW_KEYS", 2)
    data = numbers()
    state = opened(data)
    assert summed(state, 1, a=1, b=2) is None
    assert data.values.columns is None
    assert summed(state, 2, a=1, b=2, c=3) == [1, 2, 3]
    assert summed(state, 3, a=1) == [2]
    assert data.values.columns is not None


def test_what_was_there_before_the_first_columns_stays() -> None:
    data = numbers()
    state = opened(data)
    state.begin_commit(1)
    state.multi_put([("a",), ("gone",)], [5, None])
    state.commit(1)
    assert data.values.columns is None
    assert summed(state, 2, a=1, b=2) == [6, 2]
    assert (data.values.columns is not None, data.values.entries, len(data)) == (True, {}, 3)
    assert state.backing.multi_get([("a",), ("gone",), ("b",), ("never",)]) == [
        OpaqueValue(2, 0, 5, 6),
        OpaqueValue(1, 0, None, None),
        OpaqueValue(2, 0, None, 2),
        None,
    ]


@pytest.mark.parametrize("odd", ["text", [1], True, 1.5, MOST + 1, (1, 2)])
def test_a_value_that_does_not_fit_makes_the_partition_a_dict_for_good(odd: Any) -> None:
    data = numbers()
    state = opened(data)
    assert summed(state, 1, a=1, b=2) == [1, 2]
    state.begin_commit(2)
    state.multi_put([("b",)], [odd])
    state.commit(2)
    assert (data.values.columns, len(data)) == (None, 2)
    assert state.multi_get([("a",), ("b",)]) == [1, odd]
    assert summed(state, 3, a=1) is None
    assert (data.values.columns, data.values.form) == (None, None)


@pytest.mark.parametrize("there", [{("a", "b"): 1}, {("a",): "text"}, {("a",): OpaqueValue(1, 0, None, "text")}])
def test_entries_that_do_not_fit_stay_a_dict(there: dict[Any, Any]) -> None:
    data = numbers()
    data.values.entries.update(there)
    assert ColumnarMemoryMap(data).multi_get_opaque(KeyColumns([["x"]])) is None
    assert (data.values.entries, data.values.form) == (there, None)


class TestColumns(ColumnPromises):
    @pytest.fixture
    def again(self) -> Any:
        factory = MemoryMapState()
        return lambda value_type: factory.make_state(StateConf("t", "s", (("word", "string"),), value_type), 0, 1)


def test_within_a_commit_a_failed_put_of_columns_does_not_look_written(monkeypatch: pytest.MonkeyPatch) -> None:
    state = opened(numbers())
    summed(state, 1, a=1)
    state.begin_commit(2)

    def fail(*_: Any) -> None:
        raise InjectedFault("before the call")

    with monkeypatch.context() as patched:
        patched.setattr(state.backing, "multi_put", fail)
        with pytest.raises(InjectedFault):
            state.multi_combine([["a"]], np.array([5]), "sum")
    assert state.multi_get([("a",)]) == [1]


def test_a_writer_that_was_replaced_writes_no_columns() -> None:
    data = numbers()
    old, new = opened(data), opened(data)
    old.begin_commit(Txid(1, 1, incarnation="log"))
    new.begin_commit(Txid(1, 2, incarnation="log"))
    with pytest.raises(FencedError, match="put 1 keys to memory"):
        old.multi_combine([["a"]], np.array([1]), "sum")
    assert len(data) == 0


def test_only_opaque_states_without_a_bound_take_columns() -> None:
    def backing(factory: Any) -> Any:
        return factory.make_state(StateConf(state="s"), 0, 1).map_state.backing

    kinds = [StateType.OPAQUE, StateType.TRANSACTIONAL, StateType.NON_TRANSACTIONAL]
    takes = [backing(MemoryMapState(kind=kind)).facts.keeps_columns for kind in kinds]
    assert (takes, backing(LRUMemoryMapState(2)).facts.keeps_columns) == ([True, False, False], False)
    assert not OpaqueMap(DictMap()).facts.keeps_columns


# ---- rows ------------------------------------------------------------------------------------------------------------


def value(number: Any) -> OpaqueValue:
    return OpaqueValue(1, 1, None, number)


def put(columns: NumberTable, keys: Sequence[Any], *numbers: Any) -> bool:
    return columns.put([(each,) for each in keys], [value(number) for number in numbers])


def test_rows_of_deleted_keys_are_used_again_and_columns_grow() -> None:
    columns = NumberTable(1, BIGINT)
    many = list(range(5000))
    assert put(columns, many, *many)
    columns.delete([(2,), (4000,), ("never",), ("two", "parts")])
    assert columns.get([(2,), (3,), (4000,)]) == [None, value(3), None]
    assert put(columns, ["x", "y", "z", "x"], 1, 2, 3, 4)
    assert columns.get([("x",), ("y",), ("z",), (4999,)]) == [value(4), value(2), value(3), value(4999)]
    assert (len(columns), columns.keys()[-3:]) == (5001, [("x",), ("y",), ("z",)])
    left = {(each,): value(each) for each in many if each not in (2, 4000)}
    assert columns.entries() == left | {("x",): value(4), ("y",): value(2), ("z",): value(3)}


def combined(columns: NumberTable, txid: int, *keys: Any) -> list[int]:
    found = columns.find(KeyColumns([pa.array(keys, pa.string())]))
    assert found is not None
    new = found.combine_with(pa.array(range(1, len(keys) + 1)), "sum", Txid(txid, 1))
    assert new is not None
    columns.put_found(new)
    return as_list(new.currs)


def test_keys_that_come_go_and_come_back_are_found_in_either_way() -> None:
    columns = NumberTable(1, BIGINT)
    assert combined(columns, 1, "a", None, "b", "ü") == [1, 2, 3, 4]
    assert combined(columns, 2, "b", "a") == [4, 3]
    assert combined(columns, 3, None, "b", "a") == [3, 6, 6]
    assert combined(columns, 4, "ü", "new", "b", "a") == [5, 2, 9, 10]
    columns.delete([("a",)])
    assert combined(columns, 5, "b", "a", "z") == [10, 2, 3]  # in the row that "a" left, and a new one
    assert [value and value.curr for value in columns.get([("a",), ("b",), ("z",), (None,)])] == [2, 10, 3, 3]


def test_bytes_are_not_taken_for_a_text() -> None:
    columns = NumberTable(1, BIGINT)
    assert put(columns, [b"a"], 1)
    assert put(columns, ["a"], 2)
    for txid, stood in ((2, 2), (3, 3), (4, 4)):
        assert combined(columns, txid, "a") == [stood + 1]
    assert [each and each.curr for each in columns.get([(b"a",), ("a",)])] == [1, 5]


def test_a_state_whose_keys_are_all_deleted_goes_on() -> None:
    columns = NumberTable(1, BIGINT)
    for txid in (1, 2):
        combined(columns, txid, "a", "b")
    columns.delete([("a",), ("b",)])
    assert combined(columns, 3, "b", "a") == [1, 2]
    assert combined(columns, 4, "b", "a") == [2, 4]


def test_a_number_of_another_type_is_not_taken() -> None:
    columns = NumberTable(1, DOUBLE)
    assert put(columns, ["a", "b"], None, 0.5)
    assert not put(columns, ["c"], 1)
    assert not put(columns, ["c", "d"], 0.5, 1)
    assert not columns.put([("c", "d")], [value(0.5)])
    assert columns.get([("a",), ("b",), ("c",)]) == [value(None), value(0.5), None]
    assert columns.find(KeyColumns([["a"], ["b"]])) is None
