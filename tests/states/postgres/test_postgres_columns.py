"""A state in PostgreSQL whose fields are columns: what others see of it, and what is found of foreign hands."""

import datetime as dt
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from tests.harness.store_commits import Log, commit, commit_by, update, values
from tests.states.postgres.postgres_states import Home, numbers
from trident import TridentTopology, open_state
from trident.errors import BackendError, ConfigError, CorruptValueError, StateError, StateMismatchError
from trident.operations import Collect, Count, Last, Split
from trident.state import Snapshot, StateConf
from trident.state.interfaces import StateType


def conf_of(home: Home, *keys: str, value: str = "bigint") -> StateConf:
    """Return the configuration of a state of counts by some fields, `name: type`, that no other test uses."""
    fields = tuple((field, type_) for field, _, type_ in (key.partition(": ") for key in keys or ("word: string",)))
    return home.conf(key_fields=fields, value_type=value, value_field="count")


def rows_of(home: Home, table: str, columns: str = "word, count") -> list[Any]:
    return sorted(home.sql(f'SELECT {columns} FROM "{table}"'))


def word_count(home: Home, name: str, *lines: str, partitions: int = 2) -> TridentTopology:
    topology = TridentTopology(name)
    words = topology.new_stream("lines", FixedBatchSpout("line: string", 1, *[(line,) for line in lines]))
    split = words.each("line", Split(), "word")
    split.group_by("word").persistent_aggregate(
        PostgresState.opaque(home.url, num_partitions=partitions), Count(), "count"
    )
    split.persistent_aggregate(PostgresState.transactional(home.url), Count(), "total")
    return topology


def test_a_colleague_reads_names_types_and_values(home: Home, tmp_path: Path) -> None:
    name = f"words{next(numbers)}"
    topology = word_count(home, name, "the cow", "the moon")
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        listed = sorted(running.state("count").get_tuples())
    with psycopg.connect(home.url) as connection:
        found = connection.execute(f'SELECT * FROM "{name}/count" ORDER BY word'.encode())
        columns = [(column.name, column.type_display) for column in found.description or ()]
        rows = found.fetchall()
        one = connection.execute(f"SELECT count FROM \"{name}/count\" WHERE word = 'the'".encode()).fetchall()
        total = connection.execute(f'SELECT key, total, trident_txid FROM "{name}/total"'.encode()).fetchall()
    own = [("trident_txid", "int8"), ("trident_attempt", "int8"), ("trident_before", "int8")]
    assert columns == [("word", "text"), ("count", "int8"), *own]
    assert rows == [("cow", 1, 1, 1 << 20, None), ("moon", 1, 2, 1 << 20, None), ("the", 2, 2, 1 << 20, 1)]
    assert one == [(2,)]
    assert total == [("$GLOBAL$", 4, 2)]
    assert listed == [row[:2] for row in rows]
    with open_state(topology, "count", log_dir=str(tmp_path / "log")) as reader:
        assert reader.multi_get(["the", "cow", "dish"]) == [2, 1, None]
    topology = word_count(home, name, "the cow", "the moon", "the dish")
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:  # it goes on where it stopped
        running.process_all_available()
        assert running.state("count").multi_get(["the", "cow", "dish"]) == [3, 1, 1]
        assert running.state("total").get() == 6


