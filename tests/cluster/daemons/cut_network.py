"""A network that can be cut: while it is, bytes wait on the way, and arrive when it is whole again."""

from __future__ import annotations

import socket
import threading

from tests.harness.proxy import Point, Proxy

__all__ = ["CutNetwork"]


class CutNetwork(Proxy):
    """What one machine reaches a server through. Connections stay open while it is cut, as with a switch that is dark."""

    def __init__(self, server_port: int) -> None:
        self._whole = threading.Event()
        self._whole.set()
        super().__init__(server_port)

    def cut(self) -> None:
        """Hold back every byte from now on."""
        self._whole.clear()

    def heal(self) -> None:
        """Let what was held back arrive."""
        self._whole.set()

    def close(self) -> None:
        """End all connections and threads."""
        self._whole.set()
        super().close()

    def _pass_on(self, data: bytes, target: socket.socket, points: tuple[Point, ...]) -> bool:
        self._whole.wait()
        return super()._pass_on(data, target, points)
