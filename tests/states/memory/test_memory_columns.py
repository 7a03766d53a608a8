"""Opaque numbers in columns: whatever is committed, fails, is removed or does not fit, a plain dict gives the same."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from states.memory import ColumnarMemoryMap, LRUMemoryMapState, MemoryData, MemoryMapState
from tests.harness.column_schedules import ColumnPromises, Update, commits_by_columns
from tests.harness.crashing_stores import DictMap
from trident.errors import FencedError
from trident.operations import Max, Min, Sum
from trident.state import OpaqueMap, OpaqueValue, StateConf, StateType, Txid
from trident.state.number_columns import NumberForm
from trident.state.number_table import NumberTable
from trident.state.table import KeyColumns, as_list
from trident.state.values import CombinerUpdates
from trident.testing import InjectedFault

pytestmark = pytest.mark.usefixtures("always_columns")

COMBINE = {"sum": Sum().combine, "min": Min().combine, "max": Max().combine}
MOST = (1 << 63) - 1


# ---- one schedule, two maps ------------------------------------------------------------------------------------------

REALS = [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, 1e308]
NUMBERS: dict[str, list[Any]] = {"bigint": [*range(-9, 10), MOST, -MOST - 1, MOST // 2 + 1], "double": REALS}
ODD: list[Any] = [None, *REALS, True, "", "x", MOST + 1]
WORDS = [*"abcdef", None]


def key(part: Any, width: int) -> tuple[Any, ...]:
    return (part, 1)[:width]


def update_as(numbers: list[Any], width: int, by_arrow: bool) -> Update:
    """Return what does one update of a commit; `put odd` puts what no column of numbers takes."""

    def update(state: Any, what: str, batch: dict[Any, int]) -> tuple[Any, bool]:
        keys, values = [key(part, width) for part in batch], [numbers[at % len(numbers)] for at in batch.values()]
        if what == "remove":
            return state.multi_remove(keys), False
        if what.startswith("put"):
            odd = [ODD[at % len(ODD)] for at in batch.values()]
            return state.multi_put(keys, odd if what == "put odd" else values), False
        parts: list[Any] = [list(batch), [1] * len(keys)][:width]
        if by_arrow:
            parts = [pa.array(part) for part in parts]
        new = state.multi_combine(parts, np.array(values, np.float64 if numbers is REALS else np.int64), what)
        if new is not None:
            return new.tolist(), True
        return state.multi_update(keys, CombinerUpdates(combine_of(what), values)), False

    return update


def combine_of(what: str) -> Any:
    def combine(stored: Any, value: Any) -> Any:  # an aggregator meets no text in real life
        return value if isinstance(stored, str) else COMBINE[what](stored, value)

    return combine


def check_schedule(dice: random.Random, backing: Any, update: Update, calls: list[str], width: int, words: Any) -> int:
    """Commit, fail and forget at random over a map of columns and over a dict; return how often it went by columns."""
    keys = [key(part, width) for part in words]
    return commits_by_columns(dice, lambda: OpaqueMap(backing), "state", update, calls, words, range(1000), keys)


@pytest.mark.slow
@pytest.mark.parametrize("odd", [[], ["put odd"]], ids=["numbers", "and others"])
@pytest.mark.parametrize(("width", "by_arrow"), [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("value_type", NUMBERS)
def test_columns_and_a_dict_tell_the_same_of_any_schedule(
    value_type: str, width: int, by_arrow: bool, odd: list[str]
) -> None:
    dice, columns = random.Random(f"{value_type} {width} {by_arrow} {odd}"), 0
    update = update_as(NUMBERS[value_type], width, by_arrow)
    for _ in range(3):
        memory = ColumnarMemoryMap(MemoryData(form=NumberForm.of(value_type)))
        calls = ["sum"] * 12 + ["min", "max", "put", "remove", *odd]
        columns += check_schedule(dice, memory, update, calls, width, WORDS)
    assert columns


# ---- what columns hold, and what they do not ---------------------------------------------------------------------------


BIGINT, DOUBLE = NumberForm(("bigint",)), NumberForm(("double",))


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
