"""Makes an event happen in the middle of a call: at one of the calls that the code under test makes inside.

A store is most easily wrong when a writer is replaced while it writes, and no wait hits that moment twice. So the call runs
under a profiler that counts the calls inside it, and runs again with the event at one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

_RARE = 64
_PARTS = (0.5, 0.25, 0.75)  # which of the calls of one name: the middle one first


class Point(NamedTuple):
    """A call inside of a call: its number, and what is called there."""

    at: int
    name: str


def points_inside(call: Callable[[], object]) -> list[Point]:
    """Run a call; return the points inside of it, those between its requests to the store first.

    A function that is called once per request is called rarely, and from the beginning of the call to its end. That
    distinguishes it from functions that are called per key, or while the requests are prepared.
    """
    places: dict[str, list[int]] = {}
    calls = count()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        name = _name(frame, event, arg)
        if name:
            places.setdefault(name, []).append(next(calls))

    _profiled(call, note)
    rare = {name: at for name, at in places.items() if len(at) <= _RARE} or places
    spread = sorted(rare, key=lambda name: rare[name][0] - rare[name][-1])
    points = (Point(rare[name][int(len(rare[name]) * part)], name) for part in _PARTS for name in spread)
    return list(dict.fromkeys(points))  # a name that is called once is at all parts


def run_with(event: Callable[[], None], call: Callable[[], object], point: Point, grace_s: float) -> bool:
    """Run a call and, at a point inside of it, an event in another thread; if the point is never reached, after the call.

    The call waits `grace_s` seconds for the event. If the call holds a lock that the event needs, the event happens as soon
    as the lock is free. Returns whether the event ended before the call continued from the point.
    """
    seen, in_place = count(), False
    with ThreadPoolExecutor(1) as thread:
        started: list[Future[None]] = []

        def note(frame: FrameType, kind: str, arg: Any) -> None:
            nonlocal in_place
            if _name(frame, kind, arg) and next(seen) == point.at:
                started.append(thread.submit(event))
                in_place = bool(wait(started, grace_s).done)

        try:
            _profiled(call, note)
        finally:
            (started or [thread.submit(event)])[0].result()
    return in_place


def _name(frame: FrameType, event: str, arg: Any) -> str:
    if event == "call":
        return f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
    return f"{frame.f_code.co_name} calls {getattr(arg, '__name__', '')}" if event == "c_call" else ""


def _profiled(call: Callable[[], object], note: Callable[[FrameType, str, Any], None]) -> None:
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
