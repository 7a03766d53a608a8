"""The Nimbus: which machine gets which topology, and what it does with submissions."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.code.packed_topologies import package_of, put
from trident.cluster.assigning import Assign, DriverHealth, Forget, Health, MarkFailed, Picture, RollBack, decide
from trident.cluster.code_store import CodeStore
from trident.cluster.driver_orders import as_proved
from trident.cluster.nimbus import _MAX_PAUSE_S, Nimbus
from trident.cluster.package_archive import ComponentFacts
from trident.cluster.submissions import Submissions, rebalance, rolled_back
from trident.cluster.topology_package import settings_of
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import (
    Assignment,
    DriverDeath,
    NodePort,
    StormBase,
    SupervisorInfo,
    WantedStatus,
    WorkerHeartbeat,
)
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import BadPackage, ClusterError, ConfigError, NameTaken, NoSuchTopology, UpgradeRefused
from trident.log.file_log import FileLog
from trident.log.records import TopologyRecord
from trident.storm import StormConfig

NOW = 10_000.0


def base(launched: float = 0.0, status: WantedStatus | None = None, generation: int = 1, before: str = "") -> StormBase:
    wanted = status or WantedStatus("active", 0.0)
    return StormBase("name", launched, wanted, 1, {}, "trident", "m:t", "code", {}, generation, "", before)


def assignment(slot: tuple[str, int], start: float = NOW - 100, generation: int = 1) -> Assignment:
    driver = Assignment.DRIVER
    return Assignment("code", {slot[0]: "host"}, {driver: NodePort(*slot)}, {driver: start}, "code", generation)


def supervisor(*ports: int) -> SupervisorInfo:
    return SupervisorInfo(NOW, "host", "id", (), ports or (1, 2), {}, 100.0)


def death(
    node: str, ago: float = 10.0, ran: float = 1.0, fatal: bool = False, generation: int = 1, start: float = NOW - 100
) -> DriverDeath:
    return DriverDeath(NOW - ago, node, 1, generation, start, ran, fatal, "it broke")


def picture(
    bases: Mapping[str, StormBase], assignments: Mapping[str, Assignment] | None = None,
    supervisors: Mapping[str, SupervisorInfo] | None = None, health: Mapping[str, Health] | None = None,
    deaths: Mapping[str, Sequence[DriverDeath]] | None = None, silent: Sequence[str] = (),
) -> Picture:  # fmt: skip
    assigned = assignments or {}
    return Picture(
        NOW,
        bases,
        assigned,
        {"a": supervisor(), "b": supervisor()} if supervisors is None else supervisors,
        {name: (health or {}).get(name, "alive") for name in assigned},
        {name: name not in silent for name in assigned},
        deaths or {},
        6,
    )


DEAD = [death("a")] * 3
IDLE_A, IDLE_B, RUNS = assignment(("a", 1)), assignment(("b", 1)), {"x": base()}
ENDING = replace(supervisor(1, 2), used_ports=(1,))
FATAL = {"x": [death("a", fatal=True)]}


def killed(ago: float) -> dict[str, StormBase]:
    return {"x": base(status=WantedStatus("killed", NOW - ago, wait_secs=20))}


@pytest.mark.parametrize(("seen", "wanted"), [
    # New topologies are spread over the machines, in the order in which they came.
    (picture({"late": base(3), "first": base(1), "second": base(2)}),
     {"first": ("a", 1), "second": ("b", 1), "late": ("a", 2)}),
    # A machine that runs much gets less.
    (picture({**RUNS, "y": base(), "new": base(5)}, {"x": IDLE_A, "y": assignment(("a", 2))},
             {"a": supervisor(1, 2, 3, 4), "b": supervisor(1)}), {"new": ("b", 1)}),
    # A slot whose last driver has not ended is the last choice.
    (picture({"new": base()}, {}, {"a": ENDING}), {"new": ("a", 2)}),
    (picture({**RUNS, "new": base(5)}, {"x": assignment(("b", 2))},
             {"a": replace(ENDING, meta=(1,)), "b": supervisor(2, 3)}), {"new": ("b", 3)}),
    (picture({"new": base()}, {}, {"a": replace(ENDING, meta=(1,))}), {"new": ("a", 1)}),
    # Without a free slot it waits.
    (picture({**RUNS, "new": base(5)}, {"x": IDLE_A}, {"a": supervisor(1)}), {}),
    # Nothing is moved while all is well; a supervisor that is gone keeps drivers that beat.
    (picture({**RUNS, "y": base()}, {"x": IDLE_A, "y": IDLE_B}), {}),
    (picture(RUNS, {"x": assignment(("gone", 1))}), {}),
    # A silent driver is moved to another machine; if there is none, it is started again in its slot, unless that is gone.
    (picture(RUNS, {"x": IDLE_A}, health={"x": "stale"}), {"x": ("b", 1)}),
    (picture(RUNS, {"x": IDLE_A}, {"a": supervisor(1)}, {"x": "stale"}), {"x": ("a", 1)}),
    (picture(RUNS, {"x": assignment(("gone", 1))}, {}, {"x": "stale"}), {}),
    # A machine that goes before the driver has started is not waited for.
    (picture(RUNS, {"x": assignment(("gone", 1))}, health={"x": "starting"}, silent=["x"]), {"x": ("a", 1)}),
    # Another generation starts in the same slot.
    (picture({"x": base(generation=2)}, {"x": assignment(("b", 2))}), {"x": ("b", 2)}),
    # A driver that keeps dying is moved, unless there is no other machine; deaths before the move do not move it again.
    (picture(RUNS, {"x": IDLE_A}, deaths={"x": DEAD[:2]}), {}),
    (picture(RUNS, {"x": IDLE_A}, deaths={"x": DEAD}), {"x": ("b", 1)}),
    (picture(RUNS, {"x": IDLE_A}, {"a": supervisor()}, deaths={"x": DEAD}), {}),
    (picture(RUNS, {"x": assignment(("a", 1), start=NOW - 5)}, deaths={"x": DEAD}), {}),
    # One that keeps dying everywhere is put to rest with its error.
    (picture(RUNS, {"x": IDLE_B}, deaths={"x": DEAD + [death("b")] * 3}),
     {"x": MarkFailed("x", "its driver has died 6 times, the last time: it broke")}),
    # Deaths of drivers that ran well, long ago, before it was activated, and of the code before are not counted.
    (picture(RUNS, {"x": IDLE_A}, deaths={"x": [death("a", ran=61)] * 9}), {}),
    (picture(RUNS, {"x": IDLE_A}, deaths={"x": [death("a", ago=1801, start=NOW - 1900)] * 9}), {}),
    # It died long ago on a machine whose clock is five hours ahead.
    (picture(RUNS, {"x": IDLE_B}, {"a": replace(supervisor(), time_secs=NOW + 18_000), "b": supervisor()},
             deaths={"x": [death("a", ago=2_000 - 18_000, start=NOW - 3_000)] * 6}), {}),
    # The clock of the machine that it died on is an hour behind.
    (picture(RUNS, {"x": IDLE_A}, deaths={"x": [death("a", ago=3600, fatal=True)]}),
        {"x": MarkFailed("x", "it broke")}),
    (picture({"x": base(status=WantedStatus("active", NOW - 5))}, {"x": IDLE_A}, deaths=FATAL), {}),
    (picture({"x": base(generation=2)}, {"x": assignment(("a", 1), generation=2)}, deaths=FATAL), {}),
    # Code that cannot run is put to rest at once, or rolled back.
    (picture(RUNS, {"x": IDLE_A}, deaths=FATAL), {"x": MarkFailed("x", "it broke")}),
    (picture({"x": base(before="old")}, {"x": IDLE_A}, deaths=FATAL), {"x": RollBack("x", "it broke")}),
    # A failed topology rests, and loses the slot that it still has.
    (picture({"x": base(status=WantedStatus("failed", 0.0))}), {}),
    (picture({"x": base(status=WantedStatus("failed", 0.0, reason="it broke"))}, {"x": IDLE_A}),
     {"x": MarkFailed("x", "it broke")}),
    # A killed one is forgotten once its driver has ended, or half a minute after its time.
    (picture(killed(1), {"x": IDLE_A}), {}),
    (picture(killed(1), {"x": IDLE_A}, silent=["x"]), {"x": Forget("x")}),
    (picture(killed(1), {"x": IDLE_A}, health={"x": "stale"}), {"x": Forget("x")}),
    (picture(killed(1)), {"x": Forget("x")}),
    (picture(killed(51), {"x": IDLE_A}), {"x": Forget("x")}),
    (picture(killed(49), {"x": IDLE_A}), {}),
])  # fmt: skip
def test_what_is_decided(seen: Picture, wanted: dict[str, object]) -> None:
    assert {each.storm_id: tuple(each.slot) if isinstance(each, Assign) else each for each in decide(seen)} == wanted


_NODES = ("a", "b", "c")


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    names = [f"t{number}" for number in range(draw(st.integers(1, 8)))]
    machines = draw(st.sets(st.sampled_from(_NODES)))
    free = [(node, port) for node in _NODES for port in (1, 2)]
    taken = draw(st.permutations(free))
    assigned = {
        name: assignment(slot, generation=draw(st.integers(1, 2)))
        for name, slot in zip(names, taken, strict=False)
        if draw(st.booleans())
    }
    status = st.builds(WantedStatus, st.sampled_from(["active", "inactive", "killed", "failed"]), st.just(0.0))
    return picture(
        {name: base(number, draw(status), draw(st.integers(1, 2))) for number, name in enumerate(names)},
        assigned,
        {node: supervisor() for node in machines},
        {name: draw(st.sampled_from(["starting", "alive", "stale"])) for name in assigned},
        {name: [death(draw(st.sampled_from(_NODES)))] * draw(st.integers(0, 7)) for name in names},
        [name for name in assigned if draw(st.booleans())],
    )


@given(pictures())
def test_each_topology_that_may_run_gets_one_slot_that_exists_and_no_other_has(seen: Picture) -> None:
    after = {name: (each.slot.node, each.slot.port) for name, each in seen.assignments.items()}
    assigned = [each for each in decide(seen) if isinstance(each, Assign)]
    given_now = {each.storm_id: (each.slot.node, each.slot.port) for each in assigned}
    after.update(given_now)
    assert len(given_now) == len(assigned)
    assert len(set(after.values())) == len(after)
    assert all(node in seen.supervisors and port in seen.supervisors[node].meta for node, port in given_now.values())
    assert all(seen.bases[name].status.kind in ("active", "inactive") for name in given_now)


_START = 7.0


def beat(told: float, start: float = _START) -> WorkerHeartbeat:
    return WorkerHeartbeat(told, 1.0, "x", "host", 1, 1, start, "active", "", {})


def is_told(*beats: tuple[float, int], start: float = _START) -> list[tuple[float | None, int, float]]:
    """Heartbeats, each with the seconds for which it is looked at; their times are of a machine whose clock is wrong."""
    return [(told, seconds, start) for told, seconds in beats]


LOOKS: dict[str, tuple[list[Any], list[str]]] = {
    "it is alive while its heartbeat changes, whatever its clock says": (
        is_told(*((5_000_000.0 - number, 4) for number in range(10))), ["alive"] * 10),
    "a heartbeat that stays the same is stale after the timeout": (is_told((1.0, 5), (1.0, 1), (2.0, 1)),
        ["alive", "stale", "alive"]),
    "it may take longer to its first heartbeat": ([(None, 20, _START), (None, 1, _START)], ["starting", "stale"]),
    "heartbeats of the driver before do not count": (is_told((1.0, 20), (2.0, 1), start=_START - 1),
        ["starting", "stale"]),
    "a new assignment begins again": ([*is_told((1.0, 6)), "assigned", *is_told((1.0, 1))], ["stale", "starting"]),
    "time in which this process was paused does not count": ([*is_told((1.0, 3)), 1000.0, *is_told((1.0, 1), (1.0, 3))],
        ["alive", "alive", "stale"]),
    "after it was forgotten it has the whole timeout again": (
        [*is_told((1.0, 5)), "forgotten", *is_told((1.0, 5), (1.0, 1))], ["alive", "alive", "stale"]),
    "it is stale although rounds are as far apart as they may be": (
        [*is_told((1.0, 1)), _MAX_PAUSE_S, *is_told((1.0, 1)), _MAX_PAUSE_S, *is_told((1.0, 1))],
        ["alive", "stale", "stale"]),
}  # fmt: skip


@pytest.mark.parametrize("what", LOOKS)
def test_whether_a_driver_is_alive(what: str) -> None:
    steps, expected = LOOKS[what]
    health, now, assigned = DriverHealth(timeout_s=5, launch_s=20), 100.0, assignment(("a", 1), start=_START)
    found: list[str] = []
    for step in steps:
        match step:
            case (told, seconds, start):  # looks once a second
                beats = {"x": None if told is None else beat(told, start)}
                seen = [health.observe(now + second, {"x": assigned}, beats)["x"] for second in range(1, seconds + 1)]
                found.append(seen[-1])
                now += seconds
            case "assigned":
                assigned = assignment(("b", 1), start=_START + 1)
            case "forgotten":
                health.forget()
            case pause:
                now += pause
    assert found == expected


_ID = "words-1-1"
_NEW = StormBase("words", 1.0, WantedStatus("active", 0.0), 1, {}, "trident", "m:t", "new", generation=2)


@pytest.fixture
def nimbus(address: str, tmp_path: Path) -> Iterator[Nimbus]:
    cluster = StormClusterState(open_cluster_state(address))
    made = Nimbus(cluster, "http://127.0.0.1:1", str(tmp_path))
    yield made
    made.stop()
    cluster.disconnect()


def decided_on(nimbus: Nimbus, base: StormBase) -> Nimbus:
    """Keep a topology whose driver has died of what no second try can mend."""
    assert nimbus.cluster.activate_storm(_ID, base)
    nimbus.cluster.report_death(_ID, death_of(base))
    return nimbus


def death_of(base: StormBase) -> DriverDeath:
    return DriverDeath(time.time(), "a", 1, base.generation, 0.0, 0.0, True, "it cannot run")


def upgraded(base: StormBase) -> StormBase:
    return replace(base, code_hash="newer", generation=base.generation + 1)


def before_upgrade(base: StormBase) -> StormBase:
    replaced = {"target": "m:t", "conf": {}, "component->executors": {}}
    return replace(base, previous_code_hash="old", previous=replaced)


@pytest.mark.parametrize(
    ("base", "meanwhile"),
    [
        pytest.param(_NEW, upgraded, id="rest, and an upgrade"),
        pytest.param(before_upgrade(_NEW), upgraded, id="roll back, and an upgrade"),
        pytest.param(before_upgrade(_NEW), as_proved, id="roll back, and a proof that the new code runs"),
        pytest.param(_NEW, lambda base: rebalance(base, 0.0, 2, {}, {}), id="rest, and a rebalance"),
    ],
)
def test_a_record_that_was_changed_meanwhile_stays_as_it_is(
    nimbus: Nimbus, base: StormBase, meanwhile: Callable[[StormBase], StormBase]
) -> None:
    seen = decided_on(nimbus, base)._look()
    changed = nimbus.cluster.update_storm(_ID, meanwhile)
    for each in decide(seen):
        assert isinstance(each, (MarkFailed, RollBack))
        nimbus._do(each, seen)
    assert nimbus.cluster.storm_base(_ID) == changed


def test_what_was_not_changed_is_put_to_rest_or_rolled_back(nimbus: Nimbus) -> None:
    decided_on(nimbus, before_upgrade(_NEW))._lead()
    _, base = nimbus.cluster.find_storm(_ID)
    assert (base.code_hash, base.generation, base.status.kind) == ("old", 3, "active")
    nimbus.cluster.report_death(_ID, death_of(base))
    nimbus._lead()
    _, base = nimbus.cluster.find_storm(_ID)
    assert (base.status.kind, base.status.reason) == ("failed", "it cannot run")


BOLTS: dict[str, Any] = {
    "kind": "bolts",
    "name": "words",
    "components": {"spout": ComponentFacts("spout", 1, 1), "count": ComponentFacts("bolt", 2, 4)},
}
COUNT = {
    "kind": "opaque", "key": ["word: string"], "value": ["count: bigint"], "by": "Count", "of": [], "streams": ["a"],
}  # fmt: skip


@pytest.fixture
def cluster(address: str) -> Iterator[StormClusterState]:
    made = StormClusterState(open_cluster_state(address))
    yield made
    made.disconnect()


@pytest.fixture
def submissions(cluster: StormClusterState, tmp_path: Path) -> Submissions:
    return Submissions(cluster, CodeStore(tmp_path / "code"), lambda name: str(tmp_path / "logs" / name))


def packed(submissions: Submissions, text: str = "1", **manifest: Any) -> str:
    sha256, data = package_of({"a.py": text.encode()}, **{"name": "mine", **manifest})
    put(submissions.code, sha256, data)
    return sha256


def test_a_topology_is_submitted_with_what_its_package_says(submissions: Submissions) -> None:
    sha256 = packed(submissions, **BOLTS)
    storm_id = submissions.submit(sha256, "mine", "s1", {"topology.workers": "3", "spark.ui.enabled": "false"})
    name, counter, since = storm_id.rsplit("-", 2)
    assert (name, counter, since.isdigit()) == ("mine", "1", True)
    _, base = submissions.cluster.find_storm(storm_id)
    assert (base.storm_name, base.kind, base.num_workers, base.code_hash) == ("mine", "bolts", 3, sha256)
    assert (base.status.kind, base.component_executors, base.generation) == ("active", {"spout": 1, "count": 2}, 1)
    assert submissions.cluster.find_storm("mine") == submissions.cluster.find_storm(storm_id) == (storm_id, base)


@pytest.mark.parametrize("content", [{"a/b": b"x", "a": b"y"}, {"a.py": b"x", "../b.py": b"y"}])
def test_a_package_for_no_supervisor_is_refused(submissions: Submissions, content: dict[str, bytes]) -> None:
    sha256, data = package_of(content)
    put(submissions.code, sha256, data)
    with pytest.raises(BadPackage, match="which no package of `trident submit` does"):
        submissions.submit(sha256, "mine")
    good = submissions.submit(packed(submissions), "mine")
    with pytest.raises(BadPackage, match="which no package of `trident submit` does"):
        submissions.upgrade(good, sha256)
    assert list(submissions.cluster.all_bases()) == [good]


def test_the_same_submission_is_one_topology_and_another_of_the_name_is_refused(submissions: Submissions) -> None:
    sha256, other = packed(submissions), packed(submissions, "2")
    storm_id = submissions.submit(sha256, submission="s1")
    assert submissions.submit(sha256, submission="s1") == storm_id
    with pytest.raises(NameTaken, match=f"has a topology 'mine', submitted at .* \\(id {storm_id}\\)"):
        submissions.submit(sha256, submission="s2")
    with pytest.raises(NameTaken, match="was made with another package"):
        submissions.submit(other, submission="s1")
    with pytest.raises(NameTaken, match="has a topology"):
        submissions.submit(sha256)
    assert submissions.cluster.active_storms() == [storm_id]


@pytest.mark.parametrize("name", ["a/b", ".", "..", "a b", "x" * 129, "é", "-n", "--all", "a\0b"])
def test_a_name_that_names_no_folder_no_node_and_no_argument_is_refused(submissions: Submissions, name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a topology"):
        submissions.submit(packed(submissions), name)
    with pytest.raises(NoSuchTopology, match="its topologies are: none"):
        submissions.kill(name)


@pytest.mark.parametrize("workers", [10**30, 10_001, 0, -1, True])
def test_a_number_of_workers_that_no_cluster_has_is_refused(submissions: Submissions, workers: int) -> None:
    sha256 = packed(submissions)
    with pytest.raises(ClusterError, match="workers: expected a whole number from 1 to 10,000, not "):
        submissions.submit(sha256, workers=workers)
    storm_id = submissions.submit(sha256, workers=10_000)
    with pytest.raises(ClusterError, match="workers: expected a whole number from 1 to 10,000, not "):
        submissions.rebalance(storm_id, workers=workers)


@pytest.mark.parametrize("facts", [{}, BOLTS])
def test_settings_that_are_mappings_are_json(submissions: Submissions, facts: dict[str, Any]) -> None:
    conf = {"spark_conf": '{"spark.ui.enabled": "false"}', "spark.driver.memory": "2g"}
    sha256 = packed(submissions, **facts)
    _, base = submissions.cluster.find_storm(submissions.submit(sha256, conf=conf))
    settings = settings_of(base.kind, "mine", base.conf)
    assert settings.spark_conf == {"spark.ui.enabled": "false", "spark.driver.memory": "2g"}
    with pytest.raises(ConfigError, match="spark_conf: the text is no JSON object"):
        submissions.submit(sha256, "other", conf={"spark_conf": "x=1"})


def test_settings_of_the_user_reach_bolts(submissions: Submissions) -> None:
    settings = settings_of("bolts", "mine", {"user": '{"folder": "books", "limit": 3}'})
    assert isinstance(settings, StormConfig)
    assert settings.as_mapping()["limit"] == 3


def test_settings_that_are_not_possible_are_refused(submissions: Submissions) -> None:
    sha256 = packed(submissions)
    for conf, said in (
        ({"max_spout_pendin": "1"}, "max_spout_pending"),
        ({"takeover": "true"}, "takeover cannot be set"),
    ):
        with pytest.raises(ConfigError, match=said):
            submissions.submit(sha256, conf=conf)
    with pytest.raises(ConfigError, match="topology.name cannot be set here"):
        submissions.submit(packed(submissions, **BOLTS), conf={"topology.name": "x"})
    assert submissions.cluster.active_storms() == []


def test_a_package_that_is_missing_damaged_or_of_other_versions_is_refused(submissions: Submissions) -> None:
    with pytest.raises(BadPackage, match="there is no package"):
        submissions.submit("0" * 64)
    with pytest.raises(BadPackage, match="made with Python 2.7"):
        submissions.submit(packed(submissions, python="2.7"))
    sha256 = packed(submissions)
    submissions.code.path(sha256).write_bytes(b"damaged")
    with pytest.raises(BadPackage, match="is damaged"):
        submissions.submit(sha256)


def test_of_several_nimbuses_that_add_one_name_one_wins(submissions: Submissions, address: str) -> None:
    sha256 = packed(submissions)

    def submit(number: int) -> list[str]:
        session = StormClusterState(open_cluster_state(address))
        said = []
        for name in range(10):
            try:
                said.append(Submissions(session, submissions.code, str).submit(sha256, f"n{name}", str(number)))
            except NameTaken:
                said.append("taken")
        session.disconnect()
        return said

    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(submit, range(4)))
    for name in range(10):
        won = [each[name] for each in said if each[name] != "taken"]
        assert won == [submissions.cluster.find_storm(f"n{name}")[0]]
    assert len({storm_id.rsplit("-", 2)[1] for storm_id in submissions.cluster.active_storms()}) == 10


def test_a_name_without_a_record_is_told(submissions: Submissions) -> None:
    submissions.cluster.state.set_data("/names/mine", b"mine-7-1")  # as if an operator had removed the record
    with pytest.raises(ClusterError, match="the name 'mine' is that of mine-7-1, of which there is no record"):
        submissions.submit(packed(submissions), "mine")


def test_a_name_and_its_record_come_and_go_together(submissions: Submissions) -> None:
    """At each change of the cluster's state on the way, whoever else looks sees both or none."""
    seen: list[tuple[bool, bool]] = []
    cluster, change = submissions.cluster, submissions.cluster.state._nodes.change

    def changed(*steps: Any, **options: Any) -> Any:
        done = change(*steps, **options)
        seen.append((cluster.storm_of_name("mine") is not None, cluster.active_storms() != []))
        return done

    with mock.patch.object(cluster.state._nodes, "change", changed):
        cluster.remove_storm(submissions.submit(packed(submissions), "mine"))
    assert (True, True) in seen
    assert all(has_name == is_there for has_name, is_there in seen)
    assert seen[-1] == (False, False)


