"""A TCP proxy before a server: acts while a request is half sent, while a reply is outstanding, or holds a request back.

The clients do not know of it. Nothing is left to timing: the act runs in the very thread that would have passed the
bytes on, so it is over before anything else happens on that connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal

Point = Literal["half request", "reply", "held request"]
_BUFFER = 1 << 18


class Proxy:
    """Listens on a free port of this machine and passes every connection through to `server_port`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._acting = threading.Lock()
        self._armed: tuple[Point, Callable[[], None]] | None = None
        self._failure: BaseException | None = None
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy-accept", daemon=True)]
        self._threads[0].start()

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

    def close(self) -> None:
        """End all connections and threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            open_sockets = list(self._sockets)
        for each in open_sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            for source, target, points in ((client, server, _REQUESTS), (server, client, _REPLIES)):
                thread = threading.Thread(target=self._pump, args=(source, target, points), name="proxy", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, points: tuple[Point, ...]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BUFFER):
                if not self._pass_on(data, target, points):
                    break
        # Both ways end: a client whose server died must not wait.
        _shut(source)
        _shut(target)
        with self._lock:
            self._sockets -= {source}
        source.close()

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


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
