"""A cluster of processes: what each does when another one is killed, and topologies that are changed while they run."""

import io
import signal
from pathlib import Path

import httpx
import pytest

from tests.cluster.code.packed_topologies import BOLTS, write_files
from tests.cluster.daemons.counted import committed, counts, expected, goes_on, is_gone, log_of, stop_and_check
from tests.harness.cluster_machines import MOVED_AFTER_S, TOKEN, MachineCluster
from tests.harness.cluster_states import address_on
from tests.harness.commands import until, write_module
from trident.cluster.package_archive import read_manifest
from trident.cluster.topology_overviews import TopologyOverview
from trident.cluster.topology_package import make_package


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


@pytest.mark.soak
def test_a_kill_that_waits_commits_what_had_begun_and_begins_nothing(cluster: MachineCluster) -> None:
    begun = cluster.folder / "begun"
    begun.mkdir()
    write_module(cluster.folder, "slow", _SLOW.replace("@BEGUN@", str(begun)))
    storm_id = cluster.submit("slow", "slow.py:topology", max_spout_pending="3")
    goes_on(cluster, name="slow")
    driver = cluster.driver_of(storm_id)
    cluster.client.kill("slow", 60)
    until(lambda: is_gone(driver), "its driver has ended")
    assert len(list(begun.iterdir())) == 2 * committed(cluster, "slow")
    log = log_of(cluster, "slow")
    assert log is not None
    assert log.definitions == {}
    until(lambda: storm_id not in cluster.state.active_storms(), "it is forgotten")
    assert counts(cluster, "slow") == expected(committed(cluster, "slow"))


_SLOW = """
    import time, uuid
    from pathlib import Path
    from counting import DeltaState, FOLDER, LINES, FixedBatchSpout, Split, TridentTopology
    from trident.operations import Count, Filter

    class Slow(Filter):
        def is_keep(self, tuple):
            (Path("@BEGUN@") / uuid.uuid4().hex).touch()
            time.sleep(0.3)
            return True

    topology = TridentTopology("slow")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 2, *LINES, cycle=True))
    words = lines.each("line", Slow()).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(
        DeltaState.opaque(f"{FOLDER}/slow"), Count(), "count", state_name="counts"
    )
"""


def executors_that_run(found: TopologyOverview) -> dict[str, int]:
    """Return how many executors each bolt has, as the driver itself says."""
    assert found.heartbeat is not None
    url = f"{found.heartbeat.pages}/api/v1/topology/{found.storm_id}"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
    return {bolt["boltId"]: bolt["executors"] for bolt in answer.raise_for_status().json()["bolts"]}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.server
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
