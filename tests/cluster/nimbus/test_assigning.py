"""Which topology belongs where, in every case of `decide`; and whether a driver is alive, by the clock of Nimbus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trident.cluster.nimbus.assigning import Assign, DriverHealth, Forget, Health, MarkFailed, Picture, RollBack, decide
from trident.cluster.nimbus.nimbus import _MAX_PAUSE_S
from trident.cluster.state.cluster_records import (
    Assignment,
    DriverDeath,
    NodePort,
    StormBase,
    SupervisorInfo,
    WantedStatus,
    WorkerHeartbeat,
)


def slots(seen: Picture) -> dict[str, tuple[str, int]]:
    return {each.storm_id: tuple(each.slot) for each in decide(seen) if isinstance(each, Assign)}  # type: ignore[misc]


def test_new_topologies_are_spread_over_the_machines_in_the_order_in_which_they_came() -> None:
    seen = picture({"late": base(3), "first": base(1), "second": base(2)})
    assert slots(seen) == {"first": ("a", 1), "second": ("b", 1), "late": ("a", 2)}


def test_a_machine_that_runs_much_gets_less() -> None:
    busy = {"x": assignment(("a", 1)), "y": assignment(("a", 2))}
    seen = picture({"x": base(), "y": base(), "new": base(5)}, busy, {"a": supervisor(1, 2, 3, 4), "b": supervisor(1)})
    assert slots(seen) == {"new": ("b", 1)}


def test_a_slot_whose_last_driver_has_not_ended_is_the_last_choice() -> None:
    ending = replace(supervisor(1, 2), used_ports=(1,))
    assert slots(picture({"new": base()}, {}, {"a": ending})) == {"new": ("a", 2)}
    ending = replace(supervisor(1), used_ports=(1,))
    busy = {"x": assignment(("b", 2))}
    seen = picture({"x": base(), "new": base(5)}, busy, {"a": ending, "b": supervisor(2, 3)})
    assert slots(seen) == {"new": ("b", 3)}
    assert slots(picture({"new": base()}, {}, {"a": ending})) == {"new": ("a", 1)}


def test_without_a_free_slot_a_topology_waits() -> None:
    seen = picture({"x": base(), "new": base(5)}, {"x": assignment(("a", 1))}, {"a": supervisor(1)})
    assert decide(seen) == []


def test_nothing_is_moved_while_all_is_well() -> None:
    seen = picture({"x": base(), "y": base()}, {"x": assignment(("a", 1)), "y": assignment(("b", 1))})
    assert decide(seen) == []


def test_a_supervisor_that_is_gone_keeps_drivers_that_beat() -> None:
    assert decide(picture({"x": base()}, {"x": assignment(("gone", 1))})) == []


def test_a_silent_driver_is_moved_to_another_machine() -> None:
    seen = picture({"x": base()}, {"x": assignment(("a", 1))}, health={"x": "stale"})
    assert slots(seen) == {"x": ("b", 1)}


def test_a_silent_driver_is_started_again_in_its_slot_if_there_is_no_other_machine() -> None:
    seen = picture({"x": base()}, {"x": assignment(("a", 1))}, {"a": supervisor(1)}, {"x": "stale"})
    assert slots(seen) == {"x": ("a", 1)}


def test_a_silent_driver_whose_machine_is_gone_stays_where_it_is_until_there_is_another() -> None:
    assert decide(picture({"x": base()}, {"x": assignment(("gone", 1))}, {}, {"x": "stale"})) == []


def test_a_machine_that_goes_before_the_driver_has_started_is_not_waited_for() -> None:
    seen = picture({"x": base()}, {"x": assignment(("gone", 1))}, health={"x": "starting"}, silent=["x"])
    assert slots(seen) == {"x": ("a", 1)}


def test_another_generation_starts_in_the_same_slot() -> None:
    seen = picture({"x": base(generation=2)}, {"x": assignment(("b", 2))})
    assert slots(seen) == {"x": ("b", 2)}


def test_a_driver_that_keeps_dying_is_moved() -> None:
    two = picture({"x": base()}, {"x": assignment(("a", 1))}, deaths={"x": [death("a")] * 2})
    three = picture({"x": base()}, {"x": assignment(("a", 1))}, deaths={"x": [death("a")] * 3})
    assert decide(two) == []
    assert slots(three) == {"x": ("b", 1)}


def test_a_driver_that_keeps_dying_stays_if_there_is_no_other_machine() -> None:
    alone = {"a": supervisor()}
    assert decide(picture({"x": base()}, {"x": assignment(("a", 1))}, alone, deaths={"x": [death("a")] * 3})) == []


def test_deaths_before_the_move_do_not_move_it_again() -> None:
    moved = assignment(("a", 1), start=NOW - 5)
    assert decide(picture({"x": base()}, {"x": moved}, deaths={"x": [death("a", ago=10)] * 3})) == []


def test_a_driver_that_keeps_dying_everywhere_is_put_to_rest_with_its_error() -> None:
    deaths = [death("a")] * 3 + [death("b")] * 3
    found = decide(picture({"x": base()}, {"x": assignment(("b", 1))}, deaths={"x": deaths}))
    assert found == [MarkFailed("x", "its driver has died 6 times, the last time: it broke")]


def test_deaths_of_drivers_that_ran_well_are_not_counted() -> None:
    assert decide(picture({"x": base()}, {"x": assignment(("a", 1))}, deaths={"x": [death("a", ran=61)] * 9})) == []


def test_deaths_long_ago_or_before_it_was_activated_are_not_counted() -> None:
    long_ago = picture({"x": base()}, {"x": assignment(("a", 1))}, deaths={"x": [death("a", ago=1801)] * 9})
    again = base(status=WantedStatus("active", NOW - 5))
    activated = picture({"x": again}, {"x": assignment(("a", 1))}, deaths={"x": [death("a", fatal=True)] * 9})
    assert decide(long_ago) == decide(activated) == []


def test_code_that_cannot_run_is_put_to_rest_at_once_or_rolled_back() -> None:
    deaths = {"x": [death("a", fatal=True)]}
    assert decide(picture({"x": base()}, {"x": assignment(("a", 1))}, deaths=deaths)) == [MarkFailed("x", "it broke")]
    upgraded = base(before="old")
    found = decide(picture({"x": upgraded}, {"x": assignment(("a", 1))}, deaths=deaths))
    assert found == [RollBack("x", "it broke")]


def test_deaths_of_the_code_before_do_not_count_for_the_new_code() -> None:
    seen = picture(
        {"x": base(generation=2)}, {"x": assignment(("a", 1), generation=2)}, deaths={"x": [death("a", fatal=True)]}
    )
    assert decide(seen) == []


def test_a_failed_topology_rests() -> None:
    assert decide(picture({"x": base(status=WantedStatus("failed", 0.0))})) == []


def test_a_failed_topology_that_still_has_its_slot_loses_it() -> None:
    failed = base(status=WantedStatus("failed", 0.0, reason="it broke"))
    assert decide(picture({"x": failed}, {"x": assignment(("a", 1))})) == [MarkFailed("x", "it broke")]


def test_a_killed_topology_is_forgotten_once_its_driver_has_ended() -> None:
    killed = base(status=WantedStatus("killed", NOW - 1, wait_secs=20))
    assert decide(picture({"x": killed}, {"x": assignment(("a", 1))})) == []
    assert decide(picture({"x": killed}, {"x": assignment(("a", 1))}, silent=["x"])) == [Forget("x")]
    assert decide(picture({"x": killed}, {"x": assignment(("a", 1))}, health={"x": "stale"})) == [Forget("x")]
    assert decide(picture({"x": killed})) == [Forget("x")]


def test_a_killed_topology_whose_driver_does_not_end_is_forgotten_half_a_minute_after_its_time() -> None:
    late = base(status=WantedStatus("killed", NOW - 51, wait_secs=20))
    in_time = base(status=WantedStatus("killed", NOW - 49, wait_secs=20))
    assert decide(picture({"x": late}, {"x": assignment(("a", 1))})) == [Forget("x")]
    assert decide(picture({"x": in_time}, {"x": assignment(("a", 1))})) == []


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
    status = st.sampled_from(
        [
            WantedStatus("active", 0.0),
            WantedStatus("inactive", 0.0),
            WantedStatus("killed", 0.0),
            WantedStatus("failed", 0.0),
        ]
    )
    return picture(
        {name: base(number, draw(status), draw(st.integers(1, 2))) for number, name in enumerate(names)},
        assigned,
        {node: supervisor() for node in machines},
        {name: draw(st.sampled_from(["starting", "alive", "stale"])) for name in assigned},
        {name: [death(draw(st.sampled_from(_NODES)))] * draw(st.integers(0, 7)) for name in names},
        [name for name in assigned if draw(st.booleans())],
    )


@given(pictures())
def test_no_two_topologies_ever_get_one_slot_and_every_slot_exists(seen: Picture) -> None:
    after = {name: tuple(each.slot) for name, each in seen.assignments.items()}
    given_now = slots(seen)
    after.update(given_now)
    assert len(set(after.values())) == len(after)
    assert all(node in seen.supervisors and port in seen.supervisors[node].meta for node, port in given_now.values())


@given(pictures())
def test_only_topologies_that_may_run_are_assigned_and_each_at_most_once(seen: Picture) -> None:
    given_now = [each.storm_id for each in decide(seen) if isinstance(each, Assign)]
    assert len(set(given_now)) == len(given_now)
    assert all(seen.bases[name].status.kind in ("active", "inactive") for name in given_now)


NOW = 10_000.0


def base(launched: float = 0.0, status: WantedStatus | None = None, generation: int = 1, before: str = "") -> StormBase:
    return StormBase(
        "name",
        launched,
        status or WantedStatus("active", 0.0),
        1,
        {},
        "trident",
        "m:t",
        "code",
        {},
        generation,
        "",
        before,
    )


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


_START = 7.0


def beat(told: float, start: float = _START) -> WorkerHeartbeat:
    return WorkerHeartbeat(told, 1.0, "x", "host", 1, 1, start, "active", "", {})


class Looks:
    """Looks once a second; times of heartbeats are those of another machine, whose clock is wrong."""

    def __init__(self) -> None:
        self.health, self.now = DriverHealth(timeout_s=5, launch_s=20), 100.0
        self.assignment: Assignment = assignment(("a", 1), start=_START)

    def look(self, told: WorkerHeartbeat | None, seconds: float = 1.0) -> str:
        found = ""
        for _ in range(int(seconds)):
            self.now += 1
            found = self.health.observe(self.now, {"x": self.assignment}, {"x": told})["x"]
        return found


def test_a_driver_is_alive_while_its_heartbeat_changes_whatever_its_clock_says() -> None:
    looks = Looks()
    assert {looks.look(beat(5_000_000.0 - number), 4) for number in range(10)} == {"alive"}


def test_a_heartbeat_that_stays_the_same_is_stale_after_the_timeout() -> None:
    looks = Looks()
    assert looks.look(beat(1.0), 5) == "alive"
    assert looks.look(beat(1.0), 1) == "stale"
    assert looks.look(beat(2.0), 1) == "alive"


def test_a_driver_may_take_longer_to_its_first_heartbeat() -> None:
    looks = Looks()
    assert looks.look(None, 20) == "starting"
    assert looks.look(None, 1) == "stale"


def test_heartbeats_of_the_driver_before_do_not_count() -> None:
    looks = Looks()
    assert looks.look(beat(1.0, start=_START - 1), 20) == "starting"
    assert looks.look(beat(2.0, start=_START - 1), 1) == "stale"


def test_a_new_assignment_begins_again() -> None:
    looks = Looks()
    assert looks.look(beat(1.0), 6) == "stale"
    looks.assignment = assignment(("b", 1), start=_START + 1)
    assert looks.look(beat(1.0), 1) == "starting"


def test_time_in_which_this_process_was_paused_does_not_count() -> None:
    looks = Looks()
    assert looks.look(beat(1.0), 3) == "alive"
    looks.now += 1000
    assert looks.look(beat(1.0), 1) == "alive"
    assert looks.look(beat(1.0), 3) == "stale"


def test_after_forget_every_driver_has_the_whole_timeout_again() -> None:
    looks = Looks()
    assert looks.look(beat(1.0), 5) == "alive"
    looks.health.forget()
    assert looks.look(beat(1.0), 5) == "alive"
    assert looks.look(beat(1.0), 1) == "stale"


def test_a_silent_driver_is_stale_although_rounds_are_as_far_apart_as_they_may_be() -> None:
    looks = Looks()
    found = [looks.look(beat(1.0), 1)]
    for _ in range(2):
        looks.now += _MAX_PAUSE_S
        found.append(looks.look(beat(1.0), 1))
    assert found == ["alive", "stale", "stale"]