def test_a_topology_that_was_removed_leaves_its_name_and_takes_its_number(submissions: Submissions) -> None:
    storm_id = submissions.submit(packed(submissions), submission="s1")
    submissions.cluster.remove_storm(storm_id)
    again = submissions.submit(packed(submissions), submission="s2")
    assert again.rsplit("-", 2)[1] == "2"
    submissions.cluster.remove_storm(storm_id)  # of the earlier one: the name is not its any more
    assert submissions.cluster.find_storm("mine")[0] == again


def _fail(submissions: Submissions, reason: str) -> None:
    status, (storm_id, _) = WantedStatus("failed", 1.0, reason=reason), submissions.cluster.find_storm("mine")
    submissions.cluster.update_storm(storm_id, lambda base: replace(base, status=status))


def test_a_topology_that_was_put_to_rest_is_woken_by_activate_and_by_an_upgrade(submissions: Submissions) -> None:
    submissions.submit(packed(submissions), "mine")
    _fail(submissions, "its driver died 10 times")
    with pytest.raises(ClusterError, match="does not run: its driver died 10 times"):
        submissions.deactivate("mine")
    base = submissions.activate("mine")
    assert (base.status.kind, base.generation) == ("active", 2)
    _fail(submissions, "again")
    base, _ = submissions.upgrade("mine", packed(submissions, "2"))
    assert (base.status.kind, base.generation) == ("active", 3)