def test_a_plain_select_sees_the_last_commit_whole_and_says_by_whom(home: Home) -> None:
    conf, log = conf_of(home), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1, "the": 2})
    txid = log.txid(2)
    state.begin_commit(txid)
    update(state, {"cow": 10, "moon": 1})
    assert rows_of(home, conf.prefix) == [("cow", 1), ("the", 2)]  # during the commit: the last one
    state.commit(txid)  # the driver is killed before the log has it: what is being committed, and what was before
    columns = "word, count, trident_txid, trident_attempt, trident_before"
    committing = [("cow", 11, 2, 0, 1), ("moon", 1, 2, 0, None), ("the", 2, 1, 0, None)]
    assert rows_of(home, conf.prefix, columns) == committing
    successor, log.epoch = home.state(conf), 1
    commit(successor, log, 2, 0, {"cow": 5})  # the replay after a takeover has other rows
    commit(successor, log, 3, 0, {"the": 1})
    replayed = [("cow", 6, 2, 1, 1), ("moon", 1, 2, 0, None), ("the", 3, 3, 1, 2)]
    assert rows_of(home, conf.prefix, columns) == replayed
    # "moon" is of attempt 0 of batch 2, which lost: no reader of ours sees it, and a later update begins before it.
    assert values(successor, "cow", "the") == [6, 3]
    assert successor.multi_get_at([("moon",)], Snapshot(3, log.winners)) == [None]
    commit(successor, log, 4, 0, {"moon": 1})
    assert rows_of(home, conf.prefix)[1] == ("moon", 1)


@pytest.mark.parametrize(("field", "value"), [("{table}", "{put}"), ("{names}", "{sentinels}"), ('%s "{', "100%")])
def test_fields_may_have_any_name(home: Home, field: str, value: str) -> None:
    conf, log = replace(conf_of(home, f"{field}: string"), value_field=value), Log()
    state = home.state(conf, changes="7d")
    commit(state, log, 1, 0, {"cow": 1, "the": 2})
    commit(state, log, 2, 0, {"cow": 1})
    assert values(state, "cow", "the") == [2, 2]
    assert sorted(state.get_tuples()) == [("cow", 2), ("the", 2)]
    assert [txid for txid, _ in state.kept_changes.read(0, 2)] == [1, 2]


def test_a_key_that_was_removed_is_null_for_a_while(home: Home) -> None:
    conf, log = conf_of(home), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1, "the": 1})
    commit_by(state, log, 2, state.multi_remove, [("cow",)])
    assert home.sql(f'SELECT word FROM "{conf.prefix}" WHERE count IS NULL') == [("cow",)]
    assert list(state.get_tuples()) == [("the", 1)]
    for number in range(3, 20):
        commit(state, log, number, 0, {"the": 1} if number < 19 else {})
    assert rows_of(home, conf.prefix) == [("the", 17)]


