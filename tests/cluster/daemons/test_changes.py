"""Topologies that are upgraded, rebalanced and killed while they run: no count is lost, and none is counted twice."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest

from tests.cluster.code.packed_topologies import BOLTS, write_files
from tests.cluster.daemons.counted import committed, counts, expected, goes_on, is_gone, log_of
from tests.harness.cluster_machines import TOKEN, MachineCluster
from tests.harness.commands import until, write_module
from trident.cluster.package_archive import read_manifest
from trident.cluster.topology_overviews import TopologyOverview
from trident.cluster.topology_package import TopologyPackage, make_package
from trident.errors import UpgradeRefused

pytestmark = pytest.mark.soak


def package(cluster: MachineCluster, module: str, text: str) -> TopologyPackage:
    write_module(cluster.folder, module, text)
    return make_package(str(cluster.folder / f"{module}.py:topology"))


def test_new_code_that_fits_goes_on_where_the_old_code_was(cluster: MachineCluster, storm_id: str) -> None:
    old, base = cluster.driver_of(storm_id), cluster.state.storm_base(storm_id)
    assert base is not None
    newer = package(cluster, "newer", "from counting import made\nRELEASE = 2\ntopology = made('counting')\n")
    cluster.client.upgrade("counting", newer)
    until(lambda: (beat := cluster.beat(storm_id)) is not None and beat.pid != old.pid, "a new driver runs")
    goes_on(cluster)
    until(
        lambda: (now := cluster.state.storm_base(storm_id)) is not None and now.previous_code_hash == "",
        "there is no way back, nor need for one",
    )
    now = cluster.state.storm_base(storm_id)
    assert now is not None
    assert (now.code_hash, now.generation) == (newer.sha256, base.generation + 1)
    assert is_gone(old)


def test_new_code_that_does_not_fit_the_log_is_refused_and_the_old_code_runs_on(
    cluster: MachineCluster, storm_id: str
) -> None:
    old = cluster.driver_of(storm_id)
    other = """
        from counting import DeltaState, FOLDER, LINES, FixedBatchSpout, Split, TridentTopology
        from trident.operations import Max

        topology = TridentTopology("counting")
        words = topology.new_stream("lines", FixedBatchSpout("line: string", 2, *LINES, cycle=True)).each(
            "line", Split(), "word"
        )
        words.group_by("word").persistent_aggregate(
            DeltaState.opaque(f"{FOLDER}/counting"), "line", Max(), "count", state_name="counts"
        )
    """
    with pytest.raises(UpgradeRefused, match="does not fit its log"):
        cluster.client.upgrade("counting", package(cluster, "other_meaning", other))
    goes_on(cluster)
    assert cluster.driver_of(storm_id) == old


def test_new_code_that_cannot_start_is_rolled_back(cluster: MachineCluster, storm_id: str) -> None:
    before = cluster.state.storm_base(storm_id)
    assert before is not None
    broken = """
        import os
        from counting import made
        topology = made("counting")
        if "TRIDENT_DRIVER_RUN" in os.environ:
            raise RuntimeError("the table is of next year")
    """
    cluster.client.upgrade("counting", package(cluster, "broken_later", broken))
    until(lambda: generation(cluster, storm_id) == before.generation + 2, "it goes back to the code before")
    goes_on(cluster)
    after = cluster.state.storm_base(storm_id)
    assert after is not None
    assert (after.code_hash, after.status.kind) == (before.code_hash, "active")
    assert "the table is of next year" in "\n".join(each["error"] for each in cluster.client.errors("counting"))


def generation(cluster: MachineCluster, storm_id: str) -> int:
    base = cluster.state.storm_base(storm_id)
    return 0 if base is None else base.generation


def test_a_rebalance_while_it_runs_loses_nothing(cluster: MachineCluster, storm_id: str) -> None:
    for workers in (None, 2, 1):
        old = cluster.driver_of(storm_id)
        cluster.client.rebalance("counting", 1, workers)
        until(lambda old=old: cluster.beat(storm_id) is not None and is_gone(old), "its driver has ended")  # type: ignore[misc]
        goes_on(cluster)


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
