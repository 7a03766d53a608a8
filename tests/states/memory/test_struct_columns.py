"""Several opaque numbers a key in columns: whatever is committed, fails, is removed or does not fit, a dict gives the same."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from states.memory import ColumnarMemoryMap, MemoryBackingMap, MemoryData
from tests.states.memory.test_memory_columns import MOST, WORDS, check_schedule, key
from trident import Fields
from trident.fields import struct_fields
from trident.operations import Avg, Count, Max, Min, Sum
from trident.operations.adapters import aggregate_type
from trident.operations.several import several, value_of
from trident.state import CodecSerializer, OpaqueMap, SerializedMap
from trident.state.number_columns import NumberColumn, NumberForm
from trident.state.values import CombinerUpdates
from trident.steps.aggregates import is_native, merging_function

pytestmark = pytest.mark.usefixtures("always_columns")

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


SOME = [
    value_with(1, 5, 0.5, -0.0, 1),
    value_with(2, -7, 2.25, 1e308, 2),
    value_with(3, (1 << 53) + 1, -1.5, 0.0, 0),
]

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
    other = MemoryData(form=NumberForm.of("struct<rows:bigint>"))
    assert summed(OpaqueMap(ColumnarMemoryMap(other)), 1, [value_with(1, 1, 1.0, 1.0, 1)]) is None
    assert summed(OpaqueMap(ColumnarMemoryMap(MemoryData())), 1, [value_with(1, 1, 1.0, 1.0, 1)]) is None
    assert (
        summed(OpaqueMap(ColumnarMemoryMap(MemoryData(form=FORM))), 1, [value_with(1, 1, 1.0, 1.0, 1)], "sum") is None
    )


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
