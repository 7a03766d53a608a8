"""Clusters of processes: one that a whole module shares, and those that a test makes for itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.daemons.counted import LogWatch, goes_on, stop_and_check
from tests.harness.cluster_machines import MachineCluster
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineCluster]:
    """One machine and one Nimbus, for the tests of a module one after the other: each leaves it as it was."""
    folder = tmp_path_factory.mktemp("cluster")
    with MachineCluster(folder, str(folder / "cluster")) as made:
        made.up()
        yield made


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """A ZooKeeper of three members, whose deaths are its test's own."""
    with start_zookeeper(tmp_path / "zookeeper", members=3) as made:
        yield made


@pytest.fixture
def storm_id(cluster: MachineCluster) -> Iterator[str]:
    """The counting topology, which has begun to commit; at the end it is exact, and nobody committed that should not have."""
    found = cluster.submit()
    goes_on(cluster)
    with LogWatch(cluster, "counting") as watch:
        yield found
        stop_and_check(cluster, found)
        watch.check()