def test_a_topology_that_is_killed_changes_no_more_but_for_its_wait(submissions: Submissions) -> None:
    sha256 = packed(submissions)
    submissions.submit(sha256, "mine")
    since = submissions.kill("mine", 60).status.since_secs
    assert submissions.kill("mine", 5).status == WantedStatus("killed", since, 5.0)
    for change in (
        lambda: submissions.activate("mine"),
        lambda: submissions.deactivate("mine"),
        lambda: submissions.rebalance("mine"),
        lambda: submissions.upgrade("mine", sha256),
    ):
        with pytest.raises(ClusterError, match="is being killed; it cannot be"):
            change()
    with pytest.raises(NameTaken, match="is being killed, and keeps its name until it has ended: within 5 s"):
        submissions.submit(sha256, "mine")


def test_bolts_are_rebalanced_within_their_tasks(submissions: Submissions) -> None:
    submissions.submit(packed(submissions, **BOLTS), "mine")
    base = submissions.rebalance("mine", 5, workers=3, executors={"count": 4})
    assert (base.num_workers, base.component_executors, base.generation) == (3, {"spout": 1, "count": 4}, 1)
    assert base.status.wait_secs == 5.0
    base = submissions.rebalance("mine")
    assert base.generation == 2  # without numbers: a new driver
    for executors, said in (
        ({"cuont": 1}, "has no component 'cuont'; it has count, spout"),
        ({"count": 5}, "has 4 tasks, each of which one executor runs"),
        ({"count": 0}, "from 1 to 10,000"),
    ):
        with pytest.raises(ClusterError, match=said):
            submissions.rebalance("mine", executors=executors)
    with pytest.raises(ClusterError, match="from 1 to 10,000"):
        submissions.rebalance("mine", workers=0)
    assert submissions.cluster.find_storm("mine")[1] == base


