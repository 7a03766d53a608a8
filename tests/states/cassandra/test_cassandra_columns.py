"""A state in Cassandra whose fields are columns: what others see of it, and which states and keys have them."""

import datetime as dt
import math
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from spouts import FixedBatchSpout
from states.cassandra import CassandraOptions, CassandraState
from states.cassandra.cluster_session import CassandraConnection
from states.cassandra.cql_columns import columns_of
from states.cassandra.fence import timestamp
from tests.harness.store_commits import commit_by, update, values
from tests.states.cassandra.cassandra_states import EPOCH, Home, Log, commit, names
from trident import TridentTopology, open_state
from trident.errors import BackendError, ConfigError, CorruptValueError, FencedError, StateError, StateMismatchError
from trident.operations import Count, Split
from trident.state import Key, Sentinel, Snapshot, StateConf, StateType
from trident.state.values import OpaqueValue

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
        made = CassandraState.of_kind(kind, replace(self.options, **options), {}).factory.make_state(conf, partition, 2)
        self._home._opened.append(made)
        return made

    def table(self, conf: StateConf) -> str:
        return f"tests.plain_{conf.state}"

    def rows(self, select: str) -> list[tuple[Any, ...]]:
        """Return rows as an owner sees them, without those of records, which have no key."""
        return [row for row in self.cql(select) if row[0] is not None]

    def one(self, conf: StateConf, what: str, where: str) -> Any:
        """Return a column of the row that there is, in whichever bucket."""
        ((found,),) = self.cql(f"SELECT {what} FROM {self.table(conf)} WHERE {where} ALLOW FILTERING")
        return found

    def columns(self, table: str) -> dict[str, tuple[str, str]]:
        """Return the kind and the type of each column."""
        where = f"keyspace_name = 'tests' AND table_name = '{table}'"
        found = self.cql(f"SELECT column_name, kind, type FROM system_schema.columns WHERE {where}")
        return {name: (kind, type_) for name, kind, type_ in found}

    def bucket(self, conf: StateConf, key: bytes) -> str:
        return f"trident_state = '{conf.prefix}' AND trident_bucket = {crc32(key) % 128}"

    def cql(self, statement: str) -> list[tuple[Any, ...]]:
        return self._cql.execute(statement, "look")


@pytest.fixture
def tables(home: Home, cql: CassandraConnection) -> Tables:
    return Tables(home, cql)


def word_count(tables: Tables, name: str, *lines: str) -> TridentTopology:
    topology = TridentTopology(name)
    stream = topology.new_stream("lines", FixedBatchSpout("line: string", 1, *[(line,) for line in lines]))
    words, spec = stream.each("line", Split(), "word"), CassandraState.opaque(tables.options, num_partitions=2)
    words.group_by("word").persistent_aggregate(spec, Count(), "count")
    words.persistent_aggregate(CassandraState.transactional(tables.options), Count(), "total")
    return topology


def test_a_colleague_reads_names_types_and_values(tables: Tables, tmp_path: Path) -> None:
    name = f"words{next(names)}"
    topology = word_count(tables, name, "the cow", "the moon")
    own = "trident_txid bigint, trident_attempt bigint, trident_before bigint"
    assert f"stored as columns word text, count bigint, {own}" in topology.explain()
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        assert sorted(running.state("count").get_tuples()) == [("cow", 1), ("moon", 1), ("the", 2)]
    table = f"{name}_count"
    described = tables.columns(table)
    assert described["word"] == ("clustering", "text")
    assert described["count"] == ("regular", "bigint")
    bucket = f"trident_state = '{name}/count' AND trident_bucket = {crc32(b'the') % 128}"
    assert tables.cql(f"SELECT count FROM tests.{table} WHERE {bucket} AND word = 'the'") == [(2,)]
    columns = "word, count, trident_txid, trident_attempt, trident_before"
    assert sorted(tables.rows(f"SELECT {columns} FROM tests.{table}")) == [
        ("cow", 1, 1, EPOCH, None), ("moon", 1, 2, EPOCH, None), ("the", 2, 2, EPOCH, 1),
    ]  # fmt: skip
    assert tables.rows(f"SELECT key, total, trident_txid FROM tests.{name}_total") == [("$GLOBAL$", 4, 2)]
    with open_state(topology, "count", log_dir=str(tmp_path / "log")) as reader:
        assert reader.multi_get(["the", "cow", "dish"]) == [2, 1, None]
    topology = word_count(tables, name, "the cow", "the moon", "the dish")
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:  # it goes on where it stopped
        running.process_all_available()
        assert running.state("count").multi_get(["the", "cow", "dish"]) == [3, 1, 1]
        assert running.state("total").get() == 6


