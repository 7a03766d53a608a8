"""Topologies that are stuck: REST, `trident show`, metrics and the log say so in the words of the page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.request import urlopen

import pytest

from tests.harness.commands import until
from tests.ui.page_servers import get
from tests.ui.stuck_topologies import stuck_batches, stuck_bolts
from trident.cli.cluster_commands import print_topology
from trident.cluster.nimbus.submissions import add_topology
from trident.cluster.pages import ClusterOverview
from trident.cluster.state.cluster_address import open_cluster_state
from trident.cluster.state.cluster_records import Assignment, NodePort, StormBase, WantedStatus, WorkerHeartbeat
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster.topology_overviews import overview
from trident.observe import health
from trident.observe.topology_status import heartbeat_of
from trident.ui.cluster_pages import OneTopology, TopologyPages
from trident.ui.running_pages import StormPages, TridentPages
from trident.ui.ui_server import UIServer

pytestmark = pytest.mark.slow

T = "/api/v1/topology"


class Stuck(NamedTuple):
    """A stuck topology, and what must be said of it."""

    name: str
    pages: TopologyPages
    metrics_url: str
    lines: tuple[str, ...]
    stalled: str


IN_CALL = (
    r"`count` \(task \d\) has been in one call for \d+ s: execute \(.*/stuck_topologies.py, line \d+\): "
    r"Sticks.let_go.wait\(60\). Its tuples, acks and timeouts wait for it\."
)
UNANSWERED = r"Nothing was acknowledged for \d+ s with 3 pending\."
BATCH = (
    r"Batch 3 has run for \d+ s in step `words/SticksAtCow`: it is in execute \(.*/stuck_topologies.py, line \d+\): "
    r"SticksAtCow.let_go.wait\(60\)\."
)


@pytest.fixture(params=["bolts", "trident"])
def stuck(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    """A topology that has been stuck for as long as is a warning, which is shorter than it is for users."""
    monkeypatch.setattr(health, "_LONG_S", 1.5)
    monkeypatch.setattr(health, "_NOTED_S", 0.5)
    with ExitStack() as stack:
        if request.param == "bolts":
            running = stack.enter_context(stuck_bolts(metrics_port=0))
            found = Stuck(
                "bolts", StormPages(running), str(running.metrics_url), (IN_CALL, UNANSWERED),
                "trident_storm_stalled",
            )  # fmt: skip
        else:
            of_batches = stack.enter_context(stuck_batches(metrics_port=0))
            found = Stuck("words", TridentPages(of_batches), str(of_batches.metrics_url), (BATCH,), "trident_stalled")
        until(lambda: len(warnings(found.pages.topology())) == len(found.lines))
        yield found


def warnings(page: dict[str, Any]) -> list[str]:
    return [each["text"] for each in page["verdict"]["lines"] if each["tone"] == "warn"]


def assert_said(found: list[str], stuck: Stuck) -> None:
    assert len(found) == len(stuck.lines)
    for line, expected in zip(found, stuck.lines, strict=True):
        assert re.fullmatch(expected, line), line


@pytest.mark.sample(1)
def test_a_stuck_topology_is_not_well(stuck: Stuck, caplog: pytest.LogCaptureFixture) -> None:
    with UIServer(OneTopology(stuck.name, stuck.pages), port=0) as server:
        page = get(server, f"{T}/{stuck.name}")
        (row,) = get(server, f"{T}/summary")["topologies"]
    assert_said(warnings(page), stuck)
    assert not [each for each in page["verdict"]["lines"] if "well" in each["text"] or "keeps up" in each["text"]]
    assert (page["verdict"]["tone"], row["verdict"]["tone"]) == ("warn", "warn")
    until(lambda: all(re.search(line, caplog.text) for line in stuck.lines))
    assert f" topology {stuck.name}: " in f" {caplog.text}"


@pytest.mark.sample(1)
def test_the_metrics_of_a_stuck_topology_say_so(stuck: Stuck) -> None:
    with urlopen(stuck.metrics_url, timeout=30) as answer:
        told = answer.read().decode()
    assert f'{stuck.stalled}{{topology="{stuck.name}"}} 1.0' in told
    if stuck.name == "bolts":
        (seconds,) = re.findall(
            r'trident_storm_running_call_seconds{component="count",topology="bolts"} ([\d.]+)', told
        )
        assert re.search(r'trident_storm_unanswered_seconds{topology="bolts"} [1-9]', told)
    else:
        (seconds,) = re.findall(r'trident_running_batch_seconds{topology="words"} ([\d.]+)', told)
    assert float(seconds) > 1


def test_a_call_that_runs_counts_for_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck_bolts() as running:
        pages = StormPages(running)

        def capacity() -> float:
            (count,) = (each for each in pages.topology(600)["bolts"] if each["boltId"] == "count")
            return float(count["capacity"])

        until(lambda: capacity() > 0.5)
        nodes = {each["id"]: each["capacity"] for each in pages.visualization(600)["nodes"]}
        assert nodes["count"] > 0.5 > nodes["split"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("answers", [True, False], ids=["the driver answers", "only its heartbeat is there"])
def test_a_cluster_says_so_of_a_stuck_topology(
    stuck: Stuck, answers: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = StormClusterState(open_cluster_state(tmp_path))
    conf = {"engine": "in_process"}
    kind: Literal["bolts", "trident"] = "bolts" if stuck.name == "bolts" else "trident"
    base = StormBase(stuck.name, time.time(), WantedStatus("active", 0.0), 1, {}, kind, "m.py:t", "hash", conf)
    storm_id, start, driver = add_topology(cluster, base), time.time(), Assignment.DRIVER
    info = Assignment("code", {"a": "host"}, {driver: NodePort("a", 6700)}, {driver: start}, "hash", 1)
    assert cluster.replace_assignment(storm_id, None, info)
    with ExitStack() as stack:
        stack.callback(cluster.disconnect)
        served = stack.enter_context(UIServer(OneTopology(storm_id, stuck.pages), port=0))
        stats = heartbeat_of(stuck.pages.topology(0))
        url = served.url if answers else ""
        beat = WorkerHeartbeat(time.time(), 30.0, storm_id, "host", 99, base.generation, start, "active", url, stats)
        cluster.worker_heartbeat(storm_id, "a", 6700, beat)
        server = stack.enter_context(UIServer(ClusterOverview(cluster, None), port=0))
        assert_said(warnings(get(server, f"{T}/{storm_id}")), stuck)
        (row,) = get(server, f"{T}/summary")["topologies"]
        assert_said(warnings(row), stuck)
        found = overview(cluster, *cluster.find_storm(stuck.name))
        assert_said(warnings(found.as_json()), stuck)
        print_topology(found)
        told = capsys.readouterr().out
        assert "well" not in told
        assert re.search(r"Batch 3 has run for|`count` \(task \d\) has been in one", told)
