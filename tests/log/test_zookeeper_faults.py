"""The contract of a log, on one in a real ZooKeeper; connections are cut, sessions end, servers die and access is refused."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.harness.commands import until
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper
from tests.log.log_homes import ZooKeeperHome, read, reopened
from tests.log.log_processes import ProcessContract
from tests.log.log_samples import TOPOLOGY, commit
from tests.log.stored_faults import IsKilled, StoredAway, StoredContents, StoredFaults
from tests.log.test_log_contract import LogContract, OwnerContract
from trident.config import Config
from trident.errors import FencedError, LogError, LogHeldError
from trident.log import lock, zookeeper_records
from trident.log.log_address import open_log, open_reader
from trident.log.records import DefineRecord
from trident.log.stored_log import StoredLog, held_here
from trident.log.zookeeper_records import ZooKeeperRecords
from trident.nodes.zookeeper_nodes import ZooKeeperNodes
from trident.servers.log_addresses import ZooKeeperAddress

WAIT_S = 30


@pytest.fixture
def home(zookeeper_home: ZooKeeperHome) -> ZooKeeperHome:
    return zookeeper_home


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperEnsemble) -> Iterator[Proxy]:
    with closing(Proxy(zookeeper_server.members[0].port)) as proxy:
        yield proxy


class TestZooKeeperLog(LogContract, OwnerContract, ProcessContract, StoredContents): ...


class TestFaultsOfZooKeeperLog(StoredFaults):
    asks = (ZooKeeperNodes, "call")

    @pytest.fixture
    def server(self, zookeeper_server: ZooKeeperEnsemble) -> Server:
        return zookeeper_server.members[0]

    @pytest.fixture
    def behind(self, home: ZooKeeperHome, proxy: Proxy) -> ZooKeeperHome:
        return home.behind(proxy.port)


@pytest.mark.long
class TestZooKeeperThatHangs(StoredAway):
    at_start = "no ZooKeeper answers at .* Start it, or"

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Server]:
        with start_zookeeper(tmp_path / "zookeeper") as zookeeper:
            yield zookeeper.members[0]

    @pytest.fixture
    def home(self, server: Server) -> ZooKeeperHome:
        return ZooKeeperHome(server.address, "/log", None)

    @pytest.fixture
    def quick(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if "at_the_start" in request.node.name:
            monkeypatch.setattr(zookeeper_records, "SESSION_S", 1.0)


@pytest.mark.long
class TestZooKeeperThatIsKilled(IsKilled, TestZooKeeperThatHangs): ...


def test_a_server_that_accepts_and_never_answers_is_asked_again_soon(home: ZooKeeperHome, proxy: Proxy) -> None:
    answers, silent = threading.Event(), threading.Event()

    def hold() -> None:
        silent.set()
        answers.wait(WAIT_S)

    with closing(home.behind(proxy.port).open()) as log:
        proxy.arm("reply", lambda: proxy.arm("held request", hold))  # the next request is that for the session
        since = time.monotonic()
        log.append(commit(1))
        assert silent.is_set()
        assert time.monotonic() - since < 8  # one try has a third of the ten seconds of a session
        answers.set()
        log.append(commit(2))
    assert reopened(home).txid == 2


def records_of(log: StoredLog) -> ZooKeeperRecords:
    assert isinstance(log._store, ZooKeeperRecords)
    return log._store


def end_session(log: StoredLog) -> None:
    """Have ZooKeeper end the session of a log, as it does when it hears nothing of it for too long."""
    before = records_of(log)._nodes.id
    identity = records_of(log)._nodes._client.client_id

    def renewed() -> bool:
        # The log takes its session back at once, perhaps before the other one has ended it.
        hosts = ZooKeeperAddress.of(records_of(log).place).hosts
        other = KazooClient(hosts, client_id=identity, connection_retry={"max_tries": 3})
        with suppress(other.handler.timeout_exception):
            other.start(5)
        other.stop()
        other.close()
        seconds = threading.Event()
        return any(records_of(log)._nodes.id not in (0, before) or seconds.wait(0.1) for _ in range(20))

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
        assert owner == records_of(log)._nodes.id
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
        assert alive(home) == [second._claim.head.name]


def opened_elsewhere(home: ZooKeeperHome) -> StoredLog:
    """Open a log as if this were a process of another machine."""
    facts = lock.holder_facts
    with mock.patch(
        "trident.log.stored_log.holder_facts",
        lambda *args: json.dumps({**json.loads(facts(*args)), "machine": "elsewhere"}),
    ):
        log = home.open()
    held_here.discard(log._claim.head.id)
    return log


def test_the_log_of_another_machine_is_free_when_its_session_ends(
    home: ZooKeeperHome, thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened_elsewhere(home)
    result = thread.submit(home.open)
    until(lambda: "waiting up to 10 seconds for the end of its session" in caplog.text)
    first.close()
    second = result.result(WAIT_S)
    assert second.epoch == 2
    second.close()


def test_the_log_of_other_machines_is_held_by_its_session(home: ZooKeeperHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened_elsewhere(home)) as first:
        monkeypatch.setattr(zookeeper_records, "SESSION_S", 1.0)
        with pytest.raises(LogHeldError, match="held by process .*epoch 1"):
            home.open()
        first.append(commit(1))


def test_a_driver_whose_log_was_begun_again_is_fenced(home: ZooKeeperHome) -> None:
    first = home.open()
    home.remove()
    with closing(home.open()) as second:  # its head has the version that the first one's had
        with pytest.raises(FencedError, match="the claim .* is gone"):
            first.append(commit(1))
        second.append(commit(1))
        assert read(home) == second.state
    first.close()


def test_an_append_is_one_request(home: ZooKeeperHome, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    call = ZooKeeperNodes.call

    def counted(self: ZooKeeperNodes, *args: Any) -> Any:
        asked.append(args[0].__qualname__)
        return call(self, *args)

    with closing(home.open()) as log:
        monkeypatch.setattr(ZooKeeperNodes, "call", counted)
        for txid in range(1, 101):
            log.append(commit(txid, payload="x" * 500))
        assert len(asked) == 100
        chunks = [name for name in home.contents() if name.startswith("chunks/")]
        assert len(chunks) > 5  # a chunk goes with the head that names it
        assert len(home.contents()["head"]) < ZooKeeperRecords.head_bytes + 2000
        assert read(home) == log.state


def test_a_large_record_of_which_a_crash_left_the_beginning_does_not_count(
    home: ZooKeeperHome, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(commit(1))
    records, left = records_of(log), [2]
    write = records._write

    def killed(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(records, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        log.append(DefineRecord(2, "lines", "x" * 2_000_000))
    log.close()
    assert len([name for name in home.contents() if name.endswith((".3.0", ".3.1", ".3.2"))]) == 2
    assert (read(home).txid, read(home).definitions) == (1, {})
    for _ in range(2):
        assert (reopened(home).txid, reopened(home).definitions) == (1, {})
    assert not [name for name in home.contents() if ".3." in name]


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


def connections() -> int:
    """Return how many connections there are: each has such a thread."""
    return sum("zk_loop" in thread.name for thread in threading.enumerate())


def test_without_a_server_the_start_ends_soon_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_records, "SESSION_S", 0.3)
    before = connections()
    for open_it in (lambda at: open_log(at, TOPOLOGY), open_reader):
        with pytest.raises(LogError, match=r"no ZooKeeper answers at 127.0.0.1:1 \(tried for 0.3 s\). Start it, or"):
            open_it("zookeeper://127.0.0.1:1/log")
    assert connections() == before


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


def test_old_segments_that_cannot_be_removed_are_told_of(home: ZooKeeperHome, caplog: pytest.LogCaptureFixture) -> None:
    reopened(home)
    home.client.create(f"{home.path}/chunks/00000000-0001-00000000-ab/notes", makepath=True)
    with caplog.at_level(logging.WARNING):
        assert reopened(home).epoch == 2
        assert reopened(home).epoch == 3
    assert "cannot remove old segments" in caplog.text
