"""The contract of a transaction log, on a log in a real PostgreSQL."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.log.log_homes import PostgresHome, read, reopened
from tests.log.log_processes import ProcessContract
from tests.log.log_samples import TOPOLOGY, commit
from tests.log.stored_faults import IsKilled, StoredAway, StoredContents, StoredFaults
from tests.log.test_log_contract import LogContract, OwnerContract
from trident.errors import ConfigError, EnvironmentProblem, LogError, LogHeldError
from trident.log import postgres_records
from trident.servers.log_addresses import PostgresAddress, log_address_of
from trident.servers.postgres_connection import passes


@pytest.fixture
def home(postgres_home: PostgresHome) -> PostgresHome:
    return postgres_home


@pytest.fixture
def server(postgres_server: Server) -> Server:
    return postgres_server


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_records, "_ANSWER_S", 1.0)


@pytest.fixture
def schema(home: PostgresHome) -> Iterator[str]:
    name = f"of_{home.address.rpartition('-')[2]}"
    home.ask(f"CREATE SCHEMA {name}")
    yield name
    home.ask(f"DROP SCHEMA {name} CASCADE")


def home_in(schema: str, home: PostgresHome, more: str = "") -> PostgresHome:
    return PostgresHome(f"{home.address}{more}&options=-csearch_path%3D{schema}")


class TestPostgresLog(LogContract, OwnerContract, ProcessContract, StoredContents): ...


@pytest.mark.long
class TestFaultsOfPostgresLog(StoredFaults):
    @pytest.fixture
    def behind(self, home: PostgresHome, proxy: Proxy, server: Server) -> PostgresHome:
        return PostgresHome(home.address.replace(f":{server.port}/", f":{proxy.port}/"))


@pytest.mark.long
class TestPostgresThatHangs(StoredAway): ...


@pytest.mark.long
class TestPostgresThatIsKilled(IsKilled, StoredAway): ...


def connection_of(log: Any) -> Any:
    return log._store._session.connection()


@pytest.mark.parametrize(
    "setting",
    [
        "synchronous_commit=off",
        "standard_conforming_strings=off",
        "default_transaction_read_only=on",
        "bytea_output=escape",
    ],
)
def test_what_a_user_or_database_has_set_harms_no_log(setting: str, home: PostgresHome) -> None:
    with closing(
        PostgresHome(f"{home.address}&options=-c{setting.replace('=', '%3D')}").open(segment_bytes=100)
    ) as log:
        assert connection_of(log).execute("SHOW synchronous_commit").fetchone() == ("on",)
        for txid in range(1, 20):
            log.append(commit(txid))
    assert reopened(home).txid == 19


def test_a_transaction_that_the_server_ends_after_its_time_is_tried_again(home: PostgresHome) -> None:
    with closing(home.open()) as log, pytest.raises(psycopg.Error) as ended:
        connection_of(log).execute("DO $$ BEGIN RAISE 'too long' USING ERRCODE = '25P04'; END $$")
    assert passes(ended.value)


def test_the_session_that_holds_a_log_does_not_end_because_no_batch_comes(home: PostgresHome) -> None:
    with closing(PostgresHome(f"{home.address}&options=-cidle_session_timeout%3D60s").open()) as log:
        assert connection_of(log).execute("SHOW idle_session_timeout").fetchone() == ("0",)


def test_a_driver_whose_session_was_ended_still_holds_the_log_after_its_next_request(home: PostgresHome) -> None:
    with closing(home.open()) as log:
        pid = connection_of(log).info.backend_pid
        home.ask("SELECT pg_terminate_backend(%s)", pid)
        log.append(commit(1))
        assert connection_of(log).info.backend_pid != pid
        with pytest.raises(LogHeldError):
            home.open()
        log.append(commit(2))
    assert reopened(home).txid == 2


def test_the_logs_of_two_topologies_in_one_database_do_not_know_each_other(home: PostgresHome) -> None:
    other = PostgresHome(f"{home.address}-2")
    with closing(home.open()) as log, closing(other.open("other")) as second:
        log.append(commit(1))
        assert read(other).txid == 0
        second.append(commit(1))
        assert (read(home).topology, read(other).topology) == (TOPOLOGY, "other")
    home.remove()
    assert read(other).txid == 1


def test_a_user_without_rights_is_told_what_is_missing(home: PostgresHome) -> None:
    home.ask("CREATE ROLE reader LOGIN")
    try:
        as_reader = PostgresHome(home.address.replace("trident@", "reader@"))
        reopened(home)
        with pytest.raises(
            LogError, match="PostgreSQL refuses postgresql://reader@.*: permission denied .* Check user"
        ):
            as_reader.open()
        home.ask("GRANT SELECT ON trident_log_chunks, trident_log_heads TO reader")
        assert read(as_reader) == read(home)
    finally:
        home.ask("DROP OWNED BY reader")
        home.ask("DROP ROLE reader")


def test_two_first_starts_at_once_make_the_tables_once(home: PostgresHome, schema: str) -> None:
    homes = [home_in(schema, home, f"-{at}") for at in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert [state.epoch for state in threads.map(reopened, homes)] == [1] * 6


def test_a_log_beside_one_in_another_schema_says_so(
    home: PostgresHome, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    home.ask(f"CREATE SCHEMA {schema}_foreign CREATE TABLE trident_log_heads (another int)")
    beside = home_in(schema, home)
    try:
        reopened(home)
        assert caplog.messages == []
        reopened(beside)
        (said,) = caplog.messages
        assert "and schema public of that database has one of it: if it is to go on with that" in said
        assert "options=-csearch_path%3Dpublic in the address" in said
        reopened(beside)
        assert len(caplog.messages) == 1
    finally:
        home.ask(f"DROP SCHEMA {schema}_foreign CASCADE")


def test_tables_of_another_version_are_refused_by_name(home: PostgresHome, schema: str) -> None:
    home.ask(f"CREATE TABLE {schema}.trident_log_heads (topology text PRIMARY KEY, epoch bigint, id text)")
    with pytest.raises(LogError, match="trident_log_heads at .* is of another format version; use the version that"):
        home_in(schema, home).open()


@pytest.mark.parametrize(
    ("address", "url", "name"),
    [
        ("me@one,two:5433/db?topology=a&sslmode=require", "postgresql://me@one,two:5433/db?sslmode=require", "a"),
        ("h/db?topology=a#b", "postgresql://h/db", "a#b"),  # a hash is part of the name
        ("/db?host=%2Frun%2Fpg&topology=a", "postgresql:///db?host=%2Frun%2Fpg", "a"),
        ("?topology=a", "postgresql://", "a"),
        ("/db?topology=a%23b&port=5433", "postgresql:///db?port=5433", "a#b"),
    ],
)
def test_an_address_is_libpqs_and_a_name_also_if_taken_for_a_path(address: str, url: str, name: str) -> None:
    read_as = PostgresAddress.of(f"postgresql://{address}")
    assert psycopg.conninfo.conninfo_to_dict(read_as.url) == psycopg.conninfo.conninfo_to_dict(url)
    assert read_as.name == name
    assert PostgresAddress.of(str(read_as)) == read_as
    if not address.startswith(("/", "?")):
        assert PostgresAddress.of(str(Path(f"postgresql://{address}"))) == read_as


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://[::1/db?topology=a", "Invalid IPv6 URL; give an address as postgresql://USER"),
        ("postgresql://me:p4ss/w@h/db?topology=a", "must have no password"),
        ("postgresql://me:p4ss?w@h/db?topology=a", "name the log"),
        ("zookeeper://me:x/p4ss@h:2181/a", "is not a server"),
        ("s3://b/a#p4ss", "neither credentials nor options"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        log_address_of(address)
    assert "p4ss" not in str(raised.value)


def test_what_libpq_cannot_read_is_said() -> None:
    with pytest.raises(ConfigError, match="libpq cannot read it: .*nonsense"):
        PostgresHome("postgresql://localhost/db?topology=a&nonsense=1").open()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "trident.servers.postgres_connection", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"a log in PostgreSQL needs the package psycopg.*spark\[postgres\]"):
        PostgresHome("postgresql://localhost/db?topology=a").open()
