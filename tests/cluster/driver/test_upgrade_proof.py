"""A batch that new code has committed keeps it from being rolled back, also if its driver dies in the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.cluster.driver.driven import epoch_before
from trident.cluster.driver.orders import Orders
from trident.cluster.machine.machine_folder import DriverOrder
from trident.cluster.nimbus.submissions import rolled_back
from trident.cluster.state.cluster_address import open_cluster_state
from trident.cluster.state.cluster_records import StormBase, WantedStatus
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.operations import Count

_ID = "words-1-1"
_REPLACED = {"target": "m:t", "conf": {}, "component->executors": {}}
_UPGRADED = StormBase(
    "words", 1.0, WantedStatus("active", 0.0), 1, {}, "trident", "m:t", "new", {}, 2, "",
    previous_code_hash="old", previous=_REPLACED,
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StormClusterState]:
    made = StormClusterState(open_cluster_state(tmp_path / "cluster"))
    assert made.activate_storm(_ID, _UPGRADED)
    yield made
    made.disconnect()


def batch(log_dir: Path, rows: int) -> None:
    """Have one more driver commit one more batch: as code before an upgrade, or after it."""
    topology = TridentTopology("words")
    spout = FixedBatchSpout("word: string", 1, *[[f"w{number}"] for number in range(rows)])
    topology.new_stream("words", spout).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", log_dir=str(log_dir), state_recovery="discard_totals") as running:
        running.process_all_available()


def started(cluster: StormClusterState, log_dir: Path) -> StormBase:
    """Do what a driver of the new code does before it starts its topology."""
    order = DriverOrder("", _ID, "a", 1, "host", 0.0, 2, "new", "", "", "", "")
    base = cluster.storm_base(_ID)
    assert base is not None
    noted = Orders(cluster, order).note_proof(base, str(log_dir))
    assert noted == cluster.storm_base(_ID)
    return noted


def test_code_whose_every_driver_dies_right_after_a_commit_is_not_rolled_back(
    cluster: StormClusterState, tmp_path: Path
) -> None:
    log_dir = tmp_path / "log"
    batch(log_dir, 1)  # the old code
    first = started(cluster, log_dir)
    assert (first.previous_code_hash, epoch_before(first)) == ("old", 1)
    assert started(cluster, log_dir) == first  # the first driver died before it committed anything
    batch(log_dir, 2)  # the second one died after its commit, before it told of it
    assert started(cluster, log_dir).previous_code_hash == ""
    assert cluster.update_storm(_ID, rolled_back) == cluster.storm_base(_ID)


def test_batches_of_the_old_code_prove_nothing(cluster: StormClusterState, tmp_path: Path) -> None:
    batch(tmp_path / "log", 3)
    for _ in range(3):
        assert started(cluster, tmp_path / "log").previous_code_hash == "old"
    back = rolled_back(started(cluster, tmp_path / "log"))
    assert (back.code_hash, back.previous, back.target) == ("old", {}, "m:t")


def test_without_a_log_the_first_batch_is_the_proof(cluster: StormClusterState, tmp_path: Path) -> None:
    assert epoch_before(started(cluster, tmp_path / "log")) == 0
    batch(tmp_path / "log", 1)
    assert started(cluster, tmp_path / "log").previous_code_hash == ""
