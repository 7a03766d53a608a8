"""One topology, one log: a submission goes on with that of `trident run`, and who reads it finds it without its path."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import TridentTopology, open_state
from trident.cli.app import app
from trident.cluster_state.cluster_address import STATE_FILE, log_of, open_cluster_state, submitted_log
from trident.cluster_state.cluster_records import StormBase, WantedStatus
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.drpc import LocalDRPC
from trident.errors import ClusterError
from trident.operations import Count, MapGet

pytestmark = pytest.mark.slow

_ZOOKEEPER = "zookeeper://one:2181/storm"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIDENT_CLUSTER", raising=False)
    return tmp_path


@pytest.fixture
def cluster(here: Path) -> Iterator[StormClusterState]:
    """Make the cluster that commands find in this folder."""
    made = StormClusterState(open_cluster_state("trident-cluster"))
    yield made
    made.disconnect()


def words(folder: Path, name: str = "words") -> TridentTopology:
    topology = TridentTopology(name)
    stream = topology.new_stream("words", FixedBatchSpout("word: string", 2, ["the"], ["cow"])).group_by("word")
    counts = stream.persistent_aggregate(DeltaState.opaque(str(folder / "counts")), Count(), "count")
    topology.new_drpc_stream("count").group_by("args").state_query(counts, "args", MapGet(), "count")
    return topology


def ran(folder: Path, log_dir: str | Path, name: str = "words") -> TridentTopology:
    """Count with a log in this place; returns the topology."""
    topology = words(folder, name)
    with topology.start(engine="in_process", log_dir=str(log_dir)) as running:
        running.process_all_available()
    return topology


def test_a_cluster_in_this_folder_has_the_logs_of_trident_run(here: Path) -> None:
    assert log_of("trident-cluster", "words") == str(here / "trident-log" / "words")
    assert log_of(str(here / "elsewhere" / "cluster"), "words") == str(here / "elsewhere/cluster/transactional/words")


def test_a_log_that_is_there_is_gone_on_with(here: Path) -> None:
    ran(here / "a", "trident-log/words")
    assert log_of(str(here / "elsewhere" / "cluster"), "words") == str(here / "trident-log" / "words")
    ran(here / "b", "trident-cluster/transactional/old", "old")  # as a cluster elsewhere has it
    assert log_of("trident-cluster", "old") == str(here / "trident-cluster/transactional/old")


def test_a_cluster_in_zookeeper_has_its_logs_there(here: Path) -> None:
    ran(here, "trident-log/words")
    assert log_of(_ZOOKEEPER, "words") == f"{_ZOOKEEPER}/transactional/words"


@pytest.mark.parametrize("named_by", ["record", "settings"])
def test_a_submitted_topology_is_read_without_its_path(here: Path, cluster: StormClusterState, named_by: str) -> None:
    place = str(here / "somewhere")
    topology = ran(here, place)
    log_dir, conf = (place, {}) if named_by == "record" else ("not here", {"log_dir": place})
    status = WantedStatus("active", 0.0)
    base = StormBase("words", time.time(), status, 1, {}, "trident", "m:t", "0" * 64, conf, log_dir=log_dir)
    assert cluster.activate_storm("words-1-1", base)
    with open_state(topology, "count") as counts:
        assert counts.multi_get(["the", "dish"]) == [1, None]
    with LocalDRPC(topology) as drpc:
        assert drpc.execute("count", "the") == [["the", 1]]
    told = CliRunner().invoke(app, ["log", "words", "--json"])
    assert f'"path": "{place}"' in told.stdout


def test_the_log_of_a_killed_topology_is_found_where_its_cluster_has_it(here: Path, cluster: StormClusterState) -> None:
    topology = ran(here, "trident-cluster/transactional/words")
    with open_state(topology, "count") as counts:
        assert counts.multi_get(["the"]) == [1]


def test_without_a_cluster_a_log_is_where_trident_run_puts_it(here: Path) -> None:
    assert submitted_log("words") is None
    topology = ran(here, "trident-log/words")
    with open_state(topology, "count") as counts:
        assert counts.multi_get(["the"]) == [1]


def test_a_cluster_that_cannot_be_asked_is_told_unless_the_log_is_here(here: Path) -> None:
    (here / "trident-cluster").mkdir()
    (here / "trident-cluster" / STATE_FILE).write_text("no database", encoding="utf-8")
    with pytest.raises(ClusterError, match="it is not known where the log of 'words' is; name it"):
        open_state(words(here), "count")
    topology = ran(here, "trident-log/words")
    with open_state(topology, "count") as counts:
        assert counts.multi_get(["the"]) == [1]
