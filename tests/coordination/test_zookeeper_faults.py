"""A log in a real ZooKeeper whose connections are cut, sessions end, servers die and access is refused."""

from __future__ import annotations

import builtins
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.coordination.log_homes import ZooKeeperHome, read, reopened
from tests.coordination.log_processes import Driver
from tests.coordination.log_samples import TOPOLOGY, commit, without_epoch
from tests.harness.proxy import Proxy
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper
from trident.config import Config
from trident.coordination import holders, zookeeper_claim, zookeeper_nodes
from trident.coordination.log_address import open_log, open_reader
from trident.coordination.records import DefineRecord
from trident.coordination.zookeeper_log import ZooKeeperLog
from trident.errors import (
    ConfigError,
    CorruptLogError,
    EnvironmentProblem,
    FencedError,
    LogError,
    LogHeldError,
)
from trident.servers.zookeeper_address import ZooKeeperAddress

WAIT_S = 30


@pytest.fixture
def home(zookeeper_home: ZooKeeperHome) -> ZooKeeperHome:
    return zookeeper_home


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperEnsemble) -> Iterator[Proxy]:
    proxy = Proxy(zookeeper_server.members[0].port)
    yield proxy
    proxy.close()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


def through(proxy: Proxy, home: ZooKeeperHome) -> str:
    return f"zookeeper://127.0.0.1:{proxy.port}{home.path}"


# ---- an append whose outcome is not known ----------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["half request", "reply"])
@pytest.mark.parametrize("size", [10, 1_200_000], ids=["one node", "several nodes"])
def test_a_record_is_there_once_though_the_connection_is_cut(
    home: ZooKeeperHome, proxy: Proxy, point: Any, size: int
) -> None:
    with closing(ZooKeeperLog.open(through(proxy, home), TOPOLOGY)) as log:
        for txid in range(1, 4):
            log.append(DefineRecord(txid, "lines", "x" * size), durable=False)
            proxy.arm(point, lambda: None)
            log.append(commit(txid))
            assert not proxy.disarm()
            assert read(home) == log.state
        assert log.state.txid == 3
    assert without_epoch(reopened(home)) == without_epoch(log.state)


@pytest.mark.parametrize("point", ["half request", "reply"])
def test_a_segment_begins_once_though_the_connection_is_cut(home: ZooKeeperHome, proxy: Proxy, point: Any) -> None:
    with closing(ZooKeeperLog.open(through(proxy, home), TOPOLOGY, segment_bytes=1)) as log:
        for txid in range(1, 13):
            proxy.arm(point, lambda: None)
            log.append(commit(txid))
            proxy.disarm()
            assert read(home) == log.state
        assert home.segments()[-1].seq >= 3


@pytest.mark.parametrize(("point", "there"), [("held request", 1), ("half request", 1), ("reply", 2)])
def test_a_takeover_while_an_append_is_under_way_fences_it_and_loses_nothing_reported(
    home: ZooKeeperHome, proxy: Proxy, point: Any, there: int
) -> None:
    seconds: list[ZooKeeperLog] = []
    first = ZooKeeperLog.open(through(proxy, home), TOPOLOGY)
    first.append(commit(1))
    proxy.arm(point, lambda: seconds.append(home.open(takeover=True)))
    with pytest.raises(FencedError, match="epoch 2"):
        first.append(commit(2))
    proxy.disarm()
    (second,) = seconds
    # `reply`: it was carried out before the takeover, and the answer was lost. The successor has it.
    assert (first.state.txid, second.state.txid, read(home).txid) == (1, there, there)
    second.append(commit(there + 1, 2 << 20))
    first.close()
    second.close()
    assert reopened(home).winners.winner(there + 1) == 2 << 20