def test_of_trident_the_workers_are_rebalanced_and_executors_refused(submissions: Submissions) -> None:
    submissions.submit(packed(submissions), "mine")
    base = submissions.rebalance("mine", workers=4)
    assert (base.num_workers, base.generation) == (4, 2)
    with pytest.raises(ClusterError, match="is part of its declaration \\(parallelism_hint\\)"):
        submissions.rebalance("mine", executors={"lines": 2})


def test_an_upgrade_changes_the_code_once_and_keeps_what_can_be_returned_to(submissions: Submissions) -> None:
    first, second, third = (packed(submissions, text) for text in "123")
    submissions.submit(first, "mine", conf={"max_spout_pending": "2"})
    twice = [submissions.upgrade("mine", second) for _ in range(2)]
    for base, check in twice:
        assert (base.code_hash, base.previous_code_hash, base.generation) == (second, first, 2)
        assert not check.compared
        assert "there is none in" in check.notes[0]
        assert base.conf == {"max_spout_pending": "2"}
    base, _ = submissions.upgrade("mine", third, {})
    assert (base.code_hash, base.previous_code_hash, base.generation, base.conf) == (third, first, 3, {})


def test_what_an_upgrade_replaced_comes_back_with_the_code(submissions: Submissions) -> None:
    components = {"spout": ComponentFacts("spout", 2, 2)}
    after = packed(submissions, "2", **{**BOLTS, "components": components, "target": "other.py:topology"})
    storm_id = submissions.submit(packed(submissions, **BOLTS), "mine", conf={"debug": "true"})
    before = submissions.rebalance("mine", executors={"count": 3})
    submissions.upgrade("mine", after, {})
    submissions.upgrade("mine", packed(submissions, "3", **BOLTS), {"debug": "false"})
    back = submissions.cluster.update_storm(storm_id, rolled_back)
    assert back == replace(before, generation=4)
    assert submissions.cluster.update_storm(storm_id, rolled_back) == back


