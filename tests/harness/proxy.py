"""A TCP proxy before a server: acts while a request is half sent, while a reply is outstanding, or holds a request back.

The clients do not know of it. Nothing is left to timing: the act runs in the very thread that would have passed the
bytes on, so it is over before anything else happens on that connection.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Literal

from tests.harness.passing import BUFFER, Passing, Pump

Point = Literal["half request", "reply", "held request"]


class Proxy(Passing):
    """Passes every connection through to `server_port`."""

    def __init__(self, server_port: int) -> None:
        self._acting = threading.Lock()
        self._armed: tuple[Point, Callable[[], None]] | None = None
        self._failure: BaseException | None = None
        super().__init__(server_port)

    def arm(self, point: Point, act: Callable[[], None]) -> None:
        """Run `act` once, at the next request or reply on any connection.

        `half request`: after half of the bytes went on; `reply`: before the bytes go back, which are then dropped with the
        connection; `held request`: before any byte goes on, and then all of them do.
        """
        with self._lock:
            self._armed = point, act

    def disarm(self) -> bool:
        """Return whether the proxy was still waiting to act; else wait until it has, and raise what its act raised."""
        with self._lock:
            waiting, self._armed = self._armed is not None, None
        with self._acting:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise AssertionError("what was to happen on the wire went wrong") from failure
        return waiting

    def _pumps(self, client: socket.socket, server: socket.socket) -> tuple[Pump, Pump]:
        return partial(self._pump, client, server, _REQUESTS), partial(self._pump, server, client, _REPLIES)

    def _pump(self, source: socket.socket, target: socket.socket, points: tuple[Point, ...]) -> None:
        while data := source.recv(BUFFER):
            if not self._pass_on(data, target, points):
                return

    def _pass_on(self, data: bytes, target: socket.socket, points: tuple[Point, ...]) -> bool:
        armed = self._take(points)
        if armed is None:
            target.sendall(data)
            return True
        point, act = armed
        try:
            if point == "half request":
                target.sendall(data[: len(data) // 2])
            act()
            if point == "held request":
                target.sendall(data)
        except BaseException as failure:  # noqa: BLE001  this thread is nobody's: `disarm` raises it
            self._failure = failure
        finally:
            self._acting.release()
        return point == "held request"

    def _take(self, points: tuple[Point, ...]) -> tuple[Point, Callable[[], None]] | None:
        with self._lock:
            armed = self._armed
            if armed is None or armed[0] not in points:
                return None
            self._armed = None
            self._acting.acquire()  # here, so that `disarm` either finds it armed or waits
            return armed


_REQUESTS: tuple[Point, ...] = ("half request", "held request")
_REPLIES: tuple[Point, ...] = ("reply",)
