"""What must happen when something of a cluster of three machines and two Nimbuses dies, freezes or is cut off.

On a ZooKeeper of three members, with the log there too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.daemons.counted import committed, goes_on, is_gone, stop_and_check
from tests.harness.cluster_machines import MOVED_AFTER_S, TOKEN, Machine, MachineCluster
from tests.harness.commands import until
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper

pytestmark = [pytest.mark.server, pytest.mark.soak]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """A ZooKeeper of three, for all tests of this module."""
    with start_zookeeper(tmp_path_factory.mktemp("zookeeper"), members=3) as made:
        yield made


@pytest.fixture(scope="module", params=["embedded", "zookeeper"])
def trio(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineCluster]:
    """Three machines and two Nimbuses, which every test leaves as they were."""
    folder = tmp_path_factory.mktemp("trio")
    address = str(folder / "cluster")
    if request.param == "zookeeper":
        address = f"zookeeper://{request.getfixturevalue('members').hosts}/trio"
    with MachineCluster(folder, address, MOVED_AFTER_S) as made:
        made.up(machines=3, nimbuses=2)
        yield made


@pytest.fixture
def cluster(trio: MachineCluster) -> MachineCluster:
    """All of it, when nothing runs there."""
    for left in trio.state.active_storms():  # by a test that failed
        trio.client.kill(left, 0)
    until(lambda: not trio.state.active_storms(), "nothing runs")
    return trio


def is_moved(cluster: MachineCluster, storm_id: str, away_from: Machine) -> bool:
    beat = cluster.beat(storm_id)
    return beat is not None and beat.state == "active" and cluster.machine_of(storm_id) is not away_from


def page(cluster: MachineCluster, path: str) -> dict[str, Any]:
    found = cluster.state.leader()
    assert found is not None
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(f"{found['url']}/api/v1/{path}", headers=headers, timeout=30, trust_env=False)
    answer.raise_for_status()
    return dict(answer.json())


def test_rest_agrees_with_the_log(trio: MachineCluster, storm_id: str) -> None:
    trio.client.deactivate("counting")
    until(lambda: (beat := trio.beat(storm_id)) is not None and beat.state == "inactive", "it is inactive")
    assert page(trio, f"topology/{storm_id}")["txid"] == committed(trio)
    assert len(page(trio, "supervisor/summary")["supervisors"]) == 3
    assert len(page(trio, "nimbus/summary")["nimbuses"]) == 2
    (row,) = page(trio, "topology/summary")["topologies"]
    assert (row["id"], row["status"]) == (storm_id, "INACTIVE")
    trio.client.activate("counting")
    goes_on(trio)


def test_a_frozen_machine_is_replaced_and_its_driver_ends_when_it_wakes(trio: MachineCluster, storm_id: str) -> None:
    frozen, old = trio.machine_of(storm_id), trio.driver_of(storm_id)
    stopped = frozen.freeze()
    until(lambda: is_moved(trio, storm_id, frozen), "it runs on another machine")
    goes_on(trio)
    log = frozen.folder / "logs" / f"{storm_id}.log"
    assert "FencedError" not in log.read_text(encoding="utf-8")
    old.resume()  # the driver first: its supervisor is not there to end it
    until(lambda: is_gone(old), "the old driver has ended by itself")
    said = log.read_text(encoding="utf-8")
    assert "FencedError" in said or "ends: moved" in said  # by what it came to first: its next commit, or its orders
    for each in stopped:
        if not is_gone(each):
            each.resume()
    until(lambda: lost_nothing(trio, frozen), "the machine takes part again")
    goes_on(trio)
    assert frozen.drivers() == []


def lost_nothing(cluster: MachineCluster, machine: Machine) -> bool:
    info = cluster.state.all_supervisor_info().get(machine.id)
    return info is not None and not info.used_ports


def test_the_next_nimbus_goes_on_when_the_leader_dies(trio: MachineCluster, storm_id: str) -> None:
    driver, leader = trio.driver_of(storm_id), trio.leader()
    leader.kill()
    other = trio.submit("other", "counting.py:other")  # answered by the next one
    until(lambda: committed(trio, "other") > 1, "what was submitted then runs")
    assert trio.leader() is not leader
    assert trio.driver_of(storm_id) == driver
    leader.start()
    stop_and_check(trio, other, "other")


def test_a_leader_killed_between_assignment_and_start_has_assigned_once(trio: MachineCluster, storm_id: str) -> None:
    other = trio.submit("other", "counting.py:other")
    leader = trio.leader()
    until(lambda: trio.state.assignment_info(other) is not None, "the assignment is written")
    leader.kill()
    before = trio.state.assignment_info(other)
    assert trio.beat(other) is None  # its package is fetched now, from the other Nimbus
    until(lambda: committed(trio, "other") > 1, "it runs")
    goes_on(trio, name="other")
    after = trio.state.assignment_info(other)
    assert after == before
    leader.start()
    until(lambda: len(list(trio.left())) == 2, "each topology has one driver")
    stop_and_check(trio, other, "other")


def test_a_driver_that_keeps_dying_is_moved_then_put_to_rest_with_its_error(tmp_path: Path) -> None:
    with MachineCluster(tmp_path, str(tmp_path / "cluster"), MOVED_AFTER_S, max_deaths=8) as cluster:
        cluster.up(machines=2)
        (tmp_path / "dying.py").write_text(
            "from counting import made\nimport os, signal\ntopology = made('dying')\n"
            "if 'TRIDENT_DRIVER_RUN' in os.environ:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        storm_id = cluster.submit("dying", "dying.py:topology")
        until(
            lambda: (base := cluster.state.storm_base(storm_id)) is not None and base.status.kind == "failed",
            "it is marked as failed",
        )
        said = cluster.nimbuses[0].said
        assert "times on" in said  # moved
        _, base = cluster.state.find_storm(storm_id)
        assert "has died 8 times" in base.status.reason
        assert "SIGKILL" in base.status.reason
        until(lambda: storm_id not in cluster.state.assignments(), "its slot is free")
        until(lambda: not list(cluster.left()), "nothing of it runs")