MOMENT = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
TYPES: dict[str, tuple[str, list[Any]]] = {
    "string": ("text", ["", "a\0b", "\ue000", "\ue000\0\ue0000", "汉👩‍👧", "x" * 3000]),
    "bigint": ("int8", [2**63 - 1, -(2**63), 0]),
    "int": ("int4", [2**31 - 1, -(2**31)]),
    "smallint": ("int2", [2**15 - 1, -(2**15)]),
    "tinyint": ("int2", [127, -128]),
    "double": ("float8", [0.1, -math.inf, 5e-324, math.nan, -0.0]),
    "float": ("float8", [0.1, 1e300]),
    "boolean": ("bool", [True, False]),
    "decimal(10,2)": ("numeric(10,2)", [Decimal("1.50"), Decimal("-99999999.99"), Decimal("100.00")]),
    "decimal(38,0)": ("numeric(38,0)", [Decimal("9" * 38)]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": ("timestamptz", [MOMENT, dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC)]),
    "timestamp_ntz": ("timestamp", [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    "binary": ("bytea", [b"", b"\0\xff"]),
    "array<double>": ("jsonb", [[], [0.5, None, math.inf, 1.0, -0.0, 0.0, math.nan]]),
    "array<struct<a:string,b:bigint>>": ("jsonb", [[{"a": "x\0\ue000", "b": 1}], [{"a": None, "b": None}, None]]),
    "struct<a:string,b:array<bigint>>": (
        "text, jsonb",
        [{"a": "x\0\ue000", "b": [1, None]}, {"a": None, "b": None}, None],
    ),
}


@pytest.mark.parametrize("kind", ["opaque", "transactional", "non-transactional"])
def test_values_of_all_types_come_back_as_they_were(home: Home, kind: str) -> None:
    for type_, (shown, samples) in TYPES.items():
        conf = conf_of(home, value=type_)
        made = PostgresState.of_kind(StateType(kind), home.url, {}).factory.make_state(conf, 0, 1)
        keys, given = [(str(at),) for at in range(len(samples))], [*samples[1:], samples[0]]
        log = Log()
        for number, each in enumerate((samples, given), 1):
            commit_by(made, log, number, made.multi_put, keys, each)
        assert repr(made.multi_get(keys)) == repr(given)
        if kind == "opaque":
            assert repr(made.multi_get_at(keys, Snapshot(1, log.winners))) == repr(samples)
        with psycopg.connect(home.url) as connection:
            values = "a, b" if type_.startswith("struct") else "count"
            found = connection.execute(f'SELECT {values} FROM "{conf.prefix}"'.encode()).description
        assert ", ".join(column.type_display for column in found or ()) == shown, type_
        made.close()


def test_nulls_are_keys_like_any_other(home: Home) -> None:
    conf, log = conf_of(home, "word: string", "size: bigint"), Log()
    state = home.state(conf, max_keys_per_call=2)
    keys = [("a", 1), ("a", None), (None, 1), (None, None), ("b", None), (None, 2), ("a", 2), ("b", 1)]
    for number in (1, 2):
        commit(state, log, number, 0, dict.fromkeys(keys, 1))
    assert home.sql(f'SELECT count(*), sum(count) FROM "{conf.prefix}"') == [(len(keys), 2 * len(keys))]
    assert state.multi_get([*keys, ("c", None)]) == [2] * len(keys) + [None]
    assert sorted(map(repr, state.get_tuples())) == sorted(repr((*key, 2)) for key in keys)
    backing = state.map_state.backing
    backing.multi_delete(keys[::2])
    assert state.multi_get(keys) == [None, 2] * 4


def test_a_value_that_does_not_fit_its_column_is_refused_by_name(home: Home) -> None:
    state, log = home.state(conf_of(home)), Log()
    said = r"cannot write 9223372036854775808 \(int\) into column 'count' of type int64"
    with pytest.raises(CorruptValueError, match=said):
        commit(state, log, 1, 0, {"cow": 2**63})
    commit(state, log, 1, 1, {"cow": 1})
    with pytest.raises(CorruptValueError, match=r"key \('a', 'b'\) has 2 parts, the table has key columns \['word'\]"):
        state.multi_get([("a", "b")])


def test_a_key_has_an_end(home: Home) -> None:
    state, log = home.state(conf_of(home)), Log()
    commit(state, log, 1, 0, {"ü" * 1300: 1, "x" * 2600: 2})
    assert values(state, "ü" * 1300, "x" * 2600) == [1, 2]
    with pytest.raises(BackendError, match=r"has 2602 bytes.* takes 2600; group by something shorter") as failure:
        commit(state, log, 2, 0, {"ü" * 1301: 1, "a": 1})
    assert not failure.value.retryable


OWN = "trident_txid bigint, trident_attempt bigint, trident_before bigint"


@pytest.mark.parametrize(
    ("keys", "value", "options", "text"),
    [
        ((), "bigint", {}, f"columns word text, count bigint, {OWN}"),
        ((), "bigint", {"layout": "binary"}, "binary columns key and value: layout='binary'"),
        ((), "bigint", {"serializer": "json"}, "binary columns key and value: it has a serializer"),
        ((), "map<string,bigint>", {}, "'count', of type map<string,bigint>, has no plain form there"),
        ((), "array<date>", {}, "'count', of type array<date>, has no plain form there"),
        (("tags: array<string>",), "bigint", {}, "'tags', of type array<string>, has no plain form as a key"),
        (("trident_x: string",), "bigint", {}, "no column can be called 'trident_x'"),
        (("ctid: string",), "bigint", {}, "no column can be called 'ctid'"),
        (("x" * 64 + ": string",), "bigint", {}, "no column can be called"),
    ],
)
def test_explain_says_how_a_state_is_stored(home: Home, keys: Any, value: str, options: Any, text: str) -> None:
    spec, conf = PostgresState.opaque(home.url, **options), conf_of(home, *keys, value=value)
    assert spec.facts.layout is not None
    assert text in spec.facts.layout(conf)
    log = Log()
    state = home.state(conf, **options)
    txid = log.txid(1)
    state.begin_commit(txid)
    state.commit(txid)
    columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = '\"{}\"'::regclass AND attnum > 0"
    assert home.sql(columns.format(conf.prefix)) == [(5 if text.startswith("columns") else 2,)]
    topology = TridentTopology("words")
    stream = topology.new_stream("lines", FixedBatchSpout("line: string", 1, ("a",)))
    stream.group_by("line").persistent_aggregate(PostgresState.opaque(home.url), "line", Last(), "last")
    assert "      stored as columns line text, last text, trident_txid bigint" in topology.explain()


def test_columns_that_cannot_be_had_are_refused_where_the_state_is_declared() -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatchSpout("k: string, at: date", 1, ("a", None)))
    state = PostgresState.opaque("postgresql://localhost/x", layout="columns")
    with pytest.raises(ConfigError, match="state 'seen' cannot have it: 'days', of type array<date>, has no plain"):
        stream.group_by("k").persistent_aggregate(state, {"n": Count(), "days": Collect("at")}, "seen")
    for option in ({"changes": "1d"}, {"ttl_s": 86_400}):
        state = PostgresState.opaque("postgresql://localhost/x", **option)
        said = f"{min(option)}= of 't/days' .* needs columns.*'days'.*Leave {min(option)} out"
        with pytest.raises(ConfigError, match=said):
            stream.group_by("k").persistent_aggregate(state, {"days": Collect("at")}, "days")


def test_a_table_of_the_users_gets_what_it_lacks_and_keeps_what_it_has(home: Home) -> None:
    conf, log = conf_of(home), Log()
    home.sql(f"""CREATE TABLE "{conf.prefix}" (note text DEFAULT 'new', word text PRIMARY KEY, at serial)""")
    reader = home.state(replace(conf, read_only=True))
    assert values(reader, "cow") == [None]
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1})
    home.sql(f"""UPDATE "{conf.prefix}" SET note = 'mine'""")
    commit(state, log, 2, 0, {"cow": 1, "the": 1})
    assert rows_of(home, conf.prefix, "word, count, note, at") == [("cow", 2, "mine", 1), ("the", 1, "new", 3)]
    assert values(reader, "cow") == [2]
    with pytest.raises(BackendError, match=r"null value in column \"word\""):  # its primary key takes none
        commit(state, log, 3, 0, {(None,): 1})


