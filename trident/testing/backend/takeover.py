"""Makes an event happen in the middle of a call: at one of the calls that the code under test makes inside.

A store is most easily wrong when a writer is replaced while it writes, and no wait hits that moment twice. So the call runs
under a profiler that counts the calls inside it, and runs again with the event at one of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
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


class Interruption:
    """Runs a call and, at a point inside of it, an event in another thread.

    The call waits `grace_s` seconds for the event. If the call holds a lock that the event needs, the event happens as soon
    as the lock is free.

    `in_place`: whether the event ended before the call continued from the point.
    """

    def __init__(self, event: Callable[[], None], point: Point, grace_s: float) -> None:
        self.in_place = False
        self._point, self._seen, self._grace_s = point.at, 0, grace_s
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(event,), daemon=True)

    def during(self, call: Callable[[], object]) -> None:
        """Run the call with the event inside; if the point is never reached, the event comes after the call."""
        try:
            _profiled(call, self._note)
        finally:
            self._start()
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        if not _name(frame, event, arg):
            return
        self._seen += 1
        if self._seen == self._point + 1:
            self._start()
            self._thread.join(self._grace_s)
            self.in_place = not self._thread.is_alive()

    def _start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _run(self, event: Callable[[], None]) -> None:
        try:
            event()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error


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
