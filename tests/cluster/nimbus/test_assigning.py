"""Which topology belongs where, in every case of `decide`; and that it is carried out on the record that it was decided on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.cluster.assigning import Assign, DriverHealth, Forget, Health, MarkFailed, Picture, RollBack, decide
from trident.cluster.driver_orders import as_proved
from trident.cluster.nimbus import _MAX_PAUSE_S, Nimbus
from trident.cluster.submissions import rebalance
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
    bases: Mapping[str, StormBase],
    assignments: Mapping[str, Assignment] | None = None,
    supervisors: Mapping[str, SupervisorInfo] | None = None,
    health: Mapping[str, Health] | None = None,
    deaths: Mapping[str, Sequence[DriverDeath]] | None = None,
    silent: Sequence[str] = (),
) -> Picture:
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


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
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
        (
            picture(RUNS, {"x": IDLE_A}, deaths={"x": [death("a", ago=3600, fatal=True)]}),
            {"x": MarkFailed("x", "it broke")},
        ),
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
    ],
)  # fmt: skip
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
        is_told(*((5_000_000.0 - number, 4) for number in range(10))), ["alive"] * 10,
    ),
    "a heartbeat that stays the same is stale after the timeout": (
        is_told((1.0, 5), (1.0, 1), (2.0, 1)), ["alive", "stale", "alive"],
    ),
    "it may take longer to its first heartbeat": ([(None, 20, _START), (None, 1, _START)], ["starting", "stale"]),
    "heartbeats of the driver before do not count": (
        is_told((1.0, 20), (2.0, 1), start=_START - 1), ["starting", "stale"],
    ),
    "a new assignment begins again": ([*is_told((1.0, 6)), "assigned", *is_told((1.0, 1))], ["stale", "starting"]),
    "time in which this process was paused does not count": (
        [*is_told((1.0, 3)), 1000.0, *is_told((1.0, 1), (1.0, 3))], ["alive", "alive", "stale"],
    ),
    "after it was forgotten it has the whole timeout again": (
        [*is_told((1.0, 5)), "forgotten", *is_told((1.0, 5), (1.0, 1))], ["alive", "alive", "stale"],
    ),
    "it is stale although rounds are as far apart as they may be": (
        [*is_told((1.0, 1)), _MAX_PAUSE_S, *is_told((1.0, 1)), _MAX_PAUSE_S, *is_told((1.0, 1))],
        ["alive", "stale", "stale"],
    ),
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
    base = nimbus.cluster.storm_base(_ID)
    assert base is not None
    assert (base.code_hash, base.generation, base.status.kind) == ("old", 3, "active")
    nimbus.cluster.report_death(_ID, death_of(base))
    nimbus._lead()
    base = nimbus.cluster.storm_base(_ID)
    assert base is not None
    assert (base.status.kind, base.status.reason) == ("failed", "it cannot run")