def test_a_trigger_that_may_change_what_is_written_is_named(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    conf = conf_of(home)
    home.sql("""CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'""")
    home.sql(f'CREATE TABLE "{conf.prefix}" (word text PRIMARY KEY, count bigint)')
    for name, when in (("early", "BEFORE UPDATE"), ("late", "AFTER UPDATE"), ("off", "BEFORE INSERT")):
        home.sql(f'CREATE TRIGGER {name} {when} ON "{conf.prefix}" FOR EACH ROW EXECUTE FUNCTION touch()')
    home.sql(f'ALTER TABLE "{conf.prefix}" DISABLE TRIGGER off')
    for partition in range(2):
        commit(home.state(conf, partition), Log(), 1, partition, {"cow": 1})
    told = [record.message for record in caplog.records if "trigger" in record.message]
    assert len(told) == 1, told
    assert f'"{conf.prefix}": trigger early runs before each row is written' in told[0]


OTHERS = [
    ("word text PRIMARY KEY, count int", "count is integer, not bigint; give another table, or change the type"),
    ("word text PRIMARY KEY, count numeric(30,0)", r"count is numeric\(30,0\), not bigint; give another table"),
    ("word text, count bigint", r"it has no UNIQUE NULLS NOT DISTINCT \(word\); add this constraint"),
    ("word text UNIQUE, count bigint", r"it has no UNIQUE NULLS NOT DISTINCT \(word\)"),
    ("word text NOT NULL, count bigint", r"it has no UNIQUE \(word\)"),
    ("word text PRIMARY KEY, note text NOT NULL", "it has note NOT NULL without a default; give the column a default"),
    ("id int PRIMARY KEY, count bigint", "it has no column word, trident_txid.*; its columns are id, count; give"),
    ("word text PRIMARY KEY, count bigint, trident_txid bigint", "it has no column trident_attempt, trident_before;"),
    ("word text PRIMARY KEY, count bigint, trident_x bigint", "it has trident_x, of a state of another kind"),
    ("word text COLLATE either PRIMARY KEY, count bigint", "word has a collation in which other texts are equal"),
    ("key bytea PRIMARY KEY, value bytea", r"it has the binary layout \(key, value\); give layout='binary', or another"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "text"), OTHERS)
def test_a_table_that_is_not_one_for_the_state_is_refused_by_name(home: Home, columns: str, text: str) -> None:
    home.sql(
        "CREATE COLLATION IF NOT EXISTS either (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    conf = conf_of(home)
    home.sql(f'CREATE TABLE "{conf.prefix}" ({columns})')
    for opened in (home.state(conf), home.state(replace(conf, read_only=True))):
        with pytest.raises(BackendError, match=text) as failure:
            values(opened, "cow")
        assert not failure.value.retryable
    assert home.sql(f'SELECT count(*) FROM "{conf.prefix}"') == [(0,)]


def test_kinds_and_layouts_are_never_taken_for_each_other(home: Home) -> None:
    conf = conf_of(home)
    specs = {
        kind: PostgresState.of_kind(StateType(kind), home.url, {})
        for kind in ("opaque", "transactional", "non-transactional")
    }
    specs["binary"] = PostgresState.opaque(home.url, layout="binary")
    for written, writer in specs.items():
        home.sql(f'DROP TABLE IF EXISTS "{conf.prefix}"')
        home.sql("DROP TABLE IF EXISTS trident_sentinels")
        state = writer.factory.make_state(conf, 0, 1)
        commit(state, Log(), 1, 0, {"cow": 1})
        state.close()
        for name, other in specs.items():
            if name != written:
                state = other.factory.make_state(conf, 0, 1)
                with pytest.raises(BackendError) as failure:
                    commit(state, Log(), 1, 0, {"cow": 1})
                assert not failure.value.retryable, (written, name)
                state.close()


def test_a_layout_of_a_later_version_is_refused(home: Home) -> None:
    conf, log = conf_of(home), Log()
    commit(home.state(conf), log, 1, 0, {"cow": 1})
    home.sql(f"UPDATE trident_sentinels SET layout = 2 WHERE state = '{conf.prefix}'")
    with pytest.raises(StateError, match="has layout 2, and this version knows 1; install a newer one"):
        commit(home.state(conf), log, 2, 0, {"cow": 1})


def test_a_table_that_was_copied_without_its_sentinels_is_not_counted_on_with_a_new_log(
    home: Home, tmp_path: Path
) -> None:
    name = f"words{next(numbers)}"

    def run(log: str, policy: str = "refuse", partitions: int = 2) -> tuple[list[Any], int]:
        topology = word_count(home, name, "the cow", "the moon", partitions=partitions)
        config: dict[str, Any] = {"log_dir": str(tmp_path / log), "state_recovery": policy}
        with topology.start(engine="in_process", **config) as running:
            running.process_all_available()
            return running.state("count").multi_get(["the", "cow"]), running.state("total").get()

    def copy(*tables: str) -> None:
        home.sql(f"DELETE FROM trident_sentinels WHERE state IN ({', '.join(map(repr, tables))})")

    assert run("first") == ([2, 1], 4)
    copy(f"{name}/count", f"{name}/total")
    said = "the log is new, and state 'count' has the totals of 2 batches"
    with pytest.raises(StateMismatchError, match=said) as failure:
        run("second")
    assert 'state_recovery="discard_totals"' in str(failure.value)
    assert home.sql(f'SELECT sum(count) FROM "{name}/count"') == [(4,)]
    assert run("second", "discard_totals") == ([2, 1], 4)
    assert run("second", partitions=5) == ([2, 1], 4)  # none of the added ones has a sentinel yet
    copy(f"{name}/total")
    with pytest.raises(StateMismatchError):
        run("third")


def test_a_table_from_an_older_backup_is_found(home: Home) -> None:
    conf, log = conf_of(home), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1})
    home.sql(f'CREATE TABLE "{conf.prefix} backup" AS SELECT * FROM "{conf.prefix}"')
    commit(state, log, 2, 0, {"cow": 1})
    home.sql(f'DELETE FROM "{conf.prefix}"')
    home.sql(f'INSERT INTO "{conf.prefix}" SELECT * FROM "{conf.prefix} backup"')
    with pytest.raises(StateMismatchError):
        state.begin_commit(log.txid(3))


