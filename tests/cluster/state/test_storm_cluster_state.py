"""Every operation of Storm's protocol `StormClusterState`, by its name, on a file and on a real ZooKeeper."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.cluster_states import Opened, Opening, set_assignment
from trident.cluster_state.cluster_records import (
    Assignment,
    DriverDeath,
    ErrorInfo,
    NodePort,
    StormBase,
    SupervisorInfo,
    WantedStatus,
    WorkerHeartbeat,
)
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import ClusterError
from trident.nodes.interface import NodeEvent

BASE = StormBase(
    "words", 1700000000.5, WantedStatus("active", 1700000000.5), 2, {"split": 4, "größe": 1}, "trident", "app:words",
    "ab" * 32, {"trident.batch": "5"}, 3, "submission", "cd" * 32,
)  # fmt: skip
ASSIGNMENT = Assignment(
    "/code", {"node-a": "host-a"}, {"[1-1]": NodePort("node-a", 6700)}, {"[1-1]": 1700000001.0}, "ab" * 32, 3
)
SUPERVISOR = SupervisorInfo(1700000002.0, "host-a", "node-a", (6700,), (6700, 6701), {"logs": "http://host-a:1"}, 60.0)
BEAT = WorkerHeartbeat(
    1700000003.0, 2.0, "words-1-17", "host-a", 4711, 3, 1700000001.0, "active", "http://host-a:2",
    {"emitted": {"600": 7}},
)  # fmt: skip
ERROR = ErrorInfo(1700000004.0, "Traceback: Größe 🙂 'x'", "host-a", 6700)
# Names that paths, queries or other programs might stumble over.
ODD = ["a/b", "größe", "大小", "🙂", ".", "..", "a%2Fb", "a b", "'; --", "%", "\n", "-1"]


class Told:
    """Counts what a cluster tells of what is watched."""

    def __init__(self, cluster: StormClusterState) -> None:
        self.calls = 0
        self._more = threading.Condition()
        cluster.state.register(self._tell)

    def _tell(self, _event: NodeEvent) -> None:
        with self._more:
            self.calls += 1
            self._more.notify_all()

    def wait(self, calls: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self.calls >= calls, 20.0)
        assert self.calls == calls


@pytest.fixture
def cluster(opened: Opened) -> StormClusterState:
    return StormClusterState(opened.state)


@pytest.fixture
def raw(opening: Opening) -> Opened:
    return opening()


Act = Callable[[StormClusterState], object]
AGAIN, NEWER = replace(ASSIGNMENT, generation=4), replace(BASE, generation=4)


WATCHED: dict[str, tuple[Act, list[tuple[Act, object]]]] = {
    "assignments": (lambda cluster: cluster.assignments(watch=True),
        [(lambda other: set_assignment(other, "b", ASSIGNMENT), ["b"]), (lambda other: other.remove_storm("b"), [])]),
    "an assignment": (lambda cluster: cluster.assignment_info("a", watch=True),
        [(lambda other: set_assignment(other, "a", ASSIGNMENT), ASSIGNMENT),
        (lambda other: set_assignment(other, "a", AGAIN), AGAIN), (lambda other: other.remove_storm("a"), None)]),
    "a topology": (lambda cluster: cluster.storm_base("a", watch=True),
        [(lambda other: other.activate_storm("a", BASE), BASE),
        (lambda other: other.update_storm("a", lambda base: replace(base, generation=4)), NEWER)]),
    "topologies": (lambda cluster: cluster.all_bases(watch=True),
        [(lambda other: other.activate_storm("a", BASE), {"a": BASE}), (lambda other: other.remove_storm("a"), {})]),
    "supervisors": (lambda cluster: cluster.supervisors(watch=True),
        [(lambda other: other.supervisor_heartbeat("node-a", SUPERVISOR), ["node-a"]),
        (lambda other: other.disconnect(), [])]),
}  # fmt: skip


@pytest.mark.parametrize("what", WATCHED)
def test_what_is_watched_is_told_once_if_another_changes_it(cluster: StormClusterState, raw: Opened, what: str) -> None:
    read, steps = WATCHED[what]
    told, other = Told(cluster), StormClusterState(raw.state)
    assert not read(cluster)
    for number, (act, expected) in enumerate(steps, 1):
        act(other)
        told.wait(number)
        assert read(cluster) == expected


def test_activate_storm(cluster: StormClusterState) -> None:
    assert cluster.activate_storm("a", BASE)
    for storm_id, name in (("a", BASE.storm_name), ("a", "other"), ("b", BASE.storm_name)):
        assert not cluster.activate_storm(storm_id, replace(BASE, storm_name=name, generation=9))
    assert cluster.all_bases() == {"a": BASE}
    assert (cluster.storm_of_name(BASE.storm_name), cluster.storm_of_name("other")) == ("a", None)


def test_update_storm(cluster: StormClusterState, raw: Opened) -> None:
    cluster.activate_storm("a", replace(BASE, generation=0))
    other = StormClusterState(raw.state)

    def count(one: StormClusterState) -> None:
        for _ in range(50):
            one.update_storm("a", lambda base: replace(base, generation=base.generation + 1))

    threads = [threading.Thread(target=count, args=(one,)) for one in (cluster, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cluster.find_storm("a")[1].generation == 100
    assert cluster.update_storm("none", lambda base: base) is None
    assert cluster.active_storms() == ["a"]


def test_what_is_kept_of_a_topology_is_removed_with_it_and_what_is_said_late(cluster: StormClusterState) -> None:
    for storm in ("a", "b"):
        cluster.activate_storm(storm, replace(BASE, storm_name=f"name-{storm}"))
        set_assignment(cluster, storm, ASSIGNMENT)
        cluster.worker_heartbeat(storm, "node-a", 6700, BEAT)
        cluster.report_error(storm, "split", ERROR)
    cluster.remove_storm("a")
    cluster.remove_storm("a")
    for _ in range(2):
        assert cluster.active_storms() == cluster.assignments() == list(cluster.all_heartbeats()) == ["b"]
        assert (cluster.all_errors("a"), cluster.all_errors("b")) == ({}, {"split": [ERROR]})
        assert (cluster.storm_of_name("name-a"), cluster.storm_of_name("name-b")) == (None, "b")
        assert cluster.all_deaths() == {}
        # What a machine says late that was out of touch.
        set_assignment(cluster, "a", ASSIGNMENT)
        cluster.worker_heartbeat("a", "node-a", 6700, BEAT)
        cluster.report_error("a", "split", ERROR)
        cluster.report_death("a", DriverDeath(1.0, "node-a", 6700, 1, 1.0, 1.0, False, "it broke"))
        cluster.remove_late()


def test_a_supervisor_is_there_as_long_as_its_session(cluster: StormClusterState, raw: Opened) -> None:
    assert cluster.supervisor_info("node-a") is None
    for info in (SUPERVISOR, replace(SUPERVISOR, uptime_secs=61.0)):
        cluster.supervisor_heartbeat("node-a", info)
        assert cluster.supervisor_info("node-a") == info
    looks = StormClusterState(raw.state)
    assert looks.all_supervisor_info() == {"node-a": replace(SUPERVISOR, uptime_secs=61.0)}
    cluster.disconnect()
    assert looks.all_supervisor_info() == {}


def test_a_heartbeat_is_of_a_slot_and_outlasts_the_session(cluster: StormClusterState, raw: Opened) -> None:
    assert cluster.get_worker_heartbeat("a", "node-a", 6700) is None
    for port, beat in ((6700, BEAT), (6701, BEAT), (6700, replace(BEAT, uptime_secs=3.0))):
        cluster.worker_heartbeat("a", "node-a", port, beat)
    for _ in range(2):
        cluster.remove_worker_heartbeat("a", "node-a", 6701)
    cluster.disconnect()  # its time tells how old it is
    looks = StormClusterState(raw.state)
    assert raw.state.get_children("/workerbeats/a") == ["node-a-6700"]
    assert list(looks.all_heartbeats()) == ["a"]
    assert looks.get_worker_heartbeat("a", "node-a", 6700) == replace(BEAT, uptime_secs=3.0)
    assert looks.get_worker_heartbeat("a", "node-a", 6701) is None


def test_all_heartbeats_are_those_of_each_topology(cluster: StormClusterState) -> None:
    beats = {
        storm: {f"node-{node}-6700": replace(BEAT, storm_id=storm, pid=node) for node in range(3)}
        for storm in ("a", "b")
    }
    for storm, of_storm in beats.items():
        for beat in of_storm.values():
            cluster.worker_heartbeat(storm, f"node-{beat.pid}", 6700, beat)
    cluster.state.mkdirs("/workerbeats/c")
    assert cluster.all_heartbeats() == {**beats, "c": {}}
    assert cluster.all_heartbeats(["b", "none"]) == {"b": beats["b"], "none": {}}
    assert cluster.all_heartbeats([]) == {}


def test_heartbeats_at_slots_are_those_of_the_slots_without_statistics(cluster: StormClusterState) -> None:
    cluster.worker_heartbeat("a", "node-a", 6700, BEAT)
    cluster.worker_heartbeat("a", "node-a", 6701, replace(BEAT, pid=1))
    cluster.worker_heartbeat("b", "node-b", 6700, replace(BEAT, storm_id='","stats":{', stats={"stats": {"stats": []}}))
    slots = {"a": NodePort("node-a", 6700), "b": NodePort("node-b", 6700), "c": NodePort("node-a", 6700)}
    assert cluster.heartbeats_at(slots) == {
        "a": replace(BEAT, stats={}),
        "b": replace(BEAT, storm_id='","stats":{', stats={}),
    }
    assert cluster.heartbeats_at({}) == {}
    other_order = dict(reversed(SHAPES["/workerbeats/a/node-a-6700"].items()))
    cluster.state.set_data("/workerbeats/a/node-a-6700", json.dumps(other_order, separators=(",", ":")).encode())
    assert cluster.heartbeats_at(slots)["a"] == replace(BEAT, stats={})
    cluster.state.set_data("/workerbeats/a/node-a-6700", b'{"version":2,"stats":{}}')
    with pytest.raises(ClusterError, match="/workerbeats/a/node-a-6700: a heartbeat is of version 2"):
        cluster.heartbeats_at(slots)


def test_report_error_keeps_the_last_ten(cluster: StormClusterState) -> None:
    for number in range(13):
        cluster.report_error("a", "split", replace(ERROR, time_secs=float(number)))
    cluster.report_error("a", "count", ERROR)
    assert [each.time_secs for each in cluster.errors("a", "split")] == [float(number) for number in range(12, 2, -1)]
    assert cluster.errors("a", "count") == [ERROR]


def test_an_error_and_the_reason_of_a_death_may_be_any_text_of_any_length(cluster: StormClusterState) -> None:
    """A supervisor reports it until it is there, and starts no driver before that."""
    text = "\udc80 \0" + "x" * 2_000_000
    cluster.report_error("a", "split", replace(ERROR, error=text))
    cluster.report_death("a", DriverDeath(10.0, "node", 6700, 1, 0.0, 1.0, False, text))
    (error,), (death,) = cluster.errors("a", "split"), cluster.all_deaths()["a"]
    assert error.error == death.reason == text.replace("\udc80", "?")[:50_000]


def test_what_failed_is_stored_without_secrets(cluster: StormClusterState, raw: Opened) -> None:
    said = "no answer from redis://ann:hush@host/0"
    cluster.activate_storm("a", replace(BASE, status=WantedStatus("failed", 0.0, reason=said)))
    cluster.report_error("a", "split", replace(ERROR, error=said))
    cluster.report_error("a", "cut", replace(ERROR, error=f"{said:>50006}"))
    cluster.report_death("a", DriverDeath(1.0, "node-a", 6700, 1, 1.0, 1.0, False, said))
    stored = raw.state.get_data_below_each(["/storms", "/errors/a/split", "/errors/a/cut", "/deaths/a"])
    assert [b"hush" in data for below in stored.values() for data in below.values()] == [False] * 4
    assert cluster.all_deaths()["a"][0].reason == "no answer from redis://***@host/0"


def test_names_come_back_as_they_were(cluster: StormClusterState) -> None:
    for name in ODD:
        cluster.activate_storm(name, replace(BASE, storm_name=name))
        set_assignment(cluster, name, ASSIGNMENT)
        cluster.supervisor_heartbeat(name, SUPERVISOR)
        cluster.worker_heartbeat(name, name, 6700, BEAT)
        cluster.report_error(name, name, ERROR)
        assert cluster.get_worker_heartbeat(name, name, 6700) == BEAT
        assert cluster.all_errors(name) == {name: [ERROR]}
    odd = sorted(ODD)
    assert sorted(cluster.active_storms()) == sorted(cluster.assignments()) == sorted(cluster.supervisors()) == odd
    assert sorted(cluster.all_heartbeats()) == odd
    for found in (cluster.all_bases(), cluster.all_assignments(), cluster.all_supervisor_info()):
        assert sorted(found) == odd
    assert cluster.all_heartbeats() == {name: {f"{name}-6700": BEAT} for name in odd}
    slots = {name: NodePort(name, 6700) for name in odd}
    assert cluster.heartbeats_at(slots) == dict.fromkeys(odd, replace(BEAT, stats={}))
    for name in ODD:
        cluster.remove_storm(name)
    assert cluster.active_storms() == cluster.assignments() == list(cluster.all_heartbeats()) == []
    assert all(cluster.all_errors(name) == {} for name in ODD)


SHAPES: dict[str, dict[str, Any]] = {
    "/storms/a": {
        "version": 1, "storm-name": "words", "launch-time-secs": 1700000000.5,
        "status": {"type": "active", "since-secs": 1700000000.5, "wait-secs": 0.0, "reason": ""}, "num-workers": 2,
        "component->executors": {"split": 4, "größe": 1}, "kind": "trident", "target": "app:words",
        "code-hash": "ab" * 32, "conf": {"trident.batch": "5"}, "generation": 3, "submission": "submission",
        "previous-code-hash": "cd" * 32, "previous": {}, "log-dir": "",
    },
    "/assignments/a": {
        "version": 1, "master-code-dir": "/code", "node->host": {"node-a": "host-a"},
        "executor->node+port": {"[1-1]": ["node-a", 6700]}, "executor->start-time-secs": {"[1-1]": 1700000001.0},
        "code-hash": "ab" * 32, "generation": 3,
    },
    "/supervisors/node-a": {
        "version": 1, "time-secs": 1700000002.0, "hostname": "host-a", "assignment-id": "node-a",
        "used-ports": [6700], "meta": [6700, 6701], "scheduler-meta": {"logs": "http://host-a:1"},
        "uptime-secs": 60.0,
    },
    "/workerbeats/a/node-a-6700": {
        "version": 1, "time-secs": 1700000003.0, "uptime-secs": 2.0, "storm-id": "words-1-17", "hostname": "host-a",
        "pid": 4711, "generation": 3, "start-time-secs": 1700000001.0, "state": "active", "pages": "http://host-a:2",
        "stats": {"emitted": {"600": 7}},
    },
    "/errors/a/split/e0000000000": {
        "version": 1, "time-secs": 1700000004.0, "error": "Traceback: Größe 🙂 'x'", "host": "host-a", "port": 6700,
    },
}  # fmt: skip


def filled(cluster: StormClusterState) -> None:
    cluster.activate_storm("a", BASE)
    set_assignment(cluster, "a", ASSIGNMENT)
    cluster.supervisor_heartbeat("node-a", SUPERVISOR)
    cluster.worker_heartbeat("a", "node-a", 6700, BEAT)
    cluster.report_error("a", "split", ERROR)


READS: dict[str, Callable[[StormClusterState], object]] = {
    "/storms/a": lambda cluster: cluster.storm_base("a"),
    "/assignments/a": lambda cluster: cluster.assignment_info("a"),
    "/supervisors/node-a": lambda cluster: cluster.supervisor_info("node-a"),
    "/workerbeats/a/node-a-6700": lambda cluster: cluster.get_worker_heartbeat("a", "node-a", 6700),
    "/errors/a/split/e0000000000": lambda cluster: cluster.errors("a", "split"),
}


def test_a_setting_that_is_not_utf_8_is_refused_and_not_stored_as_another(cluster: StormClusterState) -> None:
    """As the name of a folder may be: the driver would keep its log elsewhere."""
    with pytest.raises(ClusterError, match=r"a storm base cannot have the text '/log/\\udcff': it is not UTF-8"):
        cluster.activate_storm("a", replace(BASE, conf={"log_dir": "/log/\udcff"}))
    assert cluster.active_storms() == []
    assert cluster.storm_of_name("\udcff") is None  # asked for by a command line
    cluster.report_error("a", "\udcff", ERROR)
    assert cluster.all_errors("a") == {"\udcff": [ERROR]}


def test_records_are_json_with_storms_names(cluster: StormClusterState, raw: Opened) -> None:
    filled(cluster)
    found = raw.state.get_data_each(list(SHAPES))
    assert [json.loads(data or b"null") for data in found] == list(SHAPES.values())


def test_a_record_of_another_version_is_an_error_that_names_both(cluster: StormClusterState) -> None:
    filled(cluster)
    for path, read in READS.items():
        cluster.state.set_data(path, json.dumps({**SHAPES[path], "version": 2}).encode())
        with pytest.raises(ClusterError, match=f"{path}: .* is of version 2; this version of the software reads 1"):
            read(cluster)


def test_what_is_no_record_is_an_error_that_names_the_node(cluster: StormClusterState) -> None:
    filled(cluster)
    where_names_belong = json.dumps({**SHAPES["/assignments/a"], "executor->node+port": [1]}).encode()
    damaged = b"", b"\xff", b"{", b"[]", b'"text"', b"1", b"null", b'{"version": 1}', b'{"version":1,"status":3}'
    for path, read in READS.items():
        for data in (*damaged, where_names_belong):
            cluster.state.set_data(path, data)
            with pytest.raises(ClusterError, match=f"{path}: the .* cannot be read"):
                read(cluster)


def test_deaths_are_read_in_order_and_once_without_what_another_version_wrote(cluster: StormClusterState) -> None:
    first, second = (DriverDeath(at, "node", 6700, 1, 0.0, 1.0, False, "it broke") for at in (10.0, 20.0))
    for _ in range(2):  # the answer to the first was lost
        cluster.report_death("x", first)
    for strange in (b"", b"[]", b'{"version": 1, "time_secs": 1}', b'{"version": 2}'):
        cluster.state.create_sequential("/deaths/x/d", strange)
    cluster.report_death("x", second)
    assert cluster.all_deaths() == {"x": [first, second]}
    cluster.remove_storm("x")
    assert cluster.all_deaths() == {}
