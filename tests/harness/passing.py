"""A TCP proxy before one server: accepts connections, opens one to the server for each, and runs a thread each way."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

BUFFER = 1 << 18
Pump = Callable[[], None]


class Passing(ABC):
    """Listens on a free port of this machine; what becomes of the bytes is the subclass's."""

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
        """End all connections and threads."""
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
