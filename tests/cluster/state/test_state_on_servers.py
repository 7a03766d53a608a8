"""What a cluster's state does when its server is away or not right: lost answers and connections, wrong addresses, tables."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kazoo.client import KazooClient

from tests.harness import cluster_states
from tests.harness.cluster_states import LOST_ANSWERS, Opened, address_on, check_hang, opened
from tests.harness.commands import environment, until
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper
from trident.cluster_state.cluster_address import open_cluster_state
from trident.errors import ClusterError, ClusterUnreachable
from trident.nodes.interface import StoredNode
from trident.nodes.polled_nodes import SqlTable
from trident.servers.log_addresses import PostgresAddress

pytestmark = pytest.mark.server


def in_zookeeper(hosts: str, root: str, session_timeout_s: float = 10.0) -> AbstractContextManager[Opened]:
    return cluster_states.opened(f"zookeeper://{hosts}{root}", session_timeout_s)


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return f"/{abs(hash(request.node.nodeid))}"


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperEnsemble) -> Iterator[Proxy]:
    with closing(Proxy(zookeeper_server.members[0].port)) as between:
        yield between


@pytest.fixture
def direct(zookeeper_server: ZooKeeperEnsemble, root: str) -> Iterator[Opened]:
    """A session that nothing happens to."""
    with in_zookeeper(zookeeper_server.hosts, root) as one:
        yield one


@pytest.fixture
def shaky(proxy: Proxy, root: str) -> Iterator[Opened]:
    with in_zookeeper(f"127.0.0.1:{proxy.port}", root) as one:
        yield one


def lost(proxy: Proxy, shaky: Opened, act: Callable[[], None] = lambda: None) -> None:
    """Have the answer to the next request lost; the server has carried it out when `act` runs."""
    shaky.settled()
    proxy.arm("reply", act)


def reconnected(proxy: Proxy, shaky: Opened) -> None:
    assert not proxy.disarm()
    shaky.until(lambda told: ("connected", "") in told)
    assert shaky.take()[:2] == [("suspended", ""), ("connected", "")]


@pytest.mark.parametrize("case", LOST_ANSWERS)
def test_a_change_with_a_lost_answer_is_made_once_or_not(
    proxy: Proxy, shaky: Opened, direct: Opened, case: Any
) -> None:
    before, act, returned, node = case
    before(shaky.state, direct.state)
    lost(proxy, shaky)
    assert act(shaky.state) == returned
    reconnected(proxy, shaky)
    assert (direct.state.get_node("/a") or ())[:2] == node


@pytest.mark.parametrize("version", [None, 0])
def test_a_change_whose_answer_was_lost_and_that_others_have_changed_is_not_known(
    proxy: Proxy, shaky: Opened, direct: Opened, version: int | None
) -> None:
    if version is not None:
        direct.state.set_data("/a", b"0")
    lost(proxy, shaky, lambda: direct.state.set_data("/a", b"2"))
    with pytest.raises(ClusterUnreachable, match="others have changed it since: it is not known whether"):
        shaky.state.compare_and_set("/a", b"1", version)
    reconnected(proxy, shaky)
    assert (direct.state.get_node("/a") or ())[:2] == (b"2", 1 if version is None else 2)


def test_a_sequential_node_whose_answer_was_lost_is_not_made_twice(proxy: Proxy, shaky: Opened, direct: Opened) -> None:
    before = direct.state.create_sequential("/all/e", b"1")
    lost(proxy, shaky)
    made = shaky.state.create_sequential("/all/e", b"1")
    reconnected(proxy, shaky)
    assert made > before
    assert direct.state.get_children("/all") == [before[5:], made[5:]]


def test_an_ephemeral_node_whose_takeover_lost_its_answer_is_ours(proxy: Proxy, shaky: Opened, direct: Opened) -> None:
    direct.state.set_ephemeral_node("/a", b"theirs")
    lost(proxy, shaky)
    shaky.state.set_ephemeral_node("/a", b"ours")
    reconnected(proxy, shaky)
    direct.state.get_data("/a", watch=True)
    shaky.state.close()
    direct.told(("changed", "/a"))


def test_watches_end_with_the_connection_until_the_next_reading(proxy: Proxy, shaky: Opened, direct: Opened) -> None:
    direct.state.set_data("/changed", b"1")
    direct.state.set_data("/below/a", b"1")
    shaky.state.get_data("/changed", watch=True)
    shaky.state.get_data("/created", watch=True)
    shaky.state.get_children("/below", watch=True)
    lost(proxy, shaky, lambda: direct.state.set_data("/changed", b"2"))
    shaky.state.get_data("/")
    assert not proxy.disarm()
    shaky.until(lambda told: ("connected", "") in told)
    direct.state.set_data("/changed", b"3")
    direct.state.set_data("/below/b", b"1")
    assert shaky.settled() == [("suspended", ""), ("connected", "")]
    assert shaky.state.get_data("/changed", watch=True) == b"3"
    assert shaky.state.get_data("/created", watch=True) is None
    assert shaky.state.get_children("/below", watch=True) == ["a", "b"]
    direct.state.set_data("/changed", b"4")
    direct.state.set_data("/created", b"1")
    direct.state.delete_node("/below/a")
    shaky.told(("changed", "/changed"), ("changed", "/created"), ("changed", "/below"))


def test_a_server_that_is_killed_and_started_again_is_waited_for(
    zookeeper_server: ZooKeeperEnsemble, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    with in_zookeeper(zookeeper_server.hosts, root, 60.0) as one:  # a busy machine takes its time to start it
        one.state.set_data("/a", b"1")
        one.state.set_ephemeral_node("/b", b"2")
        one.state.get_data("/a", watch=True)
        zookeeper_server.members[0].kill()
        one.told(("suspended", ""))
        answers: list[object] = []
        waits = threading.Thread(target=lambda: answers.append(one.state.get_data("/a")))
        waits.start()
        zookeeper_server.restart()
        one.told(("connected", ""))
        waits.join()
        assert answers == [b"1"]
        assert one.state.get_data("/b") == b"2"
        one.state.get_data("/a", watch=True)
        one.state.set_data("/a", b"3")
        one.told(("changed", "/a"))
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.parametrize(("leave", "come_back"), [(Server.kill, Server.start), (Server.pause, Server.resume)])
def test_a_server_that_stays_away_or_hangs_is_an_error_after_the_timeout(
    zookeeper_server: ZooKeeperEnsemble, root: str, leave: Callable[[Server], None], come_back: Callable[[Server], None]
) -> None:
    (server,) = zookeeper_server.members
    with in_zookeeper(zookeeper_server.hosts, root, 1.0) as one:
        leave(server)
        try:
            calls: list[Callable[[], object]] = [
                lambda: one.state.get_data("/a"),
                lambda: one.state.set_data("/a", b"1"),
            ]
            for call in calls:
                began = time.monotonic()
                said = f"no answer from ZooKeeper at zookeeper://{zookeeper_server.hosts}.* for 1 seconds"
                with pytest.raises(ClusterUnreachable, match=said):
                    call()
                assert time.monotonic() - began < 10.0
        finally:
            come_back(server)
        one.until(lambda told: told[-1:] in ([("connected", "")], [("expired", "")]))
        one.state.set_data("/a", b"2")
        assert one.state.get_data("/a") == b"2"


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with start_zookeeper(tmp_path_factory.mktemp("ensemble"), 3) as three:
        yield three


@pytest.mark.long
@pytest.mark.slow
def test_an_ensemble_that_loses_a_member_and_its_majority(ensemble: ZooKeeperEnsemble) -> None:
    until(ensemble.leader, "the ensemble has a leader")
    with in_zookeeper(ensemble.hosts, "/storm", 60.0) as one, in_zookeeper(ensemble.hosts, "/storm", 60.0) as other:
        one.state.set_data("/a", b"0")
        one.state.set_ephemeral_node("/b", b"1")
        other.state.get_data("/b", watch=True)
        for member in ensemble.members:  # each in turn, so the one that each session speaks to is among them
            member.kill()
            version = one.state.get_node("/a")
            assert version is not None
            assert one.state.compare_and_set("/a", b"next", version.version)
            assert not other.state.compare_and_set("/a", b"too late", version.version)
            member.start()
            until(ensemble.leader, "the ensemble has a leader")
        assert one.state.get_node("/a") == StoredNode(b"next", 3)
        one.settled()
        for member in ensemble.members[:2]:
            member.kill()
        one.until(lambda told: ("suspended", "") in told)
        answers: list[object] = []
        waits = threading.Thread(target=lambda: answers.append(one.state.compare_and_set("/a", b"last", 3)))
        waits.start()
        ensemble.restart()
        waits.join()
        assert answers == [True]
        one.until(lambda told: ("connected", "") in told)
        assert ("expired", "") not in [*one.take(), *other.take()]
        assert other.state.get_data("/b") == b"1"


def test_where_nothing_answers_it_is_an_error_in_time_and_leaves_no_thread() -> None:
    before, hosts = set(threading.enumerate()), "127.0.0.1:1,no-such-host.invalid:2181"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address, said in (
            (hosts, rf"no ZooKeeper answers at {hosts} \(tried for 0.5 s\). Start it, or"),
            (f"127.0.0.1:{silent.getsockname()[1]}", "no ZooKeeper answers"),
        ):
            began = time.monotonic()
            with pytest.raises(ClusterUnreachable, match=said):
                open_cluster_state(f"zookeeper://{address}", 0.5)
            assert time.monotonic() - began < 10.0
    assert not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]


def test_a_machine_that_is_gone_keeps_no_session_from_others(zookeeper_server: ZooKeeperEnsemble, root: str) -> None:
    with contextlib.ExitStack() as stack:
        gone = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # A full queue: whoever connects now hears nothing at all, as of a machine without power.
        waiting = stack.enter_context(socket.socket())
        waiting.connect(gone.getsockname())
        hosts = f"127.0.0.1:{gone.getsockname()[1]},127.0.0.1:1,{zookeeper_server.hosts},no-such-host.invalid:2181"
        for _ in range(6):  # which is asked first is drawn
            with in_zookeeper(hosts, root, 1.0) as one:
                one.state.set_data("/a", b"1")


@pytest.mark.slow
def test_nothing_but_the_error_is_printed(tmp_path: Path) -> None:
    program = (
        "from trident.cluster_state.cluster_address import open_cluster_state\n"
        "try:\n    open_cluster_state('zookeeper://127.0.0.1:1,no-such-host.invalid', 0.5)\n"
        "except Exception as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("no ZooKeeper answers at 127.0.0.1:1,no-such-host.invalid:2181 (tried for 0.5 s)")


def test_nodes_are_where_any_client_finds_them(zookeeper_server: ZooKeeperEnsemble, root: str) -> None:
    client = KazooClient(zookeeper_server.hosts)
    client.start()
    try:
        with in_zookeeper(zookeeper_server.hosts, f"{root}/deep/root") as one:
            one.state.set_data("/storms/a", json.dumps({"storm-name": "größe"}).encode())
            assert json.loads(client.get(f"{root}/deep/root/storms/a")[0]) == {"storm-name": "größe"}
            one.state.get_data("/storms/a", watch=True)
            client.set(f"{root}/deep/root/storms/a", b"theirs")
            one.told(("changed", "/storms/a"))
            client.create(f"{root}/deep/root/storms/b")  # without data
            assert one.state.get_data_below("/storms") == {"a": b"theirs", "b": b""}
    finally:
        client.stop()
        client.close()


def test_nodes_are_for_the_user_of_the_cluster_alone(
    zookeeper_server: ZooKeeperEnsemble, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    with in_zookeeper(zookeeper_server.hosts, root) as stranger:
        monkeypatch.setenv("TRIDENT_ZOOKEEPER_AUTH", "digest:trident:se:cret")
        with in_zookeeper(zookeeper_server.hosts, root) as one, in_zookeeper(zookeeper_server.hosts, root) as other:
            one.state.set_data("/all/a", b"1")
            one.state.set_ephemeral_node("/all/b", b"1")
            other.state.set_ephemeral_node("/all/b", b"2")
            calls: list[Callable[[], object]] = [
                lambda: stranger.state.get_data("/all/a"),
                lambda: stranger.state.get_children("/all", watch=True),
                lambda: stranger.state.get_data_below("/all"),
                lambda: stranger.state.get_data_each(["/all/a"]),
                lambda: stranger.state.set_data("/all/a", b"2"),
                lambda: stranger.state.set_data("/all/c", b"2"),
                lambda: stranger.state.compare_and_set("/all/a", b"2", 0),
                lambda: stranger.state.set_ephemeral_node("/all/b", b"3"),
                lambda: stranger.state.create_sequential("/all/c", b"2"),
                lambda: stranger.state.delete_node("/all/a"),
                lambda: stranger.state.mkdirs("/all/c/d"),
            ]
            expected = "refuses access to the state of the cluster .*: give TRIDENT_ZOOKEEPER_AUTH=digest:USER:PASSWORD"
            for call in calls:
                with pytest.raises(ClusterError, match=expected):
                    call()
            assert one.state.get_data_below("/all") == {"a": b"1", "b": b"2"}
            monkeypatch.delenv("TRIDENT_ZOOKEEPER_AUTH")
            for path, makes in {"/all/below": True, "/all": False}.items():
                with pytest.raises(ClusterError, match=expected):
                    open_cluster_state(f"zookeeper://{zookeeper_server.hosts}{root}{path}", makes=makes)
    assert threading.active_count() == threads


def test_a_state_whose_server_is_away_can_be_closed(zookeeper_server: ZooKeeperEnsemble, root: str) -> None:
    with in_zookeeper(zookeeper_server.hosts, root) as one:
        zookeeper_server.members[0].kill()
        try:
            one.told(("suspended", ""))
            began = time.monotonic()
            one.state.close()
            assert time.monotonic() - began < 10.0
        finally:
            zookeeper_server.restart()


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    return address_on("postgres", request)


def ask(address: str, query: Any) -> list[Any]:
    with psycopg.connect(PostgresAddress.of(address, "cluster").url, autocommit=True) as connection:
        answer = connection.execute(query)
        return answer.fetchall() if answer.description else []


@pytest.mark.sample(6)
@pytest.mark.parametrize("is_killed", [False, True], ids=["cut", "killed"])
@pytest.mark.parametrize("case", LOST_ANSWERS)
def test_a_change_is_made_once_though_the_answer_to_its_commit_is_lost(
    address: str, postgres_server: Server, monkeypatch: pytest.MonkeyPatch, is_killed: bool, case: Any
) -> None:
    before, act, returned, node = case

    def lose() -> None:
        if is_killed:
            postgres_server.kill()
            postgres_server.start()

    with closing(Proxy(postgres_server.port)) as proxy:
        through = address.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with opened(through) as shaky, opened(address) as direct:
            before(shaky.state, direct.state)
            carry_out, lost = SqlTable.carry_out, list[Any]()

            def carry_out_and_lose(table: SqlTable, steps: Any, session: str) -> None:
                carry_out(table, steps, session)
                if not lost:  # the next answer is that to the commit
                    lost.append(steps)
                    proxy.arm("reply", lose)

            with monkeypatch.context() as patched:
                patched.setattr(SqlTable, "carry_out", carry_out_and_lose)
                assert act(shaky.state) == returned
            assert not proxy.disarm() or not lost
            assert (direct.state.get_node("/a") or ())[:2] == node


def test_a_session_goes_on_when_its_server_was_killed_and_started_again(address: str, postgres_server: Server) -> None:
    with opened(address) as one, opened(address) as other:
        one.state.set_ephemeral_node("/a", b"1")
        other.state.get_data("/a", watch=True)
        postgres_server.kill()
        one.told(("suspended", ""))
        postgres_server.start()
        one.told(("connected", ""))
        other.until(lambda told: ("connected", "") in told)
        assert ("changed", "/a") not in other.take()
        one.state.set_data("/a", b"2")
        other.told(("changed", "/a"))


def test_a_postgres_that_hangs_is_an_error_after_the_timeout(address: str, postgres_server: Server) -> None:
    check_hang(address, postgres_server, "PostgreSQL")


def test_a_change_whose_process_was_stopped_is_made_afterwards(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(address) as one:
        carry_out, stopped = SqlTable.carry_out, list[int]()

        def stop_and_carry_out(table: SqlTable, steps: Any, session: str) -> None:
            if not stopped:
                ((pid,),) = table._execute("SELECT pg_backend_pid()", ())
                stopped.append(pid)
                table._execute("SET LOCAL idle_in_transaction_session_timeout = 1", ())
                is_there = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
                until(lambda: ask(address, is_there) == [(0,)], "the server has ended the transaction")
            carry_out(table, steps, session)

        monkeypatch.setattr(SqlTable, "carry_out", stop_and_carry_out)
        one.state.set_data("/a", b"1")
        assert (one.state.get_data("/a"), len(stopped)) == (b"1", 1)


def test_clusters_in_one_database_do_not_know_each_other(address: str) -> None:
    with opened(address) as one, opened(f"{address}-2") as other:
        one.state.set_data("/a", b"1")
        assert other.state.get_children("/") == []


def test_nodes_of_another_format_are_refused_and_those_that_were_removed_missed(address: str) -> None:
    with opened(address) as one:
        name = PostgresAddress.of(address, "cluster").name
        ask(address, f"UPDATE trident_nodes SET data = '2' WHERE path = '{name}:'")
        with pytest.raises(ClusterError, match="is of format version 2; this version of the software reads 1"):
            open_cluster_state(address)
        ask(address, f"DELETE FROM trident_nodes WHERE path LIKE '{name}:%'")
        with pytest.raises(ClusterError, match="was removed while it was open; start this process again"):
            one.state.set_data("/a", b"1")


def test_a_password_is_not_part_of_an_address() -> None:
    with pytest.raises(ClusterError, match="cluster: an address in PostgreSQL must have no password") as raised:
        open_cluster_state("postgresql://me:p4ss@h/db?cluster=a")
    assert "p4ss" not in str(raised.value)
    with pytest.raises(ClusterError, match=r"name the cluster, as in postgresql://USER@HOST/DATABASE\?cluster=NAME"):
        open_cluster_state("postgresql://h/db?topology=a")
