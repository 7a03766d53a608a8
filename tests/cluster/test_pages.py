"""What the pages of a cluster say, from its state and from its drivers; and what the commands for clusters print."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.cluster_states import assigned, submitted
from trident import TridentTopology
from trident.cli.cluster_commands import print_list, print_topology
from trident.cluster.machine_folder import MachineFolder
from trident.cluster.machine_supervisor import MachinePages
from trident.cluster.nimbus import Leadership
from trident.cluster.pages import ClusterOverview, open_cluster_pages
from trident.cluster.topology_overviews import TopologyOverview, overview, overviews
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import (
    DRIVER,
    DriverDeath,
    ErrorInfo,
    StatusKind,
    StormBase,
    SupervisorInfo,
    WantedStatus,
    WorkerHeartbeat,
    machine_names,
)
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import ClusterError, NoLeader, NoSuchTopology, NotRunning
from trident.operations import Count
from trident.web.cluster_pages import OneTopology
from trident.web.rest import UIServer
from trident.web.running_pages import TridentPages

TOKEN = "secret"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StormClusterState]:
    made = StormClusterState(open_cluster_state(tmp_path))
    yield made
    made.disconnect()


def beating(cluster: StormClusterState, storm_id: str, start: float, pages: str = "") -> None:
    stats = {"rates": {"tuplesPerSecond": 7.0}, "executorsTotal": 3, "tasksTotal": 3, "txid": 41}
    beat = WorkerHeartbeat(time.time() - 2, 30.0, storm_id, "host", 99, 1, start, "active", pages, stats)
    cluster.worker_heartbeat(storm_id, "a", 6700, beat)


def supervising(cluster: StormClusterState, node: str = "a", host: str = "host", logs: str = "") -> None:
    meta = {"logs": logs} if logs else {}
    info = SupervisorInfo(time.time(), host, node, (6700,), (6700, 6701), meta, 90061.0)
    cluster.supervisor_heartbeat(node, info)


def test_an_empty_cluster_has_pages(cluster: StormClusterState) -> None:
    pages = ClusterOverview(cluster, TOKEN)
    assert pages.cluster_summary()["slotsTotal"] == 0
    assert pages.nimbus_summary() == {"nimbuses": []}
    assert pages.supervisor_summary() == {"supervisors": []}
    assert pages.topology_summary() == {"topologies": []}
    with pytest.raises(NoSuchTopology, match="its topologies are: none"):
        pages.of_topology("counting")


def test_the_summaries_tell_of_machines_slots_and_topologies(cluster: StormClusterState) -> None:
    supervising(cluster)
    beating(cluster, (storm_id := submitted(cluster, "counting")), assigned(cluster, storm_id))
    submitted(cluster, "waiting")
    submitted(cluster, "broken", WantedStatus("failed", 0.0, reason="no such table"))
    pages = ClusterOverview(cluster, TOKEN)
    summary = pages.cluster_summary()
    assert {name: summary[name] for name in ("supervisors", "topologies", "slotsTotal", "slotsUsed", "slotsFree")} == {
        "supervisors": 1, "topologies": 3, "slotsTotal": 2, "slotsUsed": 1, "slotsFree": 1,
    }  # fmt: skip
    (machine,) = pages.supervisor_summary()["supervisors"]
    assert (machine["host"], machine["uptime"], machine["usedPorts"]) == ("host", "1d 1h 1m 1s", [6700])
    rows = {row["name"]: row for row in pages.topology_summary()["topologies"]}
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"counting": "ACTIVE", "waiting": "WAITING", "broken": "FAILED"}
    assert rows["counting"]["slot"] == "host:6700"
    assert rows["counting"]["rates"] == {"tuplesPerSecond": 7.0}
    assert rows["broken"]["statusReason"] == "no such table"
    assert rows["counting"]["conf"] == {"engine": "in_process", "spark.ssl.keyPassword": "***"}


def test_slots_are_counted_alike_wherever_they_are_told(cluster: StormClusterState) -> None:
    cluster.supervisor_heartbeat("a", SupervisorInfo(time.time(), "host", "a", (), (6700, 6701), {}, 1.0))
    # Its driver has not started yet, so the supervisor does not know of it:
    assigned(cluster, submitted(cluster, "counting"))
    pages = ClusterOverview(cluster, TOKEN)
    (machine,), summary = pages.supervisor_summary()["supervisors"], pages.cluster_summary()
    assert (machine["slotsUsed"], machine["slotsFree"], machine["usedPorts"]) == (1, 1, [6700])
    assert (summary["slotsUsed"], summary["slotsFree"], summary["slotsTotal"]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("kind", "offered"),
    [
        ("active", ["deactivate", "rebalance", "kill"]),
        ("inactive", ["activate", "rebalance", "kill"]),
        ("failed", ["activate", "kill"]),
        ("killed", []),
    ],
)
def test_a_topology_without_a_driver_offers_what_can_be_done_and_shows_its_settings(
    cluster: StormClusterState, kind: StatusKind, offered: list[str]
) -> None:
    storm_id = submitted(cluster, "counting", WantedStatus(kind, 0.0))
    page = ClusterOverview(cluster, TOKEN).of_topology(storm_id).topology()
    assert (page["actions"], page["isServed"]) == (offered, False)
    assert page["configuration"] == {"engine": "in_process", "spark.ssl.keyPassword": "***"}


def test_the_nimbus_that_leads_is_named(cluster: StormClusterState) -> None:
    first = Leadership(cluster, "http://one")
    second = Leadership(cluster, "http://two")
    assert (first.campaign(), second.campaign(), first.campaign()) == (True, False, True)
    told = {each["url"]: each["status"] for each in ClusterOverview(cluster, TOKEN).nimbus_summary()["nimbuses"]}
    assert told == {"http://one": "Leader", "http://two": "Not a Leader"}
    first.resign()
    assert second.campaign()


def test_a_topology_is_shown_by_its_heartbeat_while_its_driver_does_not_answer(cluster: StormClusterState) -> None:
    storm_id = submitted(cluster, "counting")
    pages = ClusterOverview(cluster, TOKEN).of_topology("counting")
    assert pages.topology()["status"] == "WAITING"
    with pytest.raises(NotRunning, match="it waits: no Nimbus leads the cluster"):
        pages.view("component/words")
    start = assigned(cluster, storm_id)
    assert pages.topology()["status"] == "STARTING"
    beating(cluster, storm_id, start, "http://127.0.0.1:9")
    cluster.report_error(storm_id, "words/each", ErrorInfo(1.0, "it broke", "host", 6700))
    page = pages.topology()
    assert (page["status"], page["txid"], page["slot"]) == ("ACTIVE", 41, "host:6700")
    assert "what it said last" in page["note"]
    assert page["heardSecondsAgo"] >= 2
    assert [(each["component"], each["error"]) for each in page["topologyErrors"]] == [("words/each", "it broke")]


@pytest.mark.parametrize(
    ("status", "on", "why"),
    [
        (WantedStatus("failed", 0.0, reason="no such table"), "", "it was marked as failed: no such table"),
        (WantedStatus("killed", 0.0), "", "it ends"),
        (WantedStatus("active", 0.0), "", "it waits: no supervisor is there"),
        (WantedStatus("active", 0.0), "a", "its driver in slot host:6700 starts"),
    ],
)
def test_a_topology_says_why_none_runs(cluster: StormClusterState, status: WantedStatus, on: str, why: str) -> None:
    Leadership(cluster, "http://one").campaign()
    storm_id = submitted(cluster, "counting", status)
    if on:
        assigned(cluster, storm_id, on)
    overview = ClusterOverview(cluster, TOKEN)
    with UIServer(overview, port=0, token=TOKEN) as server, httpx.Client(base_url=server.url) as client:
        path = f"/api/v1/topology/{storm_id}"
        assert client.get(path).json()["note"] == why
        assert client.get(f"{path}/visualization").json() == {"nodes": [], "edges": []}
        assert client.get(f"{path}/batches").json() == {"batches": []}
        refused = client.get(f"{path}/component/words")
        assert (refused.status_code, refused.json()["kind"]) == (409, "NotRunning")
        assert refused.json()["errorMessage"] == f"the topology {storm_id} does not run: {why}"


def test_a_heartbeat_of_an_earlier_assignment_is_not_shown(cluster: StormClusterState) -> None:
    storm_id = submitted(cluster, "counting")
    beating(cluster, storm_id, assigned(cluster, storm_id))
    assigned(cluster, storm_id)
    assert ClusterOverview(cluster, TOKEN).topology_summary()["topologies"][0]["status"] == "STARTING"


@contextmanager
def counting(cluster: StormClusterState, storm_id: str) -> Iterator[None]:
    """A driver of a word count that has ended and is served."""
    topology = TridentTopology("counting")
    words = topology.new_stream("words", FixedBatchSpout("word", 2, ["the"], ["cow"], ["the"]))
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count", state_name="counts")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        one = OneTopology(storm_id, TridentPages(running, storm_id))
        with UIServer(one, port=0, token=TOKEN, token_for_all=True) as driver:
            beating(cluster, storm_id, assigned(cluster, storm_id), driver.url)
            yield


def test_what_the_driver_says_comes_first(cluster: StormClusterState) -> None:
    storm_id = submitted(cluster, "counting")
    with counting(cluster, storm_id):
        page = (pages := ClusterOverview(cluster, TOKEN).of_topology(storm_id)).topology()
        assert (page["id"], page["status"], page["txid"], page["note"]) == (storm_id, "ACTIVE", 2, "")
        assert page["conf"]["spark.ssl.keyPassword"] == "***"
        assert page["isServed"]
        assert page["actions"] == ["deactivate", "rebalance", "kill"]
        assert pages.lookup("counts", ["the"])["value"] == 2
        assert len(pages.view("batches")["batches"]) == 2


def test_actions_go_to_the_nimbus_that_leads(cluster: StormClusterState, tmp_path: Path) -> None:
    storm_id = submitted(cluster, "counting")
    with open_cluster_pages(str(tmp_path), None) as pages:
        assert pages.read_only
        with pytest.raises(ClusterError, match="only be read"):
            pages.of_topology(storm_id).act("kill", {"wait_s": 1.0})
    done: list[tuple[str, str, object]] = []

    def act(topology: str, action: str, parameters: object) -> dict[str, object]:
        done.append((topology, action, parameters))
        return {"name": "counting"}

    with open_cluster_pages(str(tmp_path), TOKEN) as pages:
        with pytest.raises(NoLeader):
            pages.of_topology(storm_id).act("deactivate", {})
        with UIServer(ClusterOverview(cluster, TOKEN, act), port=0, token=TOKEN) as nimbus:
            Leadership(cluster, nimbus.url).campaign()
            pages.of_topology("counting").act("kill", {"wait_s": 1.0})
    assert done == [(storm_id, "kill", {"wait_s": 1.0})]


def test_what_is_not_of_the_topology_is_not_shown_after_it_has_ended(cluster: StormClusterState) -> None:
    storm_id = submitted(cluster, "counting")
    pages = ClusterOverview(cluster, TOKEN).of_topology(storm_id)
    cluster.remove_storm(storm_id)
    with pytest.raises(NoSuchTopology, match="has ended"):
        pages.topology()


def test_what_failed_and_what_waits_comes_first_each_with_its_reason(cluster: StormClusterState) -> None:
    Leadership(cluster, "http://one").campaign()
    supervising(cluster)
    trace = "KeyError: Traceback (most recent call last):\n  File \"m.py\", line 1\nKeyError: 'no table at redis://u:hush@h/0'"
    beating(cluster, (well := submitted(cluster, "well")), assigned(cluster, well))
    storm_id = submitted(cluster, "behind")
    stats = {"health": {"failures": 3}, "topologyStats": [{"window": "600", "failed": 3, "failedOf": 60}]}
    start = assigned(cluster, storm_id, port=6701)
    beat = WorkerHeartbeat(time.time(), 30.0, storm_id, "host", 99, 1, start, "active", "", stats)
    cluster.worker_heartbeat(storm_id, "a", 6701, beat)
    submitted(cluster, "waiting")
    submitted(cluster, "broken", WantedStatus("failed", 0.0, reason=trace))
    rows = ClusterOverview(cluster, TOKEN).topology_summary()["topologies"]
    assert [row["name"] for row in rows] == ["broken", "waiting", "behind", "well"]
    assert [row["verdict"]["lines"][0]["text"] for row in rows[:3]] == [
        "It was marked as failed: KeyError: 'no table at redis://***@h/0'",
        "It waits: no free slot: 2 of 2 are used. Start another supervisor, or kill a topology",
        "3 attempts failed and were tried again (within ten minutes 3 of 60: 5.0%).",
    ]
    assert "hush" not in str(rows)


def test_a_driver_that_is_started_again_says_what_its_last_one_died_of(cluster: StormClusterState) -> None:
    storm_id = submitted(cluster, "counting")
    assigned(cluster, storm_id)
    pages = ClusterOverview(cluster, TOKEN)
    assert pages.topology_summary()["topologies"][0]["verdict"]["lines"] == [{"tone": "quiet", "text": "It starts."}]
    cluster.report_error(storm_id, DRIVER, ErrorInfo(time.time(), "exit code 1; it said last: killed", "host", 6700))
    line = {"tone": "warn", "text": "It starts again, after: exit code 1; it said last: killed"}
    assert line in pages.topology_summary()["topologies"][0]["verdict"]["lines"]
    assert line in pages.of_topology(storm_id).topology()["verdict"]["lines"]


def test_a_machine_has_one_name_wherever_it_is_named(cluster: StormClusterState) -> None:
    for node, host in (("vm-1", "vm"), ("db-7", "db"), ("db-8", "db")):
        supervising(cluster, node, host)
    names = {each["id"]: each["host"] for each in ClusterOverview(cluster, TOKEN).supervisor_summary()["supervisors"]}
    assert names == {"vm-1": "vm", "db-7": "db-7", "db-8": "db-8"}  # a host with two is not the name of either
    storm_id = submitted(cluster, "counting")
    assigned(cluster, storm_id, "vm-1", host=machine_names(cluster.all_supervisor_info())["vm-1"])
    pages = ClusterOverview(cluster, TOKEN)
    (row,), page = pages.topology_summary()["topologies"], pages.of_topology(storm_id).topology()
    for each in (row, page):
        assert (each["slot"], each["host"], each["supervisor"]) == ("vm:6700", "vm", "vm-1")
    assert page["note"] == "its driver in slot vm:6700 starts"
    (runs,) = [each["runs"] for each in pages.supervisor_summary()["supervisors"] if each["id"] == "vm-1"]
    assert runs == [{"port": 6700, "id": storm_id}]
    with pytest.raises(ClusterError, match=f"the log of {storm_id} is on vm, whose supervisor is not running"):
        pages.log(storm_id)


def test_the_log_of_a_topology_that_failed_is_where_its_driver_died(cluster: StormClusterState, tmp_path: Path) -> None:
    folder = MachineFolder(tmp_path / "machine")
    with UIServer(MachinePages(folder), port=0, token=TOKEN, token_for_all=True) as server:
        supervising(cluster, logs=server.url)
        storm_id = submitted(cluster, "counting", WantedStatus("failed", 0.0, reason="it broke"))
        pages = ClusterOverview(cluster, TOKEN)
        assert pages.log(storm_id)["note"] == "the topology is not assigned to a machine"
        cluster.report_death(storm_id, DriverDeath(time.time(), "a", 6700, 1, 0.0, 1.0, True, "it broke"))
        folder.log_file(storm_id).write_text("2026-11-26 02:00:00,001 ERROR it broke\n")
        folder.output_file(storm_id).write_text("a worker said why\n")
        assert pages.log(storm_id)["text"].endswith("ERROR it broke\n")
        assert pages.log(storm_id, None, "output")["text"] == "a worker said why\n"
    folder.close()


def test_figures_over_time_are_those_of_the_driver(cluster: StormClusterState) -> None:
    storm_id = submitted(cluster, "counting")
    assert ClusterOverview(cluster, TOKEN).of_topology(storm_id).view("series") == {}
    with counting(cluster, storm_id):
        series = ClusterOverview(cluster, TOKEN).of_topology(storm_id).view("series", 600)
    assert (series["id"], series["window"], series["spanSeconds"]) == (storm_id, "600", 5)
    assert sum(series["tuplesPerSecond"]) > 0
    assert sum(series["failed"]) == 0


def waiting(number: int, why: str) -> TopologyOverview:
    base = StormBase(f"t{number}", 0.0, WantedStatus("active", 0.0), 1, {}, "trident", "m:t", "0" * 64)
    return TopologyOverview(f"t{number}-{number}-0", base, None, None, why)


@pytest.mark.parametrize("apart", [-3600.0, 3600.0])
def test_a_driver_is_silent_by_the_clock_of_its_own_machine(cluster: StormClusterState, apart: float) -> None:
    start = assigned(cluster, (storm_id := submitted(cluster, "counting")))
    there = time.time() + apart
    info = SupervisorInfo(there, "host", "a", (6700,), (6700,), {}, 60.0)
    cluster.supervisor_heartbeat("a", info)
    for said, driver in ((there - 2, "active"), (there - 40, "silent")):
        beat = WorkerHeartbeat(said, 30.0, storm_id, "host", 99, 1, start, "active", "", {})
        cluster.worker_heartbeat(storm_id, "a", 6700, beat)
        (listed,), shown = overviews(cluster), overview(cluster, storm_id, cluster.all_bases()[storm_id])
        for each in (listed, shown):
            assert (each.driver, each.facts()["heardSecondsAgo"]) == (driver, pytest.approx(there - said))


def test_a_reason_that_many_topologies_have_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([*(waiting(number, "no free slot") for number in range(200)), waiting(200, "no supervisor is there")])
    printed = capsys.readouterr().out
    assert printed.count("no free slot") == 1
    assert "t0, t1, t2, t3, t4 and 195 more: no free slot\n" in printed
    assert printed.endswith("t200: no supervisor is there\n")


def test_a_topology_is_shown_with_the_address_of_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    shown = replace(waiting(1, "no free slot"), page="http://one:8080/#/topology/t1-1-0")
    print_topology(shown)
    assert "page       http://one:8080/#/topology/t1-1-0\n" in capsys.readouterr().out
    print_topology(waiting(1, "no free slot"))
    assert "page " not in capsys.readouterr().out
