"""Whether a driver is alive, by the clock of the Nimbus that looks."""

from __future__ import annotations

from tests.cluster.nimbus.pictures import assignment
from trident.cluster.nimbus.assigning import DriverHealth
from trident.cluster.nimbus.nimbus import _MAX_PAUSE_S
from trident.cluster.state.cluster_records import Assignment, WorkerHeartbeat

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
