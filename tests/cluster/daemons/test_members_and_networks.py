"""What a cluster of three machines does when members of its ZooKeeper die, or a machine cannot reach it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.daemons.counted import committed, counts, expected, goes_on, is_gone, stop_and_check
from tests.cluster.daemons.cut_network import CutNetwork
from tests.cluster.daemons.log_watch import LogWatch
from tests.harness.cluster_machines import MOVED_AFTER_S, MachineCluster
from tests.harness.commands import last_txid, until
from tests.harness.zookeeper_servers import ZooKeeperEnsemble

pytestmark = [pytest.mark.server, pytest.mark.soak]

_AWAY_S = 20.0


@pytest.fixture
def storm_id(on_zookeeper: MachineCluster) -> Iterator[str]:
    """The counting topology, whose log is in ZooKeeper; at the end nobody has committed that should not have."""
    found = on_zookeeper.submit()
    goes_on(on_zookeeper)
    with LogWatch(on_zookeeper, "counting") as watch:
        yield found
        watch.check()


def test_a_member_dies_and_nothing_happens(
    on_zookeeper: MachineCluster, ensemble: ZooKeeperEnsemble, storm_id: str
) -> None:
    driver, before = on_zookeeper.driver_of(storm_id), on_zookeeper.state.assignment_info(storm_id)
    for member in ensemble.members:  # the leading one among them
        until(lambda: ensemble.leader() is not None, "a member leads")
        member.kill()
        goes_on(on_zookeeper)
        member.start()
        goes_on(on_zookeeper)
    assert on_zookeeper.driver_of(storm_id) == driver
    assert on_zookeeper.state.assignment_info(storm_id) == before
    assert len(on_zookeeper.state.supervisors()) == 3
    stop_and_check(on_zookeeper, storm_id)


def test_drivers_outlast_a_majority_that_is_away(
    on_zookeeper: MachineCluster, ensemble: ZooKeeperEnsemble, storm_id: str
) -> None:
    file_log = on_zookeeper.folder / "file-log"
    other = on_zookeeper.submit("other", "counting.py:other", log_dir=str(file_log))
    until(lambda: last_txid(file_log) > 2, "the topology whose log is a file commits")
    until(lambda: on_zookeeper.beat(other) is not None, "its heartbeat is there")
    drivers = {each: on_zookeeper.driver_of(each) for each in (storm_id, other)}
    assigned = {each: on_zookeeper.state.assignment_info(each) for each in drivers}
    gone = ensemble.members[:2]
    for member in gone:
        member.kill()
    ends, last = time.monotonic() + _AWAY_S, last_txid(file_log)
    while time.monotonic() < ends:  # the one does not even wait
        goes_on_in(file_log)
        assert all(not is_gone(each) for each in drivers.values())
    assert last_txid(file_log) > last + 20
    for member in gone:
        member.start()
    goes_on(on_zookeeper)
    until(lambda: len(on_zookeeper.state.supervisors()) == 3, "the sessions of all supervisors are renewed")
    on_zookeeper.leader()
    goes_on(on_zookeeper, 50)
    assert {each: on_zookeeper.driver_of(each) for each in drivers} == drivers
    assert {each: on_zookeeper.state.assignment_info(each) for each in drivers} == assigned
    on_zookeeper.client.kill("other", 5)
    until(lambda: other not in on_zookeeper.state.active_storms(), "it is forgotten")
    until(lambda: is_gone(drivers[other]), "its driver has ended")
    assert counts(on_zookeeper, "other") == expected(last_txid(file_log))
    stop_and_check(on_zookeeper, storm_id)


def goes_on_in(log_dir: Path) -> None:
    wanted = last_txid(log_dir) + 5
    until(lambda: last_txid(log_dir) >= wanted, f"batch {wanted} is committed")


@pytest.mark.parametrize("log", ["zookeeper", "file"])
def test_a_driver_behind_a_cut_network_is_fenced(tmp_path: Path, ensemble: ZooKeeperEnsemble, log: str) -> None:
    networks = [CutNetwork(member.port) for member in ensemble.members]
    behind = ",".join(f"127.0.0.1:{each.port}" for each in networks)
    conf = {"log_dir": str(tmp_path / "file-log")} if log == "file" else {}
    with MachineCluster(tmp_path, f"zookeeper://{ensemble.hosts}/cut", MOVED_AFTER_S) as cluster:
        cluster.nimbus()
        cut_off = cluster.machine(address=f"zookeeper://{behind}/cut")
        until(lambda: len(cluster.state.supervisors()) == 1, "the machine is known")
        storm_id = cluster.submit(**conf)

        def reads() -> int:
            return last_txid(tmp_path / "file-log") if log == "file" else committed(cluster)

        until(lambda: reads() > 3, "it commits")
        other = cluster.machine()
        until(lambda: len(cluster.state.supervisors()) == 2, "the other machine is known")
        until(lambda: cluster.beat(storm_id) is not None, "it has a heartbeat")
        old = cluster.driver_of(storm_id)
        for each in networks:
            each.cut()
        until(lambda: cluster.machine_of(storm_id) is other, "the topology is moved")
        until(lambda: (beat := cluster.beat(storm_id)) is not None and beat.state == "active", "it runs there")
        wanted = reads() + 10
        until(lambda: reads() >= wanted, "it commits on the other machine")
        if log == "file":  # which the old driver reaches; it was not told that it is replaced, and finds the claim
            said = cut_off.folder / "logs" / f"{storm_id}.log"
            until(lambda: "FencedError" in said.read_text(encoding="utf-8"), "the old driver is fenced")
        for each in networks:
            each.heal()
        until(lambda: is_gone(old), "the old driver has ended")
        until(lambda: not cut_off.drivers(), "its machine runs nothing")
        wanted = reads() + 3
        until(lambda: reads() >= wanted, "it goes on")
        cluster.client.kill(storm_id, 5)
        until(lambda: storm_id not in cluster.state.active_storms(), "it is forgotten")
        until(lambda: not list(cluster.left()), "every driver has ended")
        assert counts(cluster) == expected(reads())
    for each in networks:
        each.close()
