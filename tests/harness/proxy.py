"""TCP proxies before one server: `Passing`, of which subclasses say what becomes of the bytes; `Proxy` acts while a request is
half sent, while a reply is outstanding, or holds a request back.

The clients do not know of it. Nothing is left to timing: the act runs in the very thread that would have passed the
bytes on, so it is over before anything else happens on that connection.
"""

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal

BUFFER = 1 << 18
Pump = Callable[[], None]
Point = Literal["half request", "reply", "held request"]


class Passing(ABC):
    """Listens on a free port of this machine, opens a connection to the server for each, and runs a thread each way."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @abstractmethod
    def _pumps(self, client: socket.socket, server: socket.socket) -> tuple[Pump, Pump]:
        """Return what passes on the bytes of a connection: those of the client, and those of the server."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
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
            for source, pump in zip((client, server), self._pumps(client, server), strict=True):
                self._run(partial(self._pass, pump, source, server if source is client else client))

    def _pass(self, pump: Pump, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            pump()
        for each in (source, target):  # both ways end: a client whose server died must not wait
            _shut(each)
        with self._lock:
            self._sockets -= {source}
        source.close()

    def _run(self, what: Pump) -> None:
        thread = threading.Thread(target=what, name=type(self).__name__.lower(), daemon=True)
        self._threads.append(thread)
        thread.start()


def _shut(each: socket.socket) -> None:
    """End a connection, whichever threads use it."""
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


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
