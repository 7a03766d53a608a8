"""Which topology belongs where, and how drivers do: functions of what the cluster knows, without a thread or a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trident.cluster_state.cluster_records import (
    Assignment,
    DriverDeath,
    NodePort,
    StormBase,
    SupervisorInfo,
    WorkerHeartbeat,
)

_YOUNG_S = 60.0  # a driver that ran longer than this has died for a new reason
_MOVED_AFTER = 3
_DEATHS_WINDOW_S = 1800.0
_END_GRACE_S = 30.0
# If rounds are further apart, this process was paused, or could not read: then that time does not count. Longer than the
# longest pause between rounds.
_GAP_S = 10.0


class Assign(NamedTuple):
    """Let a topology run in this slot from now on; `why` is for the log."""

    storm_id: str
    slot: NodePort
    why: str


class MarkFailed(NamedTuple):
    """Take a topology out of its slot: it cannot run."""

    storm_id: str
    reason: str


class RollBack(NamedTuple):
    """Go back to the code before the last upgrade, because the new code cannot run."""

    storm_id: str
    reason: str


class Forget(NamedTuple):
    """A killed topology has ended."""

    storm_id: str


Decision = Assign | MarkFailed | RollBack | Forget


@dataclass(frozen=True)
class Picture:
    """What is known in one round."""

    now_secs: float  # seconds since 1970
    bases: Mapping[str, StormBase]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    health: Mapping[str, Health]
    beating: Mapping[str, bool]  # whether there is a heartbeat of the assignment
    deaths: Mapping[str, Sequence[DriverDeath]]
    max_deaths: int  # a topology with so many deaths in half an hour, none after a minute of work, is marked as failed


def decide(picture: Picture) -> list[Decision]:
    """Return what is to be done now, topologies that were submitted first, first."""
    slots = _Slots(picture)
    in_order = sorted(picture.bases.items(), key=lambda item: (item[1].launch_time_secs, item[0]))
    return [each for storm_id, base in in_order for each in _decide(picture, slots, storm_id, base)]


def _decide(picture: Picture, slots: _Slots, storm_id: str, base: StormBase) -> Iterator[Decision]:
    assignment = picture.assignments.get(storm_id)
    if base.status.kind == "killed":
        # A driver that beats on and does not end must not keep the name for ever.
        late = picture.now_secs > base.status.since_secs + base.status.wait_secs + _END_GRACE_S
        silent = not picture.beating.get(storm_id) or picture.health.get(storm_id) == "stale"
        if assignment is None or silent or late:
            yield Forget(storm_id)
        return
    if base.status.kind == "failed":
        if assignment is not None:  # a Nimbus died after it had noted the end
            yield MarkFailed(storm_id, base.status.reason)
        return
    # A verdict before a move: what cannot run here runs nowhere else.
    deaths = _recent_deaths(picture, storm_id, base)
    if (verdict := _verdict(storm_id, base, deaths, picture.max_deaths)) is not None:
        yield verdict
        return
    move = _move(picture, storm_id, base, assignment, deaths)
    if move is not None and (slot := _slot_for(slots, assignment, move)) is not None:
        # So that the next topology of this very round does not get it too.
        slots.take(slot)
        yield Assign(storm_id, slot, move.why)


def _recent_deaths(picture: Picture, storm_id: str, base: StormBase) -> list[DriverDeath]:
    since = max(base.status.since_secs, picture.now_secs - _DEATHS_WINDOW_S)
    ahead = {node: max(0.0, info.time_secs - picture.now_secs) for node, info in picture.supervisors.items()}

    def died_at(death: DriverDeath) -> float:
        # The clock of its machine may be ahead, as its supervisor shows. Or behind: it died no earlier than its assignment, by
        # the clock of Nimbus, and its run.
        return max(death.time_secs - ahead.get(death.node, 0.0), death.start_time_secs + death.ran_secs)

    of_it = (each for each in picture.deaths.get(storm_id, ()) if each.generation == base.generation)
    return [each for each in of_it if died_at(each) >= since]


def _verdict(storm_id: str, base: StormBase, deaths: Sequence[DriverDeath], max_deaths: int) -> Decision | None:
    fatal = [each for each in deaths if each.fatal]
    young = [each for each in deaths if each.ran_secs < _YOUNG_S]
    if not fatal and len(young) < max_deaths:
        return None
    reason = fatal[-1].reason if fatal else f"its driver has died {len(young)} times, the last time: {young[-1].reason}"
    return RollBack(storm_id, reason) if base.previous_code_hash else MarkFailed(storm_id, reason)


class _Move(NamedTuple):
    """Why a topology needs another assignment, and whether its old slot will do: first, if there is no other, or never."""

    why: str
    old_slot: Literal["first", "last", "never"]


def _move(
    picture: Picture, storm_id: str, base: StormBase, assignment: Assignment | None, deaths: Sequence[DriverDeath]
) -> _Move | None:
    if assignment is None:
        return _Move("it is new", "never")
    if assignment.generation != base.generation:
        return _Move("it was changed", "first")  # its code, and Spark's files, are there
    node = assignment.slot.node
    since = assignment.start_time_secs
    here = [each for each in deaths if each.start_time_secs == since and each.ran_secs < _YOUNG_S]
    if len(here) >= _MOVED_AFTER:
        return _Move(f"its driver has died {len(here)} times on {assignment.machine}", "never")
    if picture.health.get(storm_id) == "stale":
        gone = "" if node in picture.supervisors else "; the supervisor is gone"
        # In its old slot the supervisor ends what is there, and starts it again.
        return _Move(f"its driver on {assignment.machine} has sent no heartbeat{gone}", "last")
    if node not in picture.supervisors and not picture.beating.get(storm_id):
        return _Move(f"the supervisor of {assignment.machine} went before the driver had started", "never")
    return None


def _slot_for(slots: _Slots, assignment: Assignment | None, move: _Move) -> NodePort | None:
    if assignment is None:
        return slots.freest()
    old = assignment.slot if assignment.slot.node in slots.free and move.old_slot != "never" else None
    if move.old_slot == "first" and old is not None:
        return old
    # What goes wrong may be the machine's fault, so its old slot is the last one.
    return slots.freest(without=assignment.slot.node) or old


class _Slots:
    """The slots that are free: `free` has the ports of each supervisor that is there."""

    def __init__(self, picture: Picture) -> None:
        taken = {each.slot for each in picture.assignments.values()}
        known = picture.supervisors.items()
        # Where an earlier driver has not ended yet, which may take all of its grace.
        self._ending = {NodePort(node, port) for node, info in known for port in info.used_ports} - taken
        self.free = {
            node: sorted(
                (slot.port for port in info.meta if (slot := NodePort(node, port)) not in taken),
                key=lambda port: (port in info.used_ports, port),
            )
            for node, info in known
        }
        self._used = {node: len(picture.supervisors[node].meta) - len(free) for node, free in self.free.items()}

    def freest(self, without: str | None = None) -> NodePort | None:
        """Return a slot of the supervisor that runs fewest drivers; None if there is none."""
        able = [node for node, free in self.free.items() if free and node != without]
        if not able:
            return None
        first = {node: NodePort(node, self.free[node][0]) for node in able}
        # Where the last driver is still ending it would wait; by name at last: the same picture gives the same slot.
        node = min(able, key=lambda each: (first[each] in self._ending, self._used[each], -len(self.free[each]), each))
        return first[node]

    def take(self, slot: NodePort) -> None:
        if slot.port in self.free.get(slot.node, ()):
            self.free[slot.node].remove(slot.port)
            self._used[slot.node] += 1


Health = Literal["starting", "alive", "stale"]
"""`starting`: no heartbeat yet, and it is not late. `stale`: no new heartbeat within the timeout."""


class _Seen(NamedTuple):
    """The assignment that is watched, its last heartbeat, and when that, or the assignment, was first seen."""

    start_time_secs: float
    beat_secs: float | None
    at: float


class DriverHealth:
    """Notes when each heartbeat changed: without one for `timeout_s`, or `launch_s` to the first, a driver is stale."""

    def __init__(self, timeout_s: float, launch_s: float) -> None:
        self._timeout_s, self._launch_s = timeout_s, launch_s
        self._seen: dict[str, _Seen] = {}
        self._observed: float | None = None

    def observe(
        self, now: float, assignments: Mapping[str, Assignment], beats: Mapping[str, WorkerHeartbeat | None]
    ) -> dict[str, Health]:
        """Take in one round and say how each assigned topology's driver does. `now` is monotonic."""
        if self._observed is not None and now - self._observed > _GAP_S:
            late = now - self._observed
            self._seen = {name: seen._replace(at=seen.at + late) for name, seen in self._seen.items()}
        self._observed = now
        self._seen = {name: self._next(now, name, each, beats.get(name)) for name, each in assignments.items()}
        return {name: self._health(now, seen) for name, seen in self._seen.items()}

    def forget(self) -> None:
        # What was seen before is too old to judge by.
        self._seen, self._observed = {}, None

    def _next(self, now: float, name: str, assignment: Assignment, beat: WorkerHeartbeat | None) -> _Seen:
        start = assignment.start_time_secs
        beat_secs = beat.time_secs if beat is not None and beat.start_time_secs == start else None
        before = self._seen.get(name)
        if before is None or before.start_time_secs != start or beat_secs not in (None, before.beat_secs):
            return _Seen(start, beat_secs, now)
        return before

    def _health(self, now: float, seen: _Seen) -> Health:
        silent = now - seen.at
        if seen.beat_secs is None:
            return "starting" if silent < self._launch_s else "stale"
        return "alive" if silent < self._timeout_s else "stale"