def test_an_upgrade_of_bolts_keeps_executors_that_were_rebalanced(submissions: Submissions) -> None:
    submissions.submit(packed(submissions, **BOLTS), "mine")
    submissions.rebalance("mine", executors={"count": 3})
    components = {
        "spout": ComponentFacts("spout", 2, 2),
        "count": ComponentFacts("bolt", 1, 2),
        "new": ComponentFacts("bolt", 5, 5),
    }
    base, _ = submissions.upgrade("mine", packed(submissions, "2", **{**BOLTS, "components": components}))
    assert base.component_executors == {"spout": 2, "count": 2, "new": 5}


def test_an_upgrade_that_does_not_fit_the_log_changes_nothing(submissions: Submissions, tmp_path: Path) -> None:
    log = FileLog.open(tmp_path / "logs" / "mine", "mine")
    log.append(TopologyRecord({"count": COUNT, "old": COUNT}, {}))
    submissions.submit(packed(submissions), "mine")
    _, before = submissions.cluster.find_storm("mine")
    wrong = packed(submissions, "2", meaning={"states": {"count": {**COUNT, "by": "Sum"}}, "streams": {}})
    said = r"state 'count': by Count\(.* -> Sum\(.*\n +To do: count again .*\nNothing was changed"
    with pytest.raises(UpgradeRefused, match=said):
        submissions.upgrade("mine", wrong)
    assert submissions.cluster.find_storm("mine")[1] == before
    right = packed(submissions, "3", meaning={"states": {"count": {**COUNT, "streams": ["a", "b"]}}, "streams": {}})
    base, check = submissions.upgrade("mine", right)
    assert (base.code_hash, check.compared) == (right, True)
    assert check.notes == ("state 'old' of the log is no longer declared; it stays as it is",)
    base, check = submissions.upgrade("mine", wrong, {"allow_changed_topology": "true"})
    assert base.code_hash == wrong
    assert "taken as it is" in check.notes[0]
    log.close()


