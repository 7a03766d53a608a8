"""A PostgreSQL state and a server that ends, hangs, refuses or loses an answer."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.harness.proxy import Point, Proxy
from tests.harness.servers import make_certificate, start_postgres
from tests.harness.store_commits import Log, commit, update, values
from tests.states.postgres.postgres_states import Home
from trident.errors import BackendError, ConfigError, FencedError

pytestmark = pytest.mark.server
PATIENT: dict[str, Any] = {"retries": 8, "backoff_s": 0.05}


@pytest.fixture
def home(either: Home) -> Home:
    return either


@pytest.mark.parametrize("point", ["half request", "reply"])
def test_a_commit_whose_connection_breaks_is_made_once(home: Home, proxy: Proxy, point: Point) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf, url=home.url.replace(str(home.port), str(proxy.port)))
    commit(state, log, 1, 0, {"cow": 1})
    txid = log.txid(2)
    state.begin_commit(txid)
    update(state, {"cow": 1})
    proxy.arm(point, lambda: None)
    state.commit(txid)
    assert not proxy.disarm()
    log.record(txid)
    assert values(state, "cow") == [2]
    commit(state, log, 3, 0, {"cow": 1})
    assert values(home.state(conf), "cow") == [3]


def test_a_commit_that_was_sent_again_and_overtaken_is_refused(home: Home, proxy: Proxy) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf, url=home.url.replace(str(home.port), str(proxy.port)))
    commit(state, log, 1, 0, {"cow": 1})
    txid = log.txid(2)
    state.begin_commit(txid)
    update(state, {"cow": 1})
    proxy.arm("half request", lambda: commit(home.state(conf), log, 2, 1, {"cow": 10}, record=False))
    with pytest.raises(FencedError):
        state.commit(txid)
    proxy.disarm()
    assert values(home.state(conf), "cow") == [11]


def test_connections_that_the_server_ended_are_made_again(home: Home) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf)
    for batch in (1, 2, 3):
        txid = log.txid(batch)
        state.begin_commit(txid)
        home.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trident'")
        update(state, {"cow": 1})
        home.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trident'")
        state.commit(txid)
        log.record(txid)
    assert values(state, "cow") == [3]


def test_a_socket_that_only_hangs_up_is_a_lost_connection(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    state, wait, fails = home.state(home.conf()), psycopg.Connection.wait, iter([True])
    commit(state, Log(), 1, 0, {"cow": 1})

    def hang_up(self: psycopg.Connection[Any], *args: Any, **options: Any) -> Any:
        if next(fails, False):
            raise psycopg.OperationalError("connection socket closed")
        return wait(self, *args, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", hang_up)
    assert values(state, "cow") == [1]
    assert next(fails, None) is None


def test_a_statement_that_waits_too_long_fails_the_batch_and_writes_nothing(home: Home) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf, timeout_s=0.3, max_keys_per_call=1)
    commit(state, log, 1, 0, {"cow": 1})
    with home.locked(conf.prefix), pytest.raises(BackendError, match="it took longer than timeout_s") as failure:
        commit(state, log, 2, 0, {"calf": 1, "cow": 1, "bull": 1})
    assert failure.value.retryable
    assert values(home.state(conf), "calf", "cow", "bull") == [None, 1, None]
    commit(state, log, 2, 1, {"calf": 1, "cow": 1, "bull": 1})
    assert values(state, "calf", "cow", "bull") == [1, 2, 1]


@pytest.mark.parametrize("max_keys_per_call", [1, 100])
def test_a_driver_that_is_killed_in_a_commit_leaves_all_of_it_or_nothing(home: Home, max_keys_per_call: int) -> None:
    conf, log = home.conf(), Log()
    commit(home.state(conf), log, 1, 0, {"cow": 1, "calf": 1})
    state = home.state(conf, max_keys_per_call=max_keys_per_call)
    with home.locked(conf.prefix):
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            commit(state, log, 2, 0, {"calf": 1, "cow": 1, "bull": 1})
            os._exit(1)
        home.wait_for_waiter()
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    home.wait_for_rest()  # the server may still do what the child had asked for; then the next attempt would be a later one
    commit(state, log, 2, 1, {"cow": 10})
    commit(state, log, 3, 1, {"calf": 1, "bull": 1})
    assert values(home.state(conf), "calf", "cow", "bull") == [2, 11, 1]


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A process of tests beside others ignores SIGINT; not so here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_in_a_commit_leaves_a_state_that_goes_on(home: Home) -> None:
    conf, log = home.conf(), Log()
    state = home.state(conf, timeout_s=60)  # so that it is Ctrl-C that ends the statement
    commit(state, log, 1, 0, {"cow": 1})

    def interrupt() -> None:
        home.wait_for_waiter()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with home.locked(conf.prefix):
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            commit(state, log, 2, 0, {"cow": 1})
        thread.join()
    commit(state, log, 2, 1, {"cow": 1})
    assert values(state, "cow") == [2]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Home]]:
    homes: list[Home] = []

    def start_one(*arguments: object) -> Home:
        homes.append(Home(start_postgres(tmp_path, *arguments)))
        return homes[-1]

    yield start_one
    for home in homes:
        home.close()
        home.server.stop()


def test_passwords_are_checked_and_never_shown(start: Callable[..., Home]) -> None:
    home = start()
    home.sql("CREATE ROLE locked LOGIN PASSWORD 'hush hush' SUPERUSER")
    rules = home.server.work / "data" / "pg_hba.conf"
    rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    home.sql("SELECT pg_reload_conf()")
    url = home.url.replace("trident@", "locked:hush%20hush@")
    commit(home.state(home.conf(), url=url), Log(), 1, 0, {"cow": 1})
    commit(home.state(home.conf(), user="locked", password="hush hush"), Log(), 1, 0, {"cow": 1})
    wrong: list[dict[str, Any]] = [
        {"url": url.replace("hush@", "hushed@")},
        {"url": url.replace(":hush%20hush@", "@")},
        {"url": home.url, "user": "stranger", "password": "hush"},
        {"url": url.replace("/postgres", "/nowhere")},
        {"url": url + "?sslmode=require"},
    ]
    for options in wrong:
        with pytest.raises(BackendError, match="check user, password and database of the URL") as failure:
            commit(home.state(home.conf(), **options), Log(), 1, 0, {"cow": 1})
        assert not failure.value.retryable
        assert "hush" not in str(failure.value)
    with pytest.raises(ConfigError, match="libpq cannot read url=.*quote special characters with %") as unread:
        commit(home.state(home.conf(), url=home.url.replace("trident@", "locked:hu%sh@")), Log(), 1, 0, {"cow": 1})
    assert "hu%sh" not in str(unread.value)


@pytest.mark.long
def test_tls_is_used_and_verified(start: Callable[..., Home], tmp_path: Path) -> None:
    home = start()
    data, certificate = home.server.work / "data", tmp_path / "cert.pem"
    make_certificate(certificate, data / "server.key")
    shutil.copy(certificate, data / "server.crt")
    for name in ("server.key", "server.crt"):
        shutil.chown(data / name, data.owner())
        (data / name).chmod(0o600)
    rules = data / "pg_hba.conf"
    rules.write_text(f"hostnossl all all 127.0.0.1/32 reject\n{rules.read_text()}")
    home.server.kill()
    home.server.argv += ["-c", "ssl=on"]
    home.server.start()
    state = home.state(home.conf(), tls=True, tls_ca_file=str(certificate))
    commit(state, Log(), 1, 0, {"cow": 1})
    assert values(state, "cow") == [1]
    for options, text in (({"tls": True}, "certificate"), ({"url": home.url + "?sslmode=disable"}, "no encryption")):
        with pytest.raises(BackendError, match=f"{text}.*check user, password and database") as failure:
            values(home.state(home.conf(), **options), "cow")
        assert not failure.value.retryable


@pytest.mark.long
def test_a_server_that_takes_no_writes_is_one_to_wait_for(start: Callable[..., Home]) -> None:
    home, log = start("-c", "hot_standby=on"), Log()
    conf = home.conf()
    commit(home.state(conf), log, 1, 0, {"cow": 1})
    home.server.kill()
    (home.server.work / "data" / "standby.signal").touch()
    home.server.start()
    state = home.state(conf, retries=1)
    assert values(state, "cow") == [1]
    with pytest.raises(BackendError, match="the server is a standby: give the address of the primary") as failure:
        commit(state, log, 2, 0, {"cow": 1})
    assert failure.value.retryable
    home.sql("SELECT pg_promote()")
    commit(home.state(conf, **PATIENT), log, 2, 1, {"cow": 1})
    assert values(state, "cow") == [2]


def test_a_server_without_fsync_is_warned_of(start: Callable[..., Home], caplog: pytest.LogCaptureFixture) -> None:
    home = start("-c", "fsync=off")
    commit(home.state(home.conf()), Log(), 1, 0, {"cow": 1})
    assert [message for message in caplog.messages if "fsync=off" in message]