def test_batches_without_rows_and_removals_keep_the_sentinel(home: Home) -> None:
    conf, log = conf_of(home), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1})
    commit(state, log, 2, 0, {})
    home.sql(f'TRUNCATE "{conf.prefix}"')
    with pytest.raises(StateMismatchError):
        state.begin_commit(log.txid(3))
    fresh, conf = Log(), conf_of(home)
    writers = [home.state(conf, partition) for partition in range(2)]
    commit(writers[0], fresh, 1, 0, {"cow": 1})
    moved = fresh.txid(1).sentinel_at(conf.prefix, True)
    assert moved is not None
    writers[0].move_sentinel(moved, force=True)  # as a start with another number of partitions does
    writers[1].map_state.backing.multi_delete([("cow",)])  # from now on the key is of the other one
    commit(writers[0], fresh, 2, 0, {"calf": 1})
    assert rows_of(home, conf.prefix) == [("calf", 1)]


@pytest.mark.parametrize(
    ("kind", "known"), [("opaque", "trident_txid = 0, trident_attempt = -1"), ("transactional", "trident_txid = 0")]
)
def test_a_row_of_another_program_is_refused_until_it_says_what_it_is(kind: str, known: str, home: Home) -> None:
    conf, log = conf_of(home), Log()
    state = getattr(PostgresState, kind)(home.url).factory.make_state(conf, 0, 1)
    commit(state, log, 1, 0, {"cow": 1})
    home.sql(f"""INSERT INTO "{conf.prefix}" (word, count) VALUES ('the', 40)""")
    said = r"key \('the',\): its row has no trident_txid, so another program wrote it"
    with pytest.raises(CorruptValueError, match=f"{said}.*set {known}$"):
        commit(state, log, 2, 0, {"the": 2})
    commit(state, log, 2, 1, {"cow": 1})  # other keys go on
    home.sql(f"""UPDATE "{conf.prefix}" SET {known} WHERE word = 'the'""")
    commit(state, log, 3, 1, {"the": 2}, record=False)
    commit(state, log, 3, 2, {"the": 2})
    assert values(state, "the", "cow") == [42, 2]
    state.close()


