"""A state in PostgreSQL: what is stored, read, listed, removed and refused, on a real server."""

import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from states.postgres import PostgresOptions, PostgresState
from states.postgres.options import table_name
from tests.harness.store_commits import Log, commit, update, values
from tests.states.postgres.postgres_states import Home, numbers
from trident.errors import BackendError, ConfigError, CorruptValueError, StateLossDetected, StateMismatchError
from trident.servers.postgres_connection import text_of
from trident.state import StateConf


def test_what_libpq_asks_is_not_asked_twice() -> None:
    refused = (
        "connection failed: Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"
    )
    assert text_of(psycopg.OperationalError(refused)) == "connection failed: Connection refused"


def test_a_state_is_one_table_that_other_programs_can_read(home: Home) -> None:
    conf = home.conf()
    commit(home.state(conf, serializer="json"), Log(), 1, 0, {"cow": 5})
    table = f'"{conf.prefix}"'
    found = home.sql(f"SELECT convert_from(value, 'UTF8') FROM {table} WHERE key < ' '::bytea")
    assert [json.loads(value) for (value,) in found] == [[1, 0, None, 5]]
    assert home.sql(f"SELECT convert_from(key, 'UTF8') FROM {table} WHERE key > ' '::bytea") == [("sentinel:0",)]
    primary = f"SELECT indisprimary FROM pg_index WHERE indrelid = '{table}'::regclass"
    assert home.sql(primary) == [(True,)], "a subscription that copies the table knows its rows by their primary key"


@pytest.mark.parametrize("name", ['a "quoted" one', "100 % of it, and a\\", "größe", "x" * 100, "x" * 99 + "y", "a;--"])
def test_any_name_is_a_table(home: Home, name: str) -> None:
    conf = StateConf(f"{name} {next(numbers)}", name)
    state = home.state(conf)
    commit(state, Log(), 1, 0, {"cow": 5})
    assert home.state(conf).multi_get([("cow",)]) == [5]
    assert home.sql(f"SELECT count(*) FROM pg_tables WHERE tablename = '{table_name(conf.prefix)}'") == [(1,)]


def test_a_long_name_keeps_its_start_and_stays_apart() -> None:
    assert table_name("words/count") == "words/count"
    first, second = table_name("ü" * 60 + "a"), table_name("ü" * 60 + "b")
    assert first != second
    assert first.startswith("ü" * 23 + "-")
    assert len(first.encode()) <= 63


def test_schema_and_table_can_be_given(home: Home) -> None:
    home.sql("CREATE SCHEMA IF NOT EXISTS counts")
    state = home.state(home.conf(), schema="counts", table="words")
    commit(state, Log(), 1, 0, {"cow": 5})
    assert home.sql("SELECT count(*) FROM counts.words") == [(2,)]
    with pytest.raises(BackendError, match=r"make the schema with CREATE SCHEMA") as failure:
        commit(home.state(home.conf(), schema="absent"), Log(), 1, 0, {"cow": 5})
    assert not failure.value.retryable


def test_a_large_commit_is_several_statements_and_one_transaction(either: Home) -> None:
    conf, log = either.conf(), Log()
    state = either.state(conf, max_keys_per_call=7, max_bytes_per_call=30)
    words = {f"word {number}": number for number in range(100)}
    commit(state, log, 1, 0, words)
    commit(state, log, 2, 0, words)
    assert values(either.state(conf, max_keys_per_call=3), *words) == [2 * number for number in words.values()]
    assert either.sql(f'SELECT count(DISTINCT xmin::text) FROM "{conf.prefix}"') == [(1,)]
    assert dict(state.get_tuples()) == {word: 2 * number for word, number in words.items()}


def test_a_state_that_nobody_wrote_is_empty(home: Home) -> None:
    conf = home.conf()
    reader = home.state(replace(conf, read_only=True))
    assert values(reader, "cow") == [None]
    assert reader.read_sentinel() is None
    assert list(reader.get_tuples()) == []
    home.state(conf).reset()  # lays its mark first, and so the table
    assert reader.read_sentinel() is None
    assert list(reader.get_tuples()) == []


def test_the_session_of_a_reader_is_read_only(home: Home) -> None:
    session = home.session(replace(home.conf(), read_only=True))
    assert session.run("look", lambda one: one.execute("SHOW transaction_read_only").fetchone()) == ("on",)


@pytest.mark.parametrize("how", ["TRUNCATE", "DROP TABLE", "DELETE FROM"])
def test_a_table_that_was_emptied_is_found_before_a_commit_and_within(either: Home, how: str) -> None:
    conf, log = either.conf(), Log()
    state = either.state(conf)
    commit(state, log, 1, 0, {"cow": 1, "the": 1})
    txid = log.txid(2)
    state.begin_commit(txid)
    update(state, {"cow": 1})
    either.sql(f'{how} "{conf.prefix}"')
    with pytest.raises(StateLossDetected, match="is gone"):
        state.commit(txid)
    for opened in (state, either.state(conf)):
        with pytest.raises(StateMismatchError, match="the store has no commit at all"):
            opened.begin_commit(log.txid(2, 1))
    assert values(state, "cow") == [None]
    fresh = Log("another log")
    commit(either.state(conf), fresh, 1, 0, {"cow": 5})  # a new log begins anew
    commit(either.state(conf), fresh, 2, 0, {"cow": 1})
    assert sorted(either.state(conf).get_tuples()) == [("cow", 6)]


