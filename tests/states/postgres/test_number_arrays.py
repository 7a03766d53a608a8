"""Commits by columns to PostgreSQL: whatever is committed, fails, is removed or opened again, rows give the same."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from states.postgres.columns import Column
from states.postgres.typed_rows import _sizes
from tests.harness.column_schedules import (
    NUMBERS,
    ColumnPromises,
    commits_by_columns,
    number_keys,
    sum_by_columns,
    update_numbers,
)
from tests.states.memory.test_memory_columns import SOME, TYPE, update
from tests.states.postgres.postgres_states import Home, numbers
from trident import TridentTopology
from trident.arrow import arrow_type
from trident.errors import CorruptValueError
from trident.operations import Count
from trident.state import StateConf

WORDS = ["a", "b", "", "ä\0\ue000", "d" * 300, None]


@pytest.fixture(autouse=True)
def soon_deleted_and_always_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.state.map_commits.REMOVAL_LAG", 2)
    monkeypatch.setattr("states.postgres.typed_rows._MANY_KEYS", 1)


def conf_of(home: Home, value_type: str = "bigint", width: int = 1) -> StateConf:
    return home.conf(key_fields=(("word", "string"), ("n", "int"))[:width], value_type=value_type, value_field="count")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("value_type", "width", "options"), [
    ("bigint", 1, {}), ("double", 2, {"max_keys_per_call": 2}), ("bigint", 2, {"changes": 10}),
])  # fmt: skip
def test_columns_and_rows_tell_the_same_of_any_schedule(
    home: Home, value_type: str, width: int, options: dict[str, Any]
) -> None:
    conf, not_null = conf_of(home, value_type, width), number_keys(WORDS[:-1], width)  # a null is read by rows

    def look(state: Any) -> None:
        stored = state.map_state.backing.multi_get(not_null)
        assert repr(state.multi_get(not_null)) == repr([None if one is None else one.curr for one in stored])

    columns = commits_by_columns(
        random.Random(width), partial(home.state, conf, **options), conf.prefix, partial(update_numbers, width=width),
        ["sum", "sum", "sum", "min", "max", "put", "remove"], WORDS, NUMBERS[value_type], number_keys(WORDS, width),
        conf.prefix, look,
    )  # fmt: skip
    assert columns > 3


@pytest.mark.parametrize("options", [{}, {"max_keys_per_call": 2, "changes": 10}])
def test_structs_as_columns_and_rows_tell_the_same(home: Home, options: dict[str, Any]) -> None:
    conf = home.conf(key_fields=(("word", "string"),), value_type=TYPE, value_field="sales")
    columns = commits_by_columns(
        random.Random(f"{options}"), partial(home.state, conf, **options), conf.prefix, update,
        ["combine", "combine", "combine", "put", "remove"], WORDS, SOME, number_keys(WORDS, 1), conf.prefix,
    )  # fmt: skip
    assert columns > 3


def test_texts_of_a_part_of_an_array_have_their_own_sizes() -> None:
    part = Column.of("word", "string", True).array(pa.array(["long", "b", "", "cc"], pa.large_string()).slice(1))
    assert _sizes(part).tolist() == [1, 0, 2]


@pytest.mark.parametrize(("key_type", "column", "keys"), [
    ("bigint", "", [0, -1, 2**62]), ("smallint", "", [1, 2, -3]), ("tinyint", "", [1, 2, -3]), ("string", "", WORDS[:4]),
    ("int", "bigint", [0, -1, 2, 3]), ("smallint", "integer", [0, -1, 2, 3]), ("tinyint", "bigint", [0, -1, 2, 3]),
])  # fmt: skip
def test_a_batch_has_its_keys_as_an_arrow_array(home: Home, key_type: str, column: str, keys: list[Any]) -> None:
    conf = home.conf(key_fields=(("k", key_type),), value_type="bigint", value_field="count")
    if column:  # a wider one, of the user's
        home.sql(f'CREATE TABLE "{conf.prefix}" (k {column} PRIMARY KEY, count bigint)')
    state = home.state(conf)
    for txid in (1, 2):
        state.begin_commit(txid)
        new = state.multi_combine([pa.array(keys, arrow_type(key_type))], np.arange(len(keys)), "sum")
        assert new is not None
        assert new.tolist() == [txid * at for at in range(len(keys))]
        state.commit(txid)
    assert state.multi_get([(key,) for key in keys]) == [2 * at for at in range(len(keys))]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_keys_of_a_database_in_another_encoding_are_found(home: Home, encoding: str) -> None:
    name = f"other{next(numbers)}"
    home.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    conf, counts = conf_of(home), {f"é{number}": number for number in range(5)}
    state = PostgresState.opaque(home.url.replace("/postgres", f"/{name}")).factory.make_state(conf, 0, 1)
    for txid in (1, 2, 3):
        assert sum_by_columns(state, txid, **counts) == [txid * count for count in counts.values()]
    assert state.multi_get([(word,) for word in counts]) == [3 * count for count in counts.values()]
    state.close()


def test_a_row_of_another_program_is_named(home: Home) -> None:
    conf = conf_of(home)
    sum_by_columns(home.state(conf), 1, a=1)
    home.sql(f"INSERT INTO \"{conf.prefix}\" (word, count) VALUES ('b', 3)")
    state = home.state(conf)
    with pytest.raises(CorruptValueError, match=r"read key \('b',\): its row has no trident_txid"):
        state.multi_get([("a",), ("b",)])
    state.begin_commit(2)
    assert state.multi_combine([["a", "b"]], np.array([1, 1]), "sum") is None


class TestColumns(ColumnPromises):
    @pytest.fixture
    def again(self, home: Home) -> Any:
        conf = conf_of(home)
        return lambda value_type: home.state(replace(conf, value_type=value_type))

    def test_it_says_which_values_stay_columns(self, again: Any) -> None:
        types = ("bigint", TYPE, "int", "decimal(9,2)", "struct<a:string>")
        kept = [again(type_).facts.keeps_columns for type_ in types]
        assert kept == [True, True, False, False, False]


def test_a_topology_commits_by_columns(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("states.postgres.columns.Columns.arrays_of")  # what rows are written with
    topology = TridentTopology(f"columns{next(numbers)}")
    rows = FixedBatchSpout("word: string", 40, *[[f"word {number % 30}"] for number in range(120)])
    words = topology.new_stream("rows", rows).group_by("word")
    counts = words.persistent_aggregate(PostgresState.opaque(home.url), Count(), "count")
    with topology.start(engine="in_process", log_dir=str(tmp_path)) as running:
        running.process_all_available()
        assert running.state(counts).multi_get(["word 3", "none"]) == [4, None]
