"""Values and keys of every Spark type, as they come out of a pipeline, come back from a store of bytes as they were."""

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import run_all, start
from tests.state.samples import same
from trident import TridentTopology, TridentTuple
from trident.arrow import array_of, arrow_type, python_of
from trident.operations import CombinerAggregator
from trident.state import CodecSerializer, Key, SerializedMap, StateConf, decode, encode, map_state

NAIVE = st.datetimes()
FLOATS = st.floats() | st.sampled_from([math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324])
TEXTS = st.text() | st.sampled_from(["", "\x00", "x" * (1 << 20)])


def ints(bits: int) -> st.SearchStrategy[int]:
    """Draw whole numbers of a width, its ends among them."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1])


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Draw decimals that fit, the longest among them."""
    most = 10**precision - 1
    whole = st.integers(-most, most) | st.sampled_from([most, -most, 0, 1])
    return whole.map(lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale)))


KEY_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": ints(8),
    "smallint": ints(16),
    "int": ints(32),
    "bigint": ints(64),
    "float": st.floats(width=32),
    "double": FLOATS,
    "decimal(38,18)": decimals(38, 18),
    "decimal(10,2)": decimals(10, 2),
    "decimal(38,0)": decimals(38, 0),
    "string": TEXTS,
    "binary": st.binary() | st.just(b"\xff" * (1 << 20)),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": NAIVE,
}
NESTED_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "array<double>": st.lists(FLOATS | st.none(), max_size=3),
    "array<array<string>>": st.lists(st.lists(st.text(), max_size=2), max_size=2),
    "map<string,int>": st.dictionaries(st.text(), ints(32) | st.none(), max_size=3),
    "struct<a:int,b:string>": st.fixed_dictionaries({"a": ints(32) | st.none(), "b": st.text() | st.none()}),
    "struct<a:array<struct<t:timestamp>>,m:map<date,decimal(38,18)>>": st.fixed_dictionaries(
        {
            "a": st.lists(st.fixed_dictionaries({"t": st.datetimes(timezones=st.just(dt.UTC))}), max_size=2),
            "m": st.dictionaries(st.dates(), decimals(38, 18), max_size=2),
        }
    ),
}
ALL_TYPES = {**KEY_TYPES, **NESTED_TYPES}


def from_pipeline(ddl: str, values: Sequence[Any]) -> list[Any]:
    """Return values as the framework takes them out of its tables."""
    return python_of(array_of("v", arrow_type(ddl), values))


@pytest.mark.sample(8)
@pytest.mark.parametrize("ddl", ALL_TYPES)
@settings(max_examples=30)
@given(st.data())
def test_values_come_back_from_the_codec_and_fit_their_type(ddl: str, data: st.DataObject) -> None:
    values = from_pipeline(ddl, data.draw(st.lists(ALL_TYPES[ddl] | st.none(), max_size=3)))
    back = [decode(encode(value)) for value in values]
    assert same(back, values)
    assert same(from_pipeline(ddl, back), values)


class Last(CombinerAggregator[Any]):
    """Keeps the last value, of whatever type."""

    def __init__(self, ddl: str) -> None:
        self.output_types = (ddl,)

    def init(self, tuple: TridentTuple) -> Any:
        return tuple[0]

    def combine(self, val1: Any, val2: Any) -> Any:
        return val2

    def zero(self) -> None:
        return None


SAMPLES: dict[str, Any] = {
    "tinyint": -128,
    "smallint": 32_767,
    "int": -(1 << 31),
    "bigint": (1 << 63) - 1,
    "float": 0.5,
    "double": -math.inf,
    "decimal(38,18)": Decimal("-12345678901234567890.123456789012345678"),
    "string": "ž\x00" * 10,
    "binary": b"\x00\xff",
    "boolean": True,
    "date": dt.date(1, 1, 1),
    "timestamp": dt.datetime(2024, 10, 27, 0, 30, 0, 1, dt.UTC),
    "timestamp_ntz": dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    "array<double>": [1.5, None, -0.0],
    "map<string,int>": {"a": 1, "b": None},
    "struct<a:int,b:string>": {"a": 1, "b": None},
}


def open_bytes(entries: dict[Key, Any]) -> Any:
    """Return the factory of a state that keeps bytes."""

    def open_map(conf: StateConf, partition: int, count: int) -> SerializedMap:
        return SerializedMap(DictMap(entries), CodecSerializer())

    return map_state(open_map)


@pytest.mark.parametrize("ddl", SAMPLES)
def test_a_topology_stores_each_type_as_key_and_as_value(ddl: str, tmp_path: Path) -> None:
    entries: dict[Key, Any] = {}
    key_ddl = ddl if ddl in KEY_TYPES else "string"
    key = SAMPLES[key_ddl]
    topology = TridentTopology("types")
    spout = FixedBatchSpout([f"k: {key_ddl}", f"v: {ddl}"], 1, (key, SAMPLES[ddl]), (key, SAMPLES[ddl]))
    stream = topology.new_stream("rows", spout).group_by("k")
    stream.persistent_aggregate(open_bytes(entries), "v", Last(ddl), "last")
    with run_all(topology, "in_process", log_dir=str(tmp_path)) as running:
        (found,) = running.state("last").multi_get([key])
    (expected,) = from_pipeline(ddl, [SAMPLES[ddl]])
    assert same(found, expected)


def test_a_map_is_a_dictionary_wherever_python_sees_it(tmp_path: Path) -> None:
    """To operations, aggregates and readers, whatever store keeps it: Arrow has lists of pairs."""
    seen: list[Any] = []
    ddl, nested = "map<string,array<map<int,int>>>", {"all": [{1: None}], "none": []}

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    topology = TridentTopology("maps")
    stream = topology.new_stream("rows", FixedBatchSpout(f"m: {ddl}", 1, [nested])).each("m", look, f"made: {ddl}")
    stores = {"memory": MemoryMapState.opaque(), "delta": DeltaState.opaque(tmp_path / "table")}
    for name, store in stores.items():
        stream.persistent_aggregate(store, "made", Last(ddl), name, state_name=name)
    stream.peek(lambda row: seen.extend(row.values))
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        seen += [running.state(name).get() for name in stores]
    assert seen == [nested] * 5


def test_a_map_whose_keys_no_dictionary_can_have_is_a_list_of_pairs() -> None:
    values = pa.array([[({"a": 1}, [(3, 4)])], None], arrow_type("map<struct<a:int>,map<int,int>>"))
    assert python_of(values) == [[({"a": 1}, {3: 4})], None]