def test_a_log_that_cannot_be_read_is_told_and_refuses_nothing(submissions: Submissions, tmp_path: Path) -> None:
    log = FileLog.open(tmp_path / "logs" / "mine", "mine")
    log.close()
    for segment in (tmp_path / "logs" / "mine").glob("*.log"):
        segment.write_bytes(b"damaged")
    submissions.submit(packed(submissions), "mine")
    base, check = submissions.upgrade("mine", packed(submissions, "2"))
    assert (base.generation, check.compared) == (2, False)
    assert "not compared with the log: " in check.notes[0]
    assert "The driver does that when it starts" in check.notes[0]


def test_advice_for_an_upgrade_does_not_drop_the_settings(submissions: Submissions, tmp_path: Path) -> None:
    with closing(FileLog.open(tmp_path / "logs" / "mine", "mine")) as log:
        log.append(TopologyRecord({"count": {**COUNT, "streams": ["a", "more"]}}, {}))
    submissions.submit(packed(submissions), "mine")
    fewer = packed(submissions, "2", meaning={"states": {"count": COUNT}, "streams": {}})
    settings = r"start once with allow_changed_topology=True \(.*\nNothing .* replaces all settings: give those of"
    with pytest.raises(UpgradeRefused, match=settings):
        submissions.upgrade("mine", fewer)