def test_what_is_changed_or_deleted_by_hand_is_where_the_next_batch_begins(home: Home) -> None:
    conf, log = conf_of(home), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1, "the": 1, "moon": 1})
    home.sql(f"""UPDATE "{conf.prefix}" SET count = 100 WHERE word = 'the'""")
    home.sql(f"""DELETE FROM "{conf.prefix}" WHERE word = 'cow'""")
    commit(state, log, 2, 0, {"cow": 1, "the": 1, "moon": 1}, record=False)
    commit(state, log, 2, 1, {"cow": 1, "the": 1, "moon": 1})
    assert values(state, "cow", "the", "moon") == [1, 101, 2]


@pytest.mark.parametrize("column", ["count", "word", "trident_before", "trident_txid"])
def test_a_column_that_was_dropped_is_named_and_nothing_is_written(home: Home, column: str) -> None:
    conf, log = conf_of(home), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1})
    home.sql(f'ALTER TABLE "{conf.prefix}" DROP COLUMN {column}')
    for opened in (state, home.state(conf)):
        with pytest.raises((BackendError, StateError), match=column):
            commit(opened, log, 2, 0, {"cow": 1})
    assert home.sql(f'SELECT count(*) FROM "{conf.prefix}"') == [(1,)]


GOLDEN = Path(__file__).parent / "golden" / "columns.v1.txt"
SAMPLE_KEYS = (
    "word: string", "at: timestamp", "size: decimal(10,2)", "ratio: double", "part: float", "raw: binary", "day: date",
)  # fmt: skip
SAMPLE = ("a\0b", MOMENT.replace(year=2024), Decimal("1.5"), math.nan, 0.5, b"\xff", None)
SAMPLE_VALUE = {"a": "\ue000", "b": [1.5, math.inf]}


