"""A state in Cassandra whose fields are columns: what others see of it, and what is found of foreign hands."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.cassandra import CassandraOptions, CassandraState
from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.column_statements import ColumnStatements
from states.cassandra.cql_columns import CqlColumns, columns_of
from states.cassandra.stamps import timestamp
from tests.harness.servers import Server
from tests.harness.store_commits import update, values
from tests.states.cassandra.cassandra_states import EPOCH, KINDS, Home, Log, commit, names
from tests.stores.catalog import STORES
from trident import TridentTopology, open_state
from trident.errors import (
    BackendError,
    ConfigError,
    CorruptValueError,
    FencedError,
    StateError,
    StateLossDetected,
    StateMismatchError,
    StatePlaceError,
)
from trident.operations import Count, Split
from trident.state import Key, Sentinel, Snapshot, StateConf, StateType
from trident.state.values import OpaqueValue
from trident.testing import FencedMapContract, MapStateContract, SnapshottableContract

pytestmark = pytest.mark.server

COLUMNS: dict[str, Any] = {"table": None, "layout": "columns"}


class Tables:
    """States of counts in tables with columns, and CQL beside them."""

    def __init__(self, home: Home, cql: CassandraConnection) -> None:
        self._home, self._cql = home, cql
        self.options = replace(home.options, **COLUMNS)

    def conf(self, *keys: str, value: str = "bigint", **more: Any) -> StateConf:
        """Return a state that no other test uses: its key fields as `name: type`."""
        fields = tuple((name, type_) for name, _, type_ in (key.partition(": ") for key in keys or ("word: string",)))
        return StateConf("plain", f"s{next(names)}", fields, value, value_field="count", **more)

    def state(self, conf: StateConf, kind: StateType = StateType.OPAQUE, partition: int = 0, **options: Any) -> Any:
        made = KINDS[kind](replace(self.options, **options)).factory.make_state(conf, partition, 2)
        self._home._opened.append(made)
        return made

    def table(self, conf: StateConf) -> str:
        return f"tests.plain_{conf.state}"

    def cql(self, statement: str) -> list[tuple[Any, ...]]:
        return self._cql.execute(statement, "look")


@pytest.fixture
def tables(home: Home, cql: CassandraConnection) -> Tables:
    return Tables(home, cql)


# ---- what others see -------------------------------------------------------------------------------------------------


def test_a_colleague_reads_names_types_and_values(tables: Tables, tmp_path: Path) -> None:
    name = f"words{next(names)}"
    topology = TridentTopology(name)
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 1, ("the cow",), ("the moon",)))
    words = lines.each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(
        CassandraState.opaque(tables.options, num_partitions=2), Count(), "count"
    )
    words.persistent_aggregate(CassandraState.transactional(tables.options), Count(), "total")
    own = "trident_txid bigint, trident_attempt bigint, trident_before bigint"
    assert f"stored as columns word text, count bigint, {own}" in topology.explain()
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        assert sorted(running.state("count").get_tuples()) == [("cow", 1), ("moon", 1), ("the", 2)]
    table = f"{name}_count"
    described = tables.cql(
        f"SELECT column_name, kind, type FROM system_schema.columns WHERE keyspace_name = 'tests' AND table_name = '{table}'"
    )
    assert ("word", "partition_key", "text") in described
    assert ("count", "regular", "bigint") in described
    assert tables.cql(f"SELECT count FROM tests.{table} WHERE word = 'the'") == [(2,)]
    columns = "word, count, trident_txid, trident_attempt, trident_before"
    assert sorted(tables.cql(f"SELECT {columns} FROM tests.{table}")) == [
        ("cow", 1, 1, EPOCH, None), ("moon", 1, 2, EPOCH, None), ("the", 2, 2, EPOCH, 1),
    ]  # fmt: skip
    assert tables.cql(f"SELECT key, total, trident_txid FROM tests.{name}_total") == [("$GLOBAL$", 4, 2)]
    with open_state(topology, "count", log_dir=str(tmp_path / "log")) as reader:
        assert reader.multi_get(["the", "cow", "dish"]) == [2, 1, None]


def test_an_opaque_row_is_what_the_kind_stores_and_a_replay_counts_once(tables: Tables) -> None:
    state, log = tables.state(tables.conf()), Log()
    commit(state, log, 1, {"man": 3, "dog": 4}, attempt=1)
    commit(state, log, 2, {"man": 1, "apple": 9}, attempt=1, record=False)
    commit(state, log, 2, {"man": 2}, attempt=2)  # the replay has other rows
    assert values(state, "man", "dog", "none") == [5, 4, None]
    assert state.map_state.backing.multi_get([("man",), ("none",)]) == [OpaqueValue(2, EPOCH + 2, 3, 5), None]
    assert state.multi_get_at([("apple",)], Snapshot(2, log.winners)) == [None]


MOMENT = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
TYPES: dict[str, tuple[str, list[Any]]] = {
    "string": ("text", ["", "a\0b", "汉👩‍👧", "x" * 3000]),
    "bigint": ("bigint", [2**63 - 1, -(2**63), 0]),
    "int": ("int", [2**31 - 1, -(2**31)]),
    "smallint": ("smallint", [2**15 - 1, -(2**15)]),
    "tinyint": ("tinyint", [127, -128]),
    "double": ("double", [0.1, -math.inf, 5e-324, math.nan]),
    "float": ("double", [0.1, 1e300]),
    "boolean": ("boolean", [True, False]),
    "decimal(10,2)": ("decimal", [Decimal("1.50"), Decimal("-99999999.99"), Decimal("0.00"), Decimal("1.28")]),
    "decimal(38,0)": ("decimal", [Decimal("9" * 38), Decimal("-128")]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": ("timestamp", [MOMENT, dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.UTC)]),
    "binary": ("blob", [b"", b"\0\xff"]),
    "array<double>": ("text", [[], [0.5, None, math.inf, 1.0]]),
    "struct<a:string,b:bigint>": ("text, bigint", [{"a": "x", "b": 1}, {"a": None, "b": None}, None]),
}


@pytest.mark.parametrize("type_", TYPES)
def test_values_of_all_types_come_back_as_they_were(tables: Tables, type_: str) -> None:
    shown, samples = TYPES[type_]
    conf, log = tables.conf(value=type_), Log()
    state = tables.state(conf)
    keys, given = [(str(at),) for at in range(len(samples))], [*samples[1:], samples[0]]
    for number, each in enumerate((samples, given), 1):
        txid = log.txid(number)
        state.begin_commit(txid)
        state.multi_put(keys, each)
        state.commit(txid)
        log.record(txid)
    assert repr(state.multi_get(keys)) == repr(given)
    assert repr(state.multi_get_at(keys, Snapshot(1, log.winners))) == repr(samples)
    types = dict(
        tables.cql(
            "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = 'tests' AND table_name = "
            f"'plain_{conf.state}'"
        )
    )
    assert ", ".join(types[name] for name in (("a", "b") if type_.startswith("struct") else ("count",))) == shown


def test_keys_of_all_types_are_found_and_listed(tables: Tables) -> None:
    fields = {type_: samples for type_, (_, samples) in TYPES.items() if "<" not in type_}
    conf = tables.conf(*(f"k{at}: {type_}" for at, type_ in enumerate(fields)))
    state, log = tables.state(conf), Log()
    keys: list[Key] = [tuple(samples[at % len(samples)] for samples in fields.values()) for at in range(4)]
    keys = [tuple(0.5 if part in (0.1, 1e300) else part for part in key) for key in keys]  # a float of a key has 32 bits
    keys = [tuple(math.nan if part != part else part for part in key) for key in keys]
    commit(state, log, 1, dict.fromkeys(keys, 1))
    commit(state, log, 2, dict.fromkeys(keys, 1))
    assert state.multi_get(keys) == [2] * 4
    listed = {repr(state.multi_get([key])) for page in state.key_pages() for key in page}
    assert listed == {"[2]"}
    assert sum(len(page) for page in state.key_pages()) == 4


def test_the_owner_reads_a_row_by_two_fields(tables: Tables) -> None:
    conf = tables.conf("Shop: string", "day: date")
    state = tables.state(conf)
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=n) for n in range(70)]
    rows = {(shop, day): at for shop in ("oslo", "wien") for at, day in enumerate(days)}
    commit(state, Log(), 1, rows)
    assert state.multi_get(list(rows)) == list(rows.values())
    found = f"""SELECT count FROM {tables.table(conf)} WHERE "Shop" = 'wien' AND day = '2026-01-03'"""
    assert tables.cql(found) == [(2,)]


def test_keys_are_listed_once_in_pages_and_a_removed_one_is_gone(tables: Tables) -> None:
    state = tables.state(tables.conf("n: bigint"))
    keys = [(n,) for n in range(2_345)]
    commit(state, Log(), 1, dict.fromkeys(keys, 1))
    pages = [list(page) for page in state.key_pages()]
    assert [len(page) for page in pages] == [1000, 1000, 345]
    assert sorted(key for page in pages for key in page) == keys
    backing = state.map_state.backing
    backing.move_sentinel(Sentinel("log", 2, EPOCH, "", False))
    backing.multi_delete(keys[5:])
    assert backing.multi_get(keys)[4:6] == [OpaqueValue(1, EPOCH, None, 1), None]
    assert sorted(key for page in state.key_pages() for key in page) == keys[:5]