def test_an_upgrade_to_the_other_kind_is_refused(submissions: Submissions) -> None:
    submissions.submit(packed(submissions), "mine")
    with pytest.raises(UpgradeRefused, match="is of kind trident, and the new code is of kind bolts"):
        submissions.upgrade("mine", packed(submissions, "2", **BOLTS))


def test_code_is_kept_while_a_topology_runs_it_or_may_return_to_it(submissions: Submissions) -> None:
    first, second, unused = (packed(submissions, text) for text in "123")
    submissions.submit(first, "mine")
    submissions.upgrade("mine", second)
    assert submissions.remove_unused_code() == []  # it is new: its submission may be on its way
    os.utime(submissions.code.path(unused), (0, 0))
    assert submissions.remove_unused_code() == [unused]
    assert submissions.code.hashes() == sorted([first, second])


def test_what_is_asked_over_rest_is_done(submissions: Submissions) -> None:
    submissions.submit(packed(submissions), "mine")
    assert submissions.act("mine", "deactivate", {}) == {"name": "mine", "topologyStatus": "inactive", "generation": 1}
    assert submissions.act("mine", "activate", {})["topologyStatus"] == "active"
    assert submissions.act("mine", "rebalance", {"wait_s": 1.0, "workers": 2})["generation"] == 2
    with pytest.raises(ClusterError, match="'dance' is not possible"):
        submissions.act("mine", "dance", {})
    assert submissions.act("mine", "kill", {"wait_s": 1.0})["topologyStatus"] == "killed"