def test_the_other_kinds_keep_less_and_are_found_empty_too(tables: Tables) -> None:
    for kind, columns, twice in (
        (StateType.TRANSACTIONAL, "word, count, trident_txid", ("the", 3, 2)),
        (StateType.NON_TRANSACTIONAL, "word, count", ("the", 5)),
    ):
        conf, log = tables.conf(), Log()
        state = tables.state(conf, kind)
        commit(state, log, 1, {"the": 1})
        commit(state, log, 2, {"the": 2}, record=False)
        commit(state, log, 2, {"the": 2}, attempt=1)
        assert tables.rows(f"SELECT {columns} FROM {tables.table(conf)}") == [twice]
        assert list(state.get_tuples()) == [twice[:2]]
        tables.cql(f"TRUNCATE {tables.table(conf)}")
        with pytest.raises(StateMismatchError, match="the store has no commit at all"):
            state.begin_commit(log.txid(3, 1))


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


@pytest.mark.sample(3)
@pytest.mark.parametrize("type_", TYPES)
def test_values_of_all_types_come_back_as_they_were(tables: Tables, type_: str) -> None:
    shown, samples = TYPES[type_]
    conf, log = tables.conf(value=type_), Log()
    state = tables.state(conf)
    keys, given = [(str(at),) for at in range(len(samples))], [*samples[1:], samples[0]]
    for number, each in enumerate((samples, given), 1):
        commit_by(state, log, number, state.multi_put, keys, each)
    assert repr(state.multi_get(keys)) == repr(given)
    assert repr(state.multi_get_at(keys, Snapshot(1, log.winners))) == repr(samples)
    columns = tables.columns(f"plain_{conf.state}")
    assert ", ".join(columns[name][1] for name in (("a", "b") if type_.startswith("struct") else ("count",))) == shown


def test_keys_of_all_types_are_found_and_listed(tables: Tables) -> None:
    fields = {type_: samples for type_, (_, samples) in TYPES.items() if "<" not in type_}
    conf = tables.conf(*(f"k{at}: {type_}" for at, type_ in enumerate(fields)))
    state, log = tables.state(conf), Log()
    keys: list[Key] = [tuple(samples[at % len(samples)] for samples in fields.values()) for at in range(4)]
    # A float of a key has 32 bits.
    keys = [tuple(0.5 if part in (0.1, 1e300) else part for part in key) for key in keys]
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
    assert tables.one(conf, "count", """"Shop" = 'wien' AND day = '2026-01-03'""") == 2
    gone = [key for key in rows if key[0] == "oslo"]
    backing = state.map_state.backing
    backing.move_sentinel(Sentinel("log", 2, EPOCH, "", False))
    backing.multi_delete(gone)
    assert sorted(key for page in state.key_pages() for key in page) == [("wien", day) for day in days]


def test_a_ttl_goes_with_every_row(tables: Tables) -> None:
    conf, log = tables.conf(), Log()
    state = tables.state(conf, ttl_s=100_000)
    commit(state, log, 1, {"cow": 5})
    assert 99_000 < tables.one(conf, "TTL(count)", "word = 'cow'") <= 100_000


