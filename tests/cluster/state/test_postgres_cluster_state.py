"""What a cluster's state does when its PostgreSQL is away or is not right: lost answers, a killed server, other tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.harness.cluster_states import LOST_ANSWERS, address_on, opened
from tests.harness.commands import until
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.storm_cluster_state import ClusterState
from trident.errors import ClusterError, ClusterUnreachable
from trident.nodes.polled_nodes import SqlTable
from trident.servers.log_addresses import PostgresAddress

pytestmark = pytest.mark.server


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    return address_on("postgres", request)


def ask(address: str, query: Any) -> list[Any]:
    with psycopg.connect(PostgresAddress.of(address, "cluster").url, autocommit=True) as connection:
        answer = connection.execute(query)
        return answer.fetchall() if answer.description else []


@pytest.mark.sample(6)
@pytest.mark.parametrize("is_killed", [False, True], ids=["cut", "killed"])
@pytest.mark.parametrize(("before", "act", "returned", "node"), LOST_ANSWERS)
def test_a_change_is_made_once_though_the_answer_to_its_commit_is_lost(
    address: str, postgres_server: Server, monkeypatch: pytest.MonkeyPatch, is_killed: bool,
    before: Callable[[ClusterState, ClusterState], object], act: Callable[[ClusterState], object], returned: object,
    node: tuple[object, ...],
) -> None:  # fmt: skip
    def lose() -> None:
        if is_killed:
            postgres_server.kill()
            postgres_server.start()

    proxy = Proxy(postgres_server.port)
    through = address.replace(f":{postgres_server.port}/", f":{proxy.port}/")
    try:
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
    finally:
        proxy.close()


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


def test_a_server_that_hangs_is_an_error_after_the_timeout(address: str, postgres_server: Server) -> None:
    with opened(address, 1.0) as one:
        postgres_server.pause()
        try:
            with pytest.raises(ClusterUnreachable, match="no answer from PostgreSQL at postgresql://.* for . seconds"):
                one.state.get_data("/a")
        finally:
            postgres_server.resume()
        one.state.set_data("/a", b"1")
        assert one.state.get_data("/a") == b"1"


def test_a_change_within_which_its_process_was_stopped_is_made_afterwards(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