def stored_by(home: Home, conf: StateConf) -> Iterator[str]:
    """Give what the store holds of a state: columns, index, rows, sentinels."""
    types = f"""
        SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = '"{conf.prefix}"'::regclass AND attnum > 0 ORDER BY attnum
    """
    yield from (f"{name} {type_}" for name, type_ in home.sql(types))
    for (index,) in home.sql(f"SELECT indexdef FROM pg_indexes WHERE tablename = '{conf.prefix}'"):
        yield index.partition(" USING ")[2]
    yield from (row for (row,) in home.sql(f"""SELECT to_jsonb("{conf.prefix}")::text FROM "{conf.prefix}" """))
    sentinels = (
        "SELECT partition, layout, convert_from(sentinel, 'UTF8'), encode(witness, 'hex') FROM trident_sentinels"
    )
    for partition, layout, sentinel, witness in home.sql(f"{sentinels} WHERE state = '{conf.prefix}'"):
        yield f"{partition} {layout} {json.loads(sentinel)[:3]} {witness}"


def test_the_layout_is_that_of_the_golden_file_which_is_read_back(home: Home) -> None:
    conf, log = conf_of(home, *SAMPLE_KEYS, value="struct<a:string,b:array<double>>"), Log("log")
    state = home.state(conf)
    commit_by(state, log, 3, state.multi_put, [SAMPLE], [SAMPLE_VALUE], attempt=7)
    golden = GOLDEN.read_text().splitlines()
    assert list(stored_by(home, conf)) == golden
    (row,) = (line for line in golden if line.startswith("{"))
    witness = golden[-1].rpartition(" ")[2]
    home.sql(f'DELETE FROM "{conf.prefix}"')
    home.sql(f"""INSERT INTO "{conf.prefix}" SELECT * FROM jsonb_populate_record(NULL::"{conf.prefix}", $${row}$$)""")
    home.sql(f"UPDATE trident_sentinels SET witness = decode('{witness}', 'hex') WHERE state = '{conf.prefix}'")
    reader = home.state(replace(conf, read_only=True))
    assert reader.read_sentinel() == log.expected
    assert reader.multi_get([SAMPLE]) == [SAMPLE_VALUE]
    assert repr(list(reader.get_tuples())) == repr([(*SAMPLE, SAMPLE_VALUE)])