def test_a_table_that_was_dropped_behind_the_claim_of_a_start_is_found(either: Home) -> None:
    conf, log = either.conf(), Log()
    state = either.state(conf)
    commit(state, log, 1, 0, {"cow": 1})
    claim = state.read_sentinel()._replace(attempt=7)
    state.move_sentinel(claim, force=True)  # as after another number of partitions: no key of it is known to stay
    assert either.state(conf).read_sentinel() == claim
    either.sql(f'DROP TABLE "{conf.prefix}"')
    assert either.state(conf).read_sentinel() is None


@pytest.mark.long
def test_partitions_may_make_the_table_at_the_same_time(home: Home) -> None:
    all_of_them = threading.Barrier(8, timeout=30)

    def first_commit(state: Any) -> None:
        log = Log()
        state.begin_commit(log.txid(1))
        update(state, {"cow": 1})
        all_of_them.wait()
        state.commit(log.txid(1))

    for _ in range(20):  # the rarest of the three errors comes in one table of four
        conf = home.conf()
        states = [home.state(conf, partition) for partition in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(first_commit, states))
        assert home.sql(f'SELECT count(*) FROM "{conf.prefix}"') == [(9,)]
        for state in states:
            state.close()


@pytest.mark.parametrize("columns", ["id int, note text", "id int, trident_txid bigint"])
def test_a_foreign_table_is_refused(home: Home, columns: str) -> None:
    home.sql(f"DROP TABLE IF EXISTS foreign_one; CREATE TABLE foreign_one ({columns})")
    with pytest.raises(BackendError, match="it has no column key, value; its columns are id, ") as failure:
        commit(home.state(home.conf(), table="foreign_one"), Log(), 1, 0, {"cow": 1})
    assert not failure.value.retryable


def test_a_foreign_row_in_place_of_the_sentinel_is_refused(home: Home) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 1})
    home.sql(f"""UPDATE "{conf.prefix}" SET value = 'mine' WHERE key = 'sentinel:0'""")
    with pytest.raises(CorruptValueError, match="found b'mine' in its place; another program wrote it"):
        state.begin_commit(log.txid(2))


def test_a_user_without_rights_is_told(home: Home) -> None:
    home.sql("CREATE ROLE guest LOGIN")
    url = home.url.replace("trident@", "guest@")
    with pytest.raises(BackendError, match=r"permission denied.*docs/states/postgres\.md lists the rights") as failure:
        commit(home.state(home.conf(), url=url), Log(), 1, 0, {"cow": 1})
    assert not failure.value.retryable


def test_the_documented_rights_are_enough(either: Home) -> None:
    conf, log = either.conf(), Log()
    commit(either.state(conf), log, 1, 0, {"cow": 1})
    writer, reader = f"teller{next(numbers)}", f"viewer{next(numbers)}"
    tables = f'"{conf.prefix}"' + ", trident_sentinels" * bool(conf.key_fields)
    either.sql(f"CREATE ROLE {writer} LOGIN; CREATE ROLE {reader} LOGIN; GRANT SELECT ON {tables} TO {reader}")
    either.sql(
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {writer}; GRANT TRUNCATE ON "{conf.prefix}" TO {writer}'
    )
    state = either.state(conf, url=either.url.replace("trident@", f"{writer}@"))
    looks = either.state(replace(conf, read_only=True), url=either.url.replace("trident@", f"{reader}@"))
    commit(state, log, 2, 0, {"cow": 1})
    assert values(looks, "cow") == [2]
    assert looks.read_sentinel() is not None
    state.reset()
    assert values(looks, "cow") == [None]
    either.sql("; ".join(f"DROP OWNED BY {role}; DROP ROLE {role}" for role in (writer, reader)))


def test_a_session_is_set_up_so_that_commits_are_durable(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    home.sql("CREATE ROLE quick LOGIN SUPERUSER")
    home.sql("ALTER ROLE quick SET synchronous_commit = off")
    session = home.session(home.conf(), url=home.url.replace("trident@", "quick@"), timeout_s=12)
    names = ("synchronous_commit", "statement_timeout", "idle_in_transaction_session_timeout")
    with caplog.at_level(logging.WARNING):
        shown = session.run("look", lambda one: [one.execute(f"SHOW {name}".encode()).fetchone() for name in names])
    assert shown == [("on",), ("12s",), ("6s",)]
    assert caplog.messages == []


@pytest.mark.parametrize("setting", ["quote_all_identifiers%3Don", "standard_conforming_strings%3Doff"])
def test_what_a_user_or_database_has_set_harms_no_state(setting: str, either: Home) -> None:
    conf, log, url = either.conf(), Log(), f"{either.url}?options=-c{setting}"
    for txid in (1, 2):
        commit(either.state(conf, url=url), log, txid, 0, {"a\\b'c": txid})
    assert values(either.state(conf), "a\\b'c") == [3]


def test_a_forked_child_has_a_connection_of_its_own(home: Home) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf)
    commit(state, log, 1, 0, {"cow": 3})
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            os.write(writable, json.dumps(values(state, "cow")).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as answer:
        assert answer.read() == b"[3]"
    assert os.waitpid(child, 0)[1] == 0
    commit(state, log, 2, 0, {"cow": 1})
    assert values(state, "cow") == [4]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"url": "mysql://me:hush@host/db"},
            r"the url of a PostgreSQL state is mysql://\*\*\*@host/db: write postgresql://",
        ),
        ({"url": "host=a password=hush"}, "the url of a PostgreSQL state is no URL: write postgresql://"),
        ({"table": "x" * 64}, "give 1 to 63 bytes"),
        ({"schema": ""}, "give 1 to 63 bytes"),
    ],
)
def test_impossible_options_are_refused_where_they_are_given(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PostgresState.opaque(PostgresOptions(**{"url": "postgresql://localhost/db", **options}))
