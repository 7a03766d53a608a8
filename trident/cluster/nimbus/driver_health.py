"""How drivers do, from their heartbeats: by this machine's clock, because those of other machines may be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from trident.cluster.state.beat_records import WorkerHeartbeat
from trident.cluster.state.cluster_records import Assignment

__all__ = ["DriverHealth", "Health"]

Health = Literal["starting", "alive", "stale"]
"""`starting`: no heartbeat yet, and it is not late. `stale`: no new heartbeat within the timeout."""


class _Seen(NamedTuple):
    """The assignment that is watched, its last heartbeat, and when that, or the assignment, was first seen."""

    start_time_secs: float
    beat_secs: float | None
    at: float


class DriverHealth:
    """Notes when each heartbeat changed.

    Parameters
    ----------
    timeout_s
        A driver without a new heartbeat for this long is stale.
    launch_s
        How long it may take to the first one.
    gap_s
        If rounds are further apart than this, this process was paused, or could not read: then that time does not count.
        Longer than the longest pause between rounds.
    """

    def __init__(self, timeout_s: float, launch_s: float, gap_s: float = 10.0) -> None:
        self._timeout_s, self._launch_s, self._gap_s = timeout_s, launch_s, gap_s
        self._seen: dict[str, _Seen] = {}
        self._observed: float | None = None

    def observe(
        self, now: float, assignments: Mapping[str, Assignment], beats: Mapping[str, WorkerHeartbeat | None]
    ) -> dict[str, Health]:
        """Take in one round and say how each assigned topology's driver does. `now` is monotonic."""
        if self._observed is not None and now - self._observed > self._gap_s:
            late = now - self._observed
            self._seen = {name: seen._replace(at=seen.at + late) for name, seen in self._seen.items()}
        self._observed = now
        self._seen = {name: self._next(now, name, each, beats.get(name)) for name, each in assignments.items()}
        return {name: self._health(now, seen) for name, seen in self._seen.items()}

    def forget(self) -> None:
        """Begin again: what was seen before is too old to judge by."""
        self._seen, self._observed = {}, None

    def _next(self, now: float, name: str, assignment: Assignment, beat: WorkerHeartbeat | None) -> _Seen:
        start = assignment.start_time_secs
        told = beat.time_secs if beat is not None and beat.start_time_secs == start else None
        before = self._seen.get(name)
        if before is None or before.start_time_secs != start or (told is not None and told != before.beat_secs):
            return _Seen(start, told, now)
        return before

    def _health(self, now: float, seen: _Seen) -> Health:
        silent = now - seen.at
        if seen.beat_secs is None:
            return "starting" if silent < self._launch_s else "stale"
        return "alive" if silent < self._timeout_s else "stale"
