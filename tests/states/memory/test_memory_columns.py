"""States in memory that are columns of numbers and structs: whatever is done to them, a dict gives the same."""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from states.memory import ColumnarMemoryMap, LRUMemoryMapState, MemoryBackingMap, MemoryData, MemoryMapState
from tests.harness.column_schedules import ColumnPromises, Update, commits_by_columns
from tests.harness.crashing_stores import DictMap
from trident import Fields
from trident.errors import FencedError
from trident.fields import struct_fields
from trident.operations import Avg, Count, Max, Min, Sum
from trident.operations.adapters import aggregate_type
from trident.operations.several import several, value_of
from trident.state import CodecSerializer, OpaqueMap, OpaqueValue, SerializedMap, StateConf, StateType, Txid
from trident.state.number_columns import NumberColumn, NumberForm
from trident.state.number_table import NumberTable
from trident.state.table import KeyColumns, as_list
from trident.state.values import CombinerUpdates
from trident.steps.aggregates import is_native, merging_function
from trident.testing import InjectedFault

pytestmark = pytest.mark.usefixtures("always_columns")

COMBINE = {"sum": Sum().combine, "min": Min().combine, "max": Max().combine}
MOST = (1 << 63) - 1


FLOATS = [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, 1e308]
NUMBERS: dict[str, list[Any]] = {"bigint": [*range(-9, 10), MOST, -MOST - 1, MOST // 2 + 1], "double": FLOATS}
ODD: list[Any] = [None, *FLOATS, True, "", "x", MOST + 1]
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
        new = state.multi_combine(parts, np.array(values, np.float64 if numbers is FLOATS else np.int64), what)
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
def test_columns_of_numbers_and_a_dict_tell_the_same_of_any_schedule(
    value_type: str, width: int, by_arrow: bool, odd: list[str]
) -> None:
    dice, columns = random.Random(f"{value_type} {width} {by_arrow} {odd}"), 0
    update = update_as(NUMBERS[value_type], width, by_arrow)
    for _ in range(3):
        memory = ColumnarMemoryMap(MemoryData(form=NumberForm.of(value_type)))
        calls = ["sum"] * 12 + ["min", "max", "put", "remove", *odd]
        columns += check_schedule(dice, memory, update, calls, width, WORDS)
    assert columns


BIGINT, DOUBLE = NumberForm(("bigint",)), NumberForm(("double",))


def numbers() -> MemoryData:
    return MemoryData(form=BIGINT)


def opened(data: MemoryData) -> OpaqueMap:
    return OpaqueMap(ColumnarMemoryMap(data))


def summed_up(state: OpaqueMap, txid: int, **values: Any) -> list[Any] | None:
    state.begin_commit(txid)
    new = state.multi_combine([list(values)], np.array(list(values.values())), "sum")
    state.commit(txid)
    return None if new is None else new.tolist()


def test_a_dict_stays_one_until_a_commit_of_many_keys_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.state.number_table._FEW_KEYS", 2)
    data = numbers()
    state = opened(data)
    assert summed_up(state, 1, a=1, b=2) is None
    assert data.values.columns is None
    assert summed_up(state, 2, a=1, b=2, c=3) == [1, 2, 3]
    assert summed_up(state, 3, a=1) == [2]
    assert data.values.columns is not None


def test_what_was_there_before_the_first_columns_stays() -> None:
    data = numbers()
    state = opened(data)
    state.begin_commit(1)
    state.multi_put([("a",), ("gone",)], [5, None])
    state.commit(1)
    assert data.values.columns is None
    assert summed_up(state, 2, a=1, b=2) == [6, 2]
    assert (data.values.columns is not None, data.values.entries, len(data)) == (True, {}, 3)
    stored = [OpaqueValue(2, 0, 5, 6), OpaqueValue(1, 0, None, None), OpaqueValue(2, 0, None, 2), None]
    assert state.backing.multi_get([("a",), ("gone",), ("b",), ("never",)]) == stored


@pytest.mark.parametrize("odd", ["text", [1], True, 1.5, MOST + 1, (1, 2)])
def test_a_value_that_does_not_fit_makes_the_partition_a_dict_for_good(odd: Any) -> None:
    data = numbers()
    state = opened(data)
    assert summed_up(state, 1, a=1, b=2) == [1, 2]
    state.begin_commit(2)
    state.multi_put([("b",)], [odd])
    state.commit(2)
    assert (data.values.columns, len(data)) == (None, 2)
    assert state.multi_get([("a",), ("b",)]) == [1, odd]
    assert summed_up(state, 3, a=1) is None
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
    summed_up(state, 1, a=1)
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
    assert put(columns, ["u", "v"], 5, 6)
    assert columns.get([("x",), ("u",), ("v",)]) == [value(4), value(5), value(6)]


def combined(columns: NumberTable, txid: int, *keys: Any) -> list[int]:
    found = columns.find(KeyColumns([pa.array(keys, pa.string())]))
    assert found is not None
    new = found.combine_with(pa.array(range(1, len(keys) + 1)), "sum", Txid(txid, 1))
    assert new is not None
    columns.put_found(new)
    return as_list(new.currs)


def test_bytes_are_not_taken_for_a_text() -> None:
    columns = NumberTable(1, BIGINT)
    assert put(columns, [b"a"], 1)
    assert put(columns, ["a"], 2)
    for txid, stood in ((2, 2), (3, 3), (4, 4)):
        assert combined(columns, txid, "a") == [stood + 1]
    assert [each and each.curr for each in columns.get([(b"a",), ("a",)])] == [1, 5]


def test_a_number_of_another_type_is_not_taken() -> None:
    columns = NumberTable(1, DOUBLE)
    assert put(columns, ["a", "b"], None, 0.5)
    assert not put(columns, ["c"], 1)
    assert not put(columns, ["c", "d"], 0.5, 1)
    assert not columns.put([("c", "d")], [value(0.5)])
    assert columns.get([("a",), ("b",), ("c",)]) == [value(None), value(0.5), None]
    assert columns.find(KeyColumns([["a"], ["b"]])) is None


GIVEN = {"rows": Count(), "sum": Sum("n"), "mean": Avg("n"), "means": Avg("d"), "least": Min("d"), "most": Max("n")}
FIELDS = Fields("n: bigint, d: double")
TOGETHER = several(GIVEN, FIELDS, "s", aggregate_type)
TYPE = value_of(TOGETHER, "value").types[0] or ""
FORM = NumberForm.of(TYPE) or NumberForm(())
FUNCTIONS: Any = merging_function(TOGETHER)
ARROW = pa.struct(
    [(name, {"bigint": pa.int64(), "double": pa.float64()}[type_]) for name, type_ in struct_fields(TYPE)]
)


def value_with(rows: int, total: int, real: float, least: float | None, count: int) -> dict[str, Any]:
    """Return a partial; a mean of no values is None, with a sum of 0."""
    none = count == 0
    return {
        "rows": rows,
        "sum": total,
        "mean": None if none else total / count,
        "mean_sum": 0 if none else total,
        "mean_count": count,
        "means": None if none else real / count,
        "means_sum": 0.0 if none else real,
        "means_count": count,
        "least": least,
        "most": total,
    }


SOME = [value_with(1, 5, 0.5, -0.0, 1), value_with(2, -7, 2.25, 1e308, 2), value_with(3, (1 << 53) + 1, -1.5, 0.0, 0)]

REALS = [0.0, -0.0, 1.5, -2.25, math.inf, math.nan, 1e308]
TOTALS = [*range(-9, 10), MOST, -MOST - 1, (1 << 53) + 1, MOST // 2 + 1]


def drawn(dice: random.Random) -> dict[str, Any]:
    real, least = dice.choices(REALS, k=2)
    return value_with(dice.randint(1, 5), dice.choice(TOTALS), real, least, dice.randint(0, 3))


def update(state: Any, what: str, batch: dict[Any, Any], width: int = 1) -> tuple[Any, bool]:
    """Do one update of a commit, as `Update` of `column_schedules`."""
    keys, values = [key(part, width) for part in batch], list(batch.values())
    if what == "put":
        return state.multi_put(keys, values), False
    if what == "remove":
        return state.multi_remove(keys), False
    parts: list[Any] = [pa.array(list(batch), pa.string())] + [[1] * len(keys)] * (width - 1)
    new = state.multi_combine(parts, pa.array(values, ARROW), FUNCTIONS)
    if new is not None:
        return new.tolist(), True
    return state.multi_update(keys, CombinerUpdates(combine, values)), False


def combine(stored: Any, value: Any) -> Any:
    odd = not isinstance(stored, dict) or "other" in stored  # which an aggregator meets in no state of its own
    return value if odd else TOGETHER.combine(stored, value)


@pytest.mark.slow
@pytest.mark.parametrize("odd", [[], ["odd"]], ids=["structs", "and others"])
@pytest.mark.parametrize("is_of_bytes", [False, True])
@pytest.mark.parametrize("width", [1, 2])
def test_columns_and_a_dict_tell_the_same_of_any_schedule(width: int, is_of_bytes: bool, odd: list[str]) -> None:
    dice, columns = random.Random(f"{width} {is_of_bytes} {odd}"), 0
    values = [drawn(dice) for _ in range(1000)]

    def update_by(state: Any, what: str, batch: dict[Any, int]) -> tuple[Any, bool]:
        if what == "odd":
            return update(state, "put", {word: [None, 7, {"other": 1}][at % 3] for word, at in batch.items()}, width)
        without = {"least": None} if what == "put" and len(batch) == 2 else {}
        return update(state, what, {word: {**values[at], **without} for word, at in batch.items()}, width)

    for _ in range(3):
        packed = SerializedMap(MemoryBackingMap(MemoryData()), CodecSerializer(), TYPE)
        backing = packed if is_of_bytes else ColumnarMemoryMap(MemoryData(form=FORM))
        calls = ["combine"] * 4 + ["put", "remove", *odd]
        columns += check_schedule(dice, backing, update_by, calls, width, WORDS)
    assert columns


def summed(state: OpaqueMap, txid: int, values: Sequence[dict[str, Any]], functions: Any = FUNCTIONS) -> Any:
    state.begin_commit(txid)
    keys = [f"k{at}" for at in range(len(values))]
    new = state.multi_combine([keys], pa.array(values, ARROW), functions)
    state.commit(txid)
    return None if new is None else new.tolist()


def test_a_sum_beyond_64_bits_is_left_to_python_and_nothing_is_written() -> None:
    data = MemoryData(form=FORM)
    state, most = OpaqueMap(ColumnarMemoryMap(data)), value_with(1, MOST, 0.5, 0.5, 1)
    assert summed(state, 1, [most]) == [most]
    assert summed(state, 2, [most]) is None
    assert state.multi_get([("k0",)]) == [most]
    assert data.values.columns is not None


def test_values_of_another_form_are_left_to_python() -> None:
    values = [value_with(1, 1, 1.0, 1.0, 1)]
    for form in (NumberForm.of("struct<rows:bigint>"), None):
        assert summed(opened(MemoryData(form=form)), 1, values) is None
    assert summed(opened(MemoryData(form=FORM)), 1, values, "sum") is None


@pytest.mark.parametrize("type_", ["string", "struct<>", "struct<a:string>", "struct<a:bigint,b:decimal(10,2)>"])
def test_only_whole_numbers_and_floats_and_structs_of_them_have_a_form(type_: str) -> None:
    assert NumberForm.of(type_) is None


def test_a_struct_comes_back_as_it_was() -> None:
    values = [None, value_with(1, 5, 0.5, None, 0), value_with(1, -1, math.inf, -0.0, 3)]
    column = NumberColumn.of(FORM, values)
    assert repr(column.tolist()) == repr(values) == repr(NumberColumn.of(FORM, pa.array(column)).tolist())
    assert pa.array(column).equals(pa.array(values, ARROW))
    for odd in ({"other": 1}, 7, value_with(True, 1, 1.0, 1.0, 1), value_with(1, 1, 1, 1.0, 1)):
        with pytest.raises(TypeError):
            NumberColumn.of(FORM, [*values, odd])


def test_the_kernels_know_all_of_these_aggregates() -> None:
    assert is_native(TOGETHER)
    assert FUNCTIONS == ("sum", "sum", "mean", "sum", "sum", "mean", "sum", "sum", "min", "max")