def test_a_null_in_a_key_is_refused_and_never_there(tables: Tables) -> None:
    state, log = tables.state(tables.conf()), Log()
    commit(state, log, 1, {("cow",): 1})
    with pytest.raises(BackendError, match=r"write key \(None,\): Cassandra takes no null in a primary key") as failure:
        commit(state, log, 2, {(None,): 1, ("cow",): 1})
    assert not failure.value.retryable
    assert state.multi_get([(None,), ("cow",)]) == [None, 1]
    state.map_state.backing.multi_delete([(None,)])


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        (("word: string",), [("",), ("\ue000",), ("x",)]),
        (("data: binary",), [(b"",), (b"\0",)]),
        (("a: string", "b: string"), [("", "b"), ("a", ""), ("", ""), ("a", "b"), ("ab", "")]),
    ],
)
def test_an_empty_text_is_a_key_like_any_other(tables: Tables, fields: tuple[str, ...], keys: list[Key]) -> None:
    state = tables.state(tables.conf(*fields))
    commit(state, Log(), 1, {key: at for at, key in enumerate(keys, 1)})
    assert state.multi_get(keys) == list(range(1, len(keys) + 1))
    assert sorted(state.get_tuples()) == sorted((*key, at) for at, key in enumerate(keys, 1))


def test_a_value_that_does_not_fit_its_column_is_refused_by_name(tables: Tables) -> None:
    state, log = tables.state(tables.conf()), Log()
    with pytest.raises(CorruptValueError, match=r"cannot write 9223372036854775808 \(int\) into column 'count'"):
        commit(state, log, 1, {"cow": 2**63})
    with pytest.raises(CorruptValueError, match=r"key \('a', 'b'\) has 2 parts, the table has key columns \['word'\]"):
        state.multi_get([("a", "b")])
    moments = tables.state(tables.conf(value="timestamp"))
    moments.begin_commit(Log().txid(1))
    with pytest.raises(CorruptValueError, match="'count': a Cassandra timestamp has milliseconds. Round"):
        moments.multi_put([("a",)], [MOMENT.replace(microsecond=1)])


@pytest.mark.parametrize(
    ("keys", "value", "options", "told"),
    [
        (("k", "string"), "map<string,bigint>", {}, "'count', of type map<string,bigint>, has no plain form there"),
        (("k", "string"), "timestamp_ntz", {}, "'count', of type timestamp_ntz, has no plain form there"),
        (("k", "string"), "array<date>", {}, "'count', of type array<date>, has no plain form there"),
        (("k", "array<string>"), "bigint", {}, "'k', of type array<string>, has no plain form as a key"),
        (("Trident_x", "string"), "bigint", {}, "no column can be called 'Trident_x'"),
        (("k", "string"), None, {}, "its keys and values have no declared type"),
        (("k", "string"), "bigint", {"serializer": "json"}, "it has a serializer"),
    ],
)
def test_what_has_no_plain_form_is_refused_by_name(
    keys: tuple[str, str], value: str | None, options: dict[str, Any], told: str
) -> None:
    conf = StateConf("t", "s", (keys,), value, value_field="count")
    said = f"layout='columns' of a Cassandra state: state 's' cannot have it: {told}. Give it"
    with pytest.raises(ConfigError, match=re.escape(said)):
        columns_of(conf, StateType.OPAQUE, replace(CassandraOptions(layout="columns"), **options))
    spec = CassandraState.opaque(**options)
    assert spec.facts.layout is not None
    assert spec.facts.layout(conf) == "binary columns key and value"


def test_layouts_are_never_taken_for_each_other(tables: Tables) -> None:
    for written, read in (("binary", "columns"), ("columns", "binary")):
        conf = tables.conf()
        commit(tables.state(conf, layout=written), Log(), 1, {"cow": 1})
        with pytest.raises(StateError, match=rf"has layout='{written}', and layout='{read}' is asked for. Noth"):
            tables.state(conf, layout=read)


