"""A TCP proxy that withholds one answer of a server: it comes never, too late, as an error, or not with its connection."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

from tests.harness.proxy import BUFFER, Passing, Pump

How = Literal["never", "late", "unasked", "dropped", "error"]
HOW: tuple[How, ...] = ("never", "late", "unasked", "dropped", "error")


class Withheld(Passing):
    """Passes connections through to `server_port`, and does not answer one request.

    `never`: the server gets the request, the client no answer. `late`: the answer comes when the client asks something else on
    that connection. `unasked`: the server does not get it either. `dropped`: the answer is lost with the connection.
    `error`: the client gets the bytes `error` in place of what the server would say.
    """

    def __init__(self, server_port: int, error: bytes = b"") -> None:
        self._error, self.requests = error, 0
        self._at, self._how = 0, "never"
        super().__init__(server_port)

    def withhold(self, number: int, how: How) -> None:
        """Do not answer the request of this number, counted from now on; 0: answer all."""
        with self._lock:
            self.requests, self._at, self._how = 0, number, how

    def _pumps(self, client: socket.socket, server: socket.socket) -> tuple[Pump, Pump]:
        connection = _Connection(self, client, server)
        return connection.pass_requests, connection.pass_answers

    def take(self) -> How | None:
        """Count a request; say what is to become of its answer, None: it is passed on."""
        with self._lock:
            self.requests += 1
            return self._how if self.requests == self._at else None  # type: ignore[return-value]

    def error_of(self, client: socket.socket) -> None:
        client.sendall(self._error)


class WithheldApart:
    """The same in a process of its own: some clients keep Python's lock while they wait for an answer."""

    def __init__(self, server_port: int, error: bytes = b"") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(server_port), error.hex()],
            cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.port = self._line()

    def withhold(self, number: int, how: How) -> int:
        """As of `Withheld`; return how many requests there were since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number} {how}\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


class _Connection:
    """One connection of a client, and the one to the server behind it."""

    def __init__(self, proxy: Withheld, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._lock = threading.Lock()
        self._how: How | None = None
        self._kept = b""

    def pass_requests(self) -> None:
        while data := self._client.recv(BUFFER):
            with self._lock:
                kept, self._kept = self._kept, b""
                if self._how == "late":
                    self._how = None
                how = self._proxy.take()
                self._how = self._how or how
            if kept:
                self._client.sendall(kept)
            if how == "error":
                self._proxy.error_of(self._client)
                self._how = None
            elif self._how != "unasked":
                self._server.sendall(data)

    def pass_answers(self) -> None:
        while data := self._server.recv(BUFFER):
            with self._lock:
                how = self._how
                if how == "late":
                    self._kept += data
            if how == "dropped":
                return
            if how is None:
                self._client.sendall(data)


def _serve() -> None:
    proxy = Withheld(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))
    told = proxy.port
    while True:
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()
        words = sys.stdin.readline().split()
        if not words:
            return
        told = proxy.requests
        proxy.withhold(int(words[0]), words[1])  # type: ignore[arg-type]


if __name__ == "__main__":
    _serve()