@pytest.mark.parametrize("point", ["half request", "reply"])
def test_a_claim_is_taken_once_though_the_connection_is_cut(
    home: ZooKeeperHome, proxy: Proxy, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened(home)
    about = holders.about

    def armed(*args: Any) -> dict[str, Any]:
        proxy.arm(point, lambda: None)  # the next request takes the claim
        return about(*args)

    monkeypatch.setattr(holders, "about", armed)
    with closing(ZooKeeperLog.open(through(proxy, home), TOPOLOGY)) as log:
        assert not proxy.disarm()
        assert log.epoch == 2
        log.append(commit(1))
    assert reopened(home).txid == 1


def test_an_append_that_was_interrupted_is_not_sent_again(
    home: ZooKeeperHome, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = home.open()
    carry_out = log._segments._carry_out

    def interrupted(*args: Any) -> None:
        carry_out(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(log._segments, "_carry_out", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(commit(1))
    monkeypatch.undo()
    with pytest.raises(LogError, match="was interrupted"):
        log.append(commit(1))
    log.close()
    assert reopened(home).txid == 1


# ---- servers that die ------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """A ZooKeeper of this test's own."""
    zookeeper = start_zookeeper(tmp_path / "zookeeper")
    yield zookeeper
    zookeeper.stop()


def waits(caplog: pytest.LogCaptureFixture) -> bool:
    return any("no answer from ZooKeeper for zookeeper://" in text for text in caplog.messages)


def until(condition: Callable[[], bool]) -> None:
    seconds = threading.Event()
    for _ in range(10 * WAIT_S):
        if condition():
            return
        seconds.wait(0.1)  # between two looks
    raise AssertionError("it did not happen")


def appended(thread: ThreadPoolExecutor, log: Any, txid: int) -> Future[None]:
    return thread.submit(log.append, commit(txid))


@pytest.mark.long
@pytest.mark.server
def test_an_append_waits_for_a_server_that_was_killed_and_goes_on(
    mortal: ZooKeeperEnsemble, thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"zookeeper://{mortal.hosts}/log"
    with closing(open_log(address, TOPOLOGY)) as log, closing(open_reader(address)) as reader:
        for txid in range(1, 4):
            log.append(commit(txid))
            assert reader.refresh().txid == txid
        mortal.stop()
        result = appended(thread, log, 4)
        until(lambda: waits(caplog))
        assert not result.done()
        mortal.restart()
        result.result(WAIT_S)
        log.check_owner()
        log.append(commit(5))
        assert reader.refresh() == log.state
        assert "ZooKeeper answers again" in caplog.text
        assert log.state.txid == 5
        assert (reader.holder() or "").endswith(")")


@pytest.mark.long
@pytest.mark.server
def test_what_waits_for_a_server_ends_soon_when_the_driver_is_to_stop(
    mortal: ZooKeeperEnsemble,
    thread: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zookeeper_nodes, "_STOP_S", 0.5)
    log = open_log(f"zookeeper://{mortal.hosts}/log", TOPOLOGY)
    log.append(commit(1))
    mortal.stop()
    result = appended(thread, log, 2)
    until(lambda: waits(caplog))
    log.stop_waiting()
    with pytest.raises(LogError, match=r"no answer from ZooKeeper at .* Batch 1 is the last one known to be committed"):
        result.result(WAIT_S)
    with pytest.raises(LogError, match="known to be committed"):
        log.check_owner()
    log.close()
    mortal.restart()
    again = open_log(f"zookeeper://{mortal.hosts}/log", TOPOLOGY)
    assert again.state.txid in (1, 2)
    again.close()


@pytest.mark.server
def test_after_stop_a_log_whose_server_answers_still_appends(home: ZooKeeperHome) -> None:
    with closing(home.open()) as log:
        log.stop_waiting()
        log.append(commit(1))
    assert reopened(home).txid == 1


@pytest.mark.server
@pytest.mark.soak
@pytest.mark.parametrize(("killed", "away_s"), [([0], 2), ([0, 1, 2], 20)])
def test_an_ensemble_loses_a_member_then_its_majority_and_no_record(
    tmp_path: Path, thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, killed: list[int], away_s: int
) -> None:
    zookeeper = start_zookeeper(tmp_path / "zookeeper", members=3)
    try:
        until(lambda: zookeeper.leader() is not None)
        address = f"zookeeper://{zookeeper.hosts}/log"
        with closing(open_log(address, TOPOLOGY)) as log:
            for member in killed:  # all of them: the one that is connected and the one that leads among them
                log.append(commit(log.state.txid + 1))
                zookeeper.members[member].kill()
                for _ in range(3):
                    log.append(commit(log.state.txid + 1))
                zookeeper.restart()
                until(lambda: zookeeper.leader() is not None)
            for member in range(2):
                zookeeper.members[member].kill()
            caplog.clear()
            last = log.state.txid
            result = appended(thread, log, last + 1)
            until(lambda: waits(caplog))
            assert not threading.Event().wait(away_s)
            assert not result.done()
            zookeeper.restart()
            result.result(WAIT_S)
            log.append(commit(last + 2))
            log.check_owner()
        again = open_log(address, TOPOLOGY)
        assert (again.state.txid, again.state.totals["batches"]) == (last + 2, last + 2)
        again.close()
    finally:
        zookeeper.stop()


@pytest.fixture
def gone() -> Iterator[str]:
    """A server of a machine that is gone: a connection is neither accepted nor refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than it keeps waiting
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_machine_of_the_ensemble_that_is_gone_does_not_keep_the_log_from_being_opened(
    home: ZooKeeperHome, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_nodes, "SESSION_S", 2.0)
    hosts = home.address.removeprefix("zookeeper://").removesuffix(home.path)
    for txid in range(1, 7):  # which one is asked first is drawn
        with closing(open_log(f"zookeeper://{gone},{hosts}{home.path}", TOPOLOGY)) as log:
            log.append(commit(txid))
    assert reopened(home).txid == 6


def test_a_server_that_takes_a_connection_and_never_answers_is_asked_again_soon(
    home: ZooKeeperHome, proxy: Proxy
) -> None:
    answers, silent = threading.Event(), threading.Event()

    def hold() -> None:
        silent.set()
        answers.wait(WAIT_S)

    with closing(open_log(through(proxy, home), TOPOLOGY)) as log:
        proxy.arm("reply", lambda: proxy.arm("held request", hold))  # the next request is that for the session
        since = time.monotonic()
        log.append(commit(1))
        assert silent.is_set()
        assert time.monotonic() - since < 8  # one try has a third of the ten seconds of a session
        answers.set()
        log.append(commit(2))
    assert reopened(home).txid == 2


# ---- sessions that end -----------------------------------------------------------------------------------------------


def end_session(log: ZooKeeperLog) -> None:
    """Have ZooKeeper end the session of a log, as it does when it hears nothing of it for too long."""
    before = log._connection.id
    identity = log._connection._client.client_id

    def renewed() -> bool:
        # The log takes its session back at once, perhaps before the other one has ended it.
        other = KazooClient(log.address.hosts, client_id=identity, connection_retry={"max_tries": 3})
        with suppress(other.handler.timeout_exception):
            other.start(5)
        other.stop()
        other.close()
        seconds = threading.Event()
        return any(log._connection.id not in (0, before) or seconds.wait(0.1) for _ in range(20))

    until(renewed)


def alive(home: ZooKeeperHome) -> list[str]:
    return list(home.client.get_children(f"{home.path}/alive"))


def test_a_claim_outlasts_its_session_and_the_log_is_still_held(home: ZooKeeperHome) -> None:
    with closing(home.open()) as log:
        log.append(commit(1))
        before = alive(home)
        end_session(log)
        log.append(commit(2))
        log.check_owner()
        until(lambda: alive(home) == before)
        owner = home.client.get(f"{home.path}/alive/{before[0]}")[1].ephemeralOwner
        assert owner == log._connection.id
        with pytest.raises(LogHeldError):
            home.open()
        assert read(home).txid == 2
    assert alive(home) == []


def test_a_session_that_is_renewed_after_a_takeover_changes_nothing(home: ZooKeeperHome) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(closing(home.open()))
        second = stack.enter_context(closing(home.open(takeover=True)))
        end_session(first)
        with pytest.raises(FencedError, match="epoch 2"):
            first.append(commit(1))
        second.append(commit(1))
        assert alive(home) == [second._claim.name.node]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_a_driver_that_is_paused_for_longer_than_its_session_goes_on_unless_it_was_replaced(
    home: ZooKeeperHome, replaced: bool
) -> None:
    with Driver(home) as driver:
        driver.says()
        assert driver.append() == "1"
        os.kill(driver.process.pid, signal.SIGSTOP)
        until(lambda: alive(home) == [])
        if replaced:  # no takeover is needed: its session has ended
            with closing(home.open()) as second:
                second.append(commit(2, 2 << 20))
        os.kill(driver.process.pid, signal.SIGCONT)
        said = driver.append()
        assert said.startswith("FencedError ") if replaced else said == "2"
    assert (read(home).txid, read(home).winners.winner(2)) == (2, 2 << 20 if replaced else 1 << 20)


def of_another_machine(home: ZooKeeperHome, log: ZooKeeperLog) -> None:
    """Let the claim of a log look as that of a process on another machine."""
    (claim,) = home.client.get_children(f"{home.path}/claim")
    path = f"{home.path}/claim/{claim}"
    home.client.set(path, home.client.get(path)[0].replace(b'"machine"', b'"elsewhere"'))
    zookeeper_claim._held_here.discard(log._claim.name.id)


def test_the_log_of_another_machine_is_free_when_its_session_ends(
    home: ZooKeeperHome, thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    first = home.open()
    of_another_machine(home, first)
    result = thread.submit(home.open)
    until(lambda: "waiting up to 10 seconds for the end of its session" in caplog.text)
    first.close()
    second = result.result(WAIT_S)
    assert second.epoch == 2
    second.close()


def test_the_log_of_another_machine_is_held_while_its_session_goes_on(
    home: ZooKeeperHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_claim, "SESSION_S", -0.5)
    with closing(home.open()) as first:
        of_another_machine(home, first)
        with pytest.raises(LogHeldError, match="held by process .*epoch 1"):
            home.open()
        first.append(commit(1))


# ---- damage ----------------------------------------------------------------------------------------------------------


def records(home: ZooKeeperHome) -> list[str]:
    segment = f"{home.path}/segments/{home.client.get(f'{home.path}/segments')[0].decode()}"
    return [f"{segment}/{name}" for name in sorted(home.client.get_children(segment))]


@pytest.mark.sample(5)
@pytest.mark.parametrize("at", [0, 5, 11, 20, -1])
@pytest.mark.parametrize("which", [0, 2, -1])
def test_any_changed_byte_is_an_error_that_names_the_node_and_changes_nothing(
    home: ZooKeeperHome, which: int, at: int
) -> None:
    with closing(home.open()) as log:
        for txid in range(1, 4):
            log.append(commit(txid))
    path = records(home)[which]
    data = bytearray(home.client.get(path)[0])
    data[at] ^= 1
    home.client.set(path, bytes(data))
    before = home.contents()
    with pytest.raises(CorruptLogError, match=f"{path} is damaged at byte 0: the record there has a wrong checksum"):
        home.open(takeover=True)
    assert home.contents() == before


def test_a_missing_record_is_an_error(home: ZooKeeperHome) -> None:
    with closing(home.open()) as log:
        for txid in range(1, 4):
            log.append(commit(txid))
    home.client.delete(records(home)[1])
    with pytest.raises(CorruptLogError, match="00000001 is damaged at byte 0: the record is missing"):
        read(home)


def test_a_record_of_which_a_crash_left_the_beginning_does_not_count(home: ZooKeeperHome) -> None:
    with closing(home.open()) as log:
        log.append(commit(1))
        log.append(DefineRecord(2, "lines", "x" * 1_000_000))
    home.client.delete(records(home)[-1])
    with closing(home.reader()) as reader:
        assert reader.refresh().definitions == {}
        assert reader.torn == 900_000
    assert (reopened(home).txid, reopened(home).definitions) == (1, {})


def test_a_writer_whose_log_was_set_back_stops(home: ZooKeeperHome) -> None:
    log = home.open()
    log.append(commit(1))
    log.append(commit(2))
    home.client.delete(records(home)[-1])
    for _ in range(2):
        with pytest.raises(LogError, match=r"its newest records were removed .* Batch 2 is the last one known"):
            log.append(commit(3))
    log.close()
    assert reopened(home).txid == 1


def test_a_reader_follows_a_log_that_was_removed_and_begun_again(home: ZooKeeperHome) -> None:
    with closing(home.reader()) as reader:
        with closing(home.open()) as log:
            log.append(commit(1))
            assert reader.refresh().incarnation == log.state.incarnation
        home.remove()
        with closing(home.open()) as log:
            for txid in (1, 2, 3):
                log.append(commit(txid))
            assert reader.refresh() == log.state


# ---- wrong addresses, missing programs, no access --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "read_as"),
    [
        ("zookeeper://host/a/b", "zookeeper://host:2181/a/b"),
        ("zookeeper://one, two:2182,10.0.0.1/log/", "zookeeper://one:2181,two:2182,10.0.0.1:2181/log"),
        ("zookeeper://[::1]:2183/log", "zookeeper://[::1]:2183/log"),
        (str(Path("zookeeper://host:1/log")), "zookeeper://host:1/log"),  # a path has lost a slash
        ("ZooKeeper://host/word count", "zookeeper://host:2181/word count"),
    ],
)
def test_addresses_are_read(address: str, read_as: str) -> None:
    assert str(ZooKeeperAddress.of(address)) == read_as
    assert Config(log_dir=address).log_folder("t") == address
    assert Config(log_dir=address).dead_letter_folder("t") == str(Path("trident-log", "t", "dead_letters"))
    assert Config(log_dir=address, dead_letter_dir="letters").dead_letter_folder("t") == "letters"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("zookeeper://host:2181", "name a path after the servers, as in zookeeper://host1:2181,host2:2181/trident/"),
        ("zookeeper://host:2181/", "name a path after the servers"),
        ("zookeeper:///path", "'' is not a server; give HOST:PORT"),
        ("zookeeper://a,,b/path", "'' is not a server"),
        ("zookeeper://host:port/path", "'host:port' is not a server"),
        ("zookeeper://host:70000/path", "'host:70000' is not a server"),
        ("zookeeper://host/a//b", "a path in ZooKeeper has no empty part"),
        ("zookeeper://host/a/../b", "no part that is . or .."),
        ("zookeeper://host/zookeeper/log", "ZooKeeper keeps /zookeeper for itself"),
        ("zookeeper://user:secret@host/log", "no user or password in it, .* TRIDENT_ZOOKEEPER_AUTH"),
    ],
)
def test_a_wrong_address_is_refused_before_anything_starts(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Config(log_dir=address)
    assert "secret" not in str(caught.value)


def connections() -> int:
    """Return how many connections there are: each has such a thread."""
    return sum("zk_loop" in thread.name for thread in threading.enumerate())


def test_without_a_server_the_start_ends_soon_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_nodes, "SESSION_S", 0.3)
    before = connections()
    for open_it in (lambda at: open_log(at, TOPOLOGY), open_reader):
        with pytest.raises(LogError, match=r"no ZooKeeper answers at 127.0.0.1:1 \(waited 0.3 seconds .* Start it, or"):
            open_it("zookeeper://127.0.0.1:1/log")
    assert connections() == before


def test_without_kazoo_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("kazoo"):
            raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        EnvironmentProblem, match=r"needs the package kazoo .* pip install 'trident-spark\[zookeeper\]'"
    ):
        open_log("zookeeper://host/log", TOPOLOGY)


def test_nodes_that_this_user_may_not_touch_are_refused_and_the_right_user_goes_on(
    home: ZooKeeperHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.client.create(home.path, b"", acl=[make_digest_acl("trident", "secret", all=True)], makepath=True)
    with pytest.raises(LogError, match="refuses access to .*TRIDENT_ZOOKEEPER_AUTH=digest:USER:PASSWORD"):
        home.open()
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_AUTH", "digest:trident:secret")
    with closing(home.open()) as log:
        log.append(commit(1))
        assert read(home).txid == 1
    monkeypatch.delenv("TRIDENT_ZOOKEEPER_AUTH")
    with pytest.raises(LogError, match="refuses access") as caught:
        read(home)
    assert "secret" not in str(caught.value)


def test_old_segments_that_cannot_be_removed_are_reported_and_do_no_harm(
    home: ZooKeeperHome, caplog: pytest.LogCaptureFixture
) -> None:
    reopened(home)
    home.client.create(f"{home.path}/segments/00000000-0001/notes/below", makepath=True)
    with caplog.at_level(logging.WARNING):
        assert reopened(home).epoch == 2
        assert reopened(home).epoch == 3
    assert "cannot remove old segments" in caplog.text