def test_kinds_and_types_are_never_taken_for_each_other(tables: Tables) -> None:
    conf = tables.conf()
    commit(tables.state(conf), Log(), 1, {"cow": 1})
    for other in (replace(conf, value_type="double"), replace(conf, key_fields=(("word", "binary"),))):
        with pytest.raises(StateError, match=r"not a table of a state: its columns are count bigint, .* blob, word "):
            tables.state(other)
    for kind in (StateType.TRANSACTIONAL, StateType.NON_TRANSACTIONAL):
        with pytest.raises(StateError, match="its columns are count bigint, trident_attempt bigint"):
            tables.state(conf, kind)


def test_an_owner_may_add_columns_and_a_later_layout_is_refused(tables: Tables) -> None:
    conf, log = tables.conf(), Log()
    commit(tables.state(conf), log, 1, {"cow": 1})
    tables.cql(f"ALTER TABLE {tables.table(conf)} ADD note text")
    commit(tables.state(conf), log, 2, {"cow": 1})
    assert values(tables.state(replace(conf, read_only=True)), "cow") == [2]
    tables.cql(f"ALTER TABLE {tables.table(conf)} WITH comment = 'trident columns table, layout 3, 128 buckets'")
    with pytest.raises(StateError, match="has layout 3; this version knows 2"):
        tables.state(conf)


def test_states_that_share_a_table_do_not_meet(tables: Tables) -> None:
    one, two = tables.conf(), tables.conf()
    name = f"shared{next(names)}"
    commit(tables.state(one, table=name), Log(), 1, {"cow": 1})
    commit(tables.state(two, table=name), Log("other"), 1, {"cow": 5, "pig": 2})
    assert values(tables.state(one, table=name), "cow", "pig") == [1, None]
    tables.state(two, table=name).reset()
    assert [values(tables.state(conf, table=name), "cow") for conf in (one, two)] == [[1], [None]]


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
def test_a_row_of_another_program_is_refused(tables: Tables, kind: StateType) -> None:
    conf, log = tables.conf(), Log()
    state = tables.state(conf, kind)
    commit(state, log, 1, {"cow": 1})
    names = "trident_state, trident_bucket, word, count"
    given = f"'{conf.prefix}', {crc32(b'the') % 128}, 'the', 40"
    tables.cql(f"INSERT INTO {tables.table(conf)} ({names}) VALUES ({given})")
    told = r"key \('the',\): its row has no trident_txid, so another program wrote it. Its timestamp hides later writes"
    with pytest.raises(CorruptValueError, match=told):
        commit(state, log, 2, {"the": 2})
    commit(state, log, 2, {"cow": 1}, attempt=1)  # other keys go on
    tables.cql(f"DELETE FROM {tables.table(conf)} WHERE {tables.bucket(conf, b'the')} AND word = 'the'")
    assert values(state, "the", "cow") == [None, 2]


def test_what_a_replaced_writer_sends_late_loses(tables: Tables) -> None:
    conf, log = tables.conf(), Log()
    old = tables.state(conf)
    txid = log.txid(1)
    old.begin_commit(txid)
    update(old, {"cow": 100, "old": 100})
    new = tables.state(conf)
    commit(new, log, 1, {"cow": 1}, attempt=1)
    backing = old.map_state.backing
    with pytest.raises(FencedError):
        backing.multi_put([("cow",)], [OpaqueValue(1, EPOCH, None, 100)])
    late = timestamp(backing._stamp, 9)
    backing._rows.put([("cow",)], [OpaqueValue(1, EPOCH, None, 100)], late, lambda: None)
    backing._rows.delete([("cow",)], late, lambda: None)
    assert new.multi_get_at([("cow",), ("old",)], Snapshot(1, log.winners)) == [1, None]
