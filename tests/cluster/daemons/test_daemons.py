"""A cluster of processes: what each does when another one is killed; also where its state and logs are in PostgreSQL."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster.daemons.counted import committed, goes_on, stop_and_check
from tests.harness.cluster_machines import MOVED_AFTER_S, TOKEN, MachineCluster
from tests.harness.cluster_states import address_on
from tests.harness.commands import until
from trident.cluster.client import ClusterClient
from trident.errors import NoLeader


@pytest.mark.long
@pytest.mark.slow
def test_a_topology_runs_until_it_is_killed(cluster: MachineCluster, storm_id: str) -> None:
    until(lambda: cluster.client.show("counting").driver == "active", "its heartbeat says so")
    (found,) = cluster.client.topologies()
    assert (found.base.storm_name, found.base.status.kind) == ("counting", "active")


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_driver_is_started_again_in_its_slot(cluster: MachineCluster, storm_id: str) -> None:
    before = cluster.state.assignment_info(storm_id)
    for _ in range(2):
        cluster.driver_of(storm_id).kill()
        goes_on(cluster)
    assert cluster.state.assignment_info(storm_id) == before
    assert "SIGKILL" in cluster.state.errors(storm_id, "__driver")[0].error


@pytest.mark.long
@pytest.mark.slow
def test_drivers_outlive_their_supervisor_and_are_adopted(cluster: MachineCluster, storm_id: str) -> None:
    machine, driver = cluster.machines[0], cluster.driver_of(storm_id)
    machine.kill()
    goes_on(cluster)
    machine.start()
    until(lambda: f"adopted the driver of {storm_id}, process {driver.pid}" in machine.said, "the driver is adopted")
    goes_on(cluster)
    assert cluster.driver_of(storm_id) == driver
    driver.kill()  # an adopted one is watched as well
    goes_on(cluster)


@pytest.mark.soak
def test_a_driver_that_died_without_its_supervisor_is_started_again(cluster: MachineCluster, storm_id: str) -> None:
    machine, driver = cluster.machines[0], cluster.driver_of(storm_id)
    machine.kill()
    driver.kill()
    machine.start()
    goes_on(cluster)


@pytest.mark.soak
def test_topologies_do_not_notice_that_nimbus_dies_and_the_next_one_goes_on(
    cluster: MachineCluster, storm_id: str
) -> None:
    driver = cluster.driver_of(storm_id)
    cluster.leader().kill()
    until(lambda: cluster.state.leader() is None, "nobody leads")
    goes_on(cluster)
    with ClusterClient(cluster.address, TOKEN, patience_s=0.5) as hasty, pytest.raises(NoLeader, match="Nimbus"):
        hasty.deactivate("counting")
    cluster.nimbus()
    until(lambda: cluster.state.leader() is not None, "the next Nimbus leads")
    other = cluster.submit("other", "counting.py:other")
    until(lambda: committed(cluster, "other") > 1, "the second topology commits")
    assert cluster.driver_of(storm_id) == driver
    cluster.client.kill(other, 1)


@pytest.mark.soak
def test_a_deactivated_topology_commits_nothing_until_it_is_activated(cluster: MachineCluster, storm_id: str) -> None:
    cluster.client.deactivate("counting")
    until(lambda: (beat := cluster.beat(storm_id)) is not None and beat.state == "inactive", "it is inactive")
    driver = cluster.driver_of(storm_id)
    rested = committed(cluster)
    driver.kill()  # what starts again is as inactive
    until(
        lambda: (beat := cluster.beat(storm_id)) is not None and beat.pid != driver.pid and beat.state == "inactive",
        "the next driver is inactive",
    )
    assert committed(cluster) == rested
    cluster.client.activate("counting")
    goes_on(cluster)


@pytest.mark.soak
def test_ctrl_c_of_a_supervisor_leaves_its_drivers_and_says_so(cluster: MachineCluster, storm_id: str) -> None:
    machine = cluster.machines[0]
    machine.signal(signal.SIGINT)
    assert machine.process.wait(30) == 130
    assert "drivers that go on: 1" in machine.said
    goes_on(cluster)
    machine.start()
    goes_on(cluster)


@pytest.mark.soak
def test_a_driver_that_cannot_run_is_put_to_rest_with_its_error(cluster: MachineCluster) -> None:
    (cluster.folder / "broken.py").write_text(
        "import os\nfrom counting import made\ntopology = made('broken')\n"
        "if 'TRIDENT_DRIVER_RUN' in os.environ:\n    raise RuntimeError('no such table')\n"
    )
    storm_id = cluster.submit("broken", "broken.py:topology")
    until(
        lambda: (base := cluster.state.storm_base(storm_id)) is not None and base.status.kind == "failed",
        "it is marked as failed",
    )
    assert "no such table" in cluster.client.show("broken").base.status.reason
    until(lambda: storm_id not in cluster.state.assignments(), "its slot is free")
    cluster.client.kill("broken", 0)
    until(lambda: storm_id not in cluster.state.active_storms(), "it is forgotten")


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", pytest.param("s3", marks=pytest.mark.long)])
def test_a_topology_goes_on_when_its_machine_is_lost(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with MachineCluster(tmp_path, address_on(kind, request), MOVED_AFTER_S) as cluster:
        cluster.up(machines=2)
        storm_id = cluster.submit()
        goes_on(cluster)
        lost = cluster.machine_of(storm_id)
        lost.lose()
        until(lambda: lost.id not in cluster.state.supervisors(), "its session is over")
        until(lambda: cluster.machine_of(storm_id) is not lost, "the topology is assigned to the other machine")
        goes_on(cluster)
        stop_and_check(cluster, storm_id)
