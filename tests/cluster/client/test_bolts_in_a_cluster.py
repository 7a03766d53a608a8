"""Spouts and bolts in a cluster, on Spark: submitted, rebalanced as they run, upgraded, killed."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest

from tests.cluster.code.packed_topologies import BOLTS, write_files
from tests.harness.cluster_machines import TOKEN, MachineCluster
from tests.harness.commands import until
from trident.cluster.code.package_archive import read_manifest
from trident.cluster.code.topology_package import make_package
from trident.cluster.topology_overviews import TopologyOverview

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.server]


def executors_that_run(found: TopologyOverview) -> dict[str, int]:
    """Return how many executors each bolt has, as the driver itself says."""
    assert found.heartbeat is not None
    url = f"{found.heartbeat.pages}/api/v1/topology/{found.storm_id}"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
    return {bolt["boltId"]: bolt["executors"] for bolt in answer.raise_for_status().json()["bolts"]}


@pytest.mark.timeout(600)
def test_bolts_are_submitted_rebalanced_as_they_run_upgraded_and_killed(tmp_path: Path) -> None:
    write_files(tmp_path, {"words.py": BOLTS})
    package = make_package(f"{tmp_path}/words.py:builder")
    assert read_manifest(io.BytesIO(package.data)).kind == "bolts"
    with MachineCluster(tmp_path, str(tmp_path / "state")) as cluster:
        cluster.up()
        client = cluster.client
        storm_id = client.submit(package, workers=1)
        until(lambda: client.show(storm_id).driver == "active", "it runs")
        first = cluster.driver_of(storm_id).pid
        client.rebalance("words", 5, executors={"count": 4})
        until(lambda: executors_that_run(client.show("words")) == {"count": 4}, "four executors run")
        assert cluster.driver_of(storm_id).pid == first
        (tmp_path / "words.py").write_text((tmp_path / "words.py").read_text() + "# changed\n")
        done = client.upgrade("words", make_package(f"{tmp_path}/words.py:builder"))
        assert (done["generation"], done["changed"]) == (2, True)
        until(lambda: client.show(storm_id).driver == "active", "the new code runs")
        assert cluster.driver_of(storm_id).pid != first
        until(lambda: executors_that_run(client.show("words")) == {"count": 4}, "what was rebalanced stays")
        client.kill("words", 1)
        until(lambda: client.topologies() == [], "it is forgotten")
        until(lambda: not list(cluster.left()), "its driver has ended")
