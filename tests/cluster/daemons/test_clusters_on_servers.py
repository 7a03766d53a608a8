"""A cluster whose state and logs are in PostgreSQL, without a ZooKeeper: it keeps a topology running, and its counts exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.daemons.counted import goes_on, stop_and_check
from tests.harness.cluster_machines import MOVED_AFTER_S, MachineCluster
from tests.harness.cluster_states import address_on
from tests.harness.commands import until


@pytest.mark.server
@pytest.mark.slow
def test_a_topology_goes_on_when_its_machine_is_lost(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with MachineCluster(tmp_path, address_on("postgres", request), MOVED_AFTER_S) as cluster:
        cluster.up(machines=2)
        storm_id = cluster.submit()
        goes_on(cluster)
        lost = cluster.machine_of(storm_id)
        lost.lose()
        until(lambda: lost.id not in cluster.state.supervisors(), "its session is over")
        until(lambda: cluster.machine_of(storm_id) is not lost, "the topology is assigned to the other machine")
        goes_on(cluster)
        stop_and_check(cluster, storm_id)
