"""A proxy in front of Nimbus that lets a request through and loses its answer."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

from trident.cluster.client import leader_url
from trident.cluster.state.storm_cluster_state import LEADER, StormClusterState

__all__ = ["LosingProxy"]


class LosingProxy:
    """Stands for the leader in the cluster's state; loses the first answer to a request of one method.

    The real leader's record is there again when the block ends. `meanwhile` is called before the client hears of the loss.
    """

    def __init__(self, cluster: StormClusterState, method: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._state, self._method, self.lost = cluster.state, method.encode(), 0
        self._meanwhile = meanwhile
        self._before = self._state.get_data(LEADER)
        target = urlsplit(leader_url(cluster))
        self._target = (str(target.hostname), int(target.port or 0))
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._set({**json.loads(self._before or b"{}"), "url": url})
        return self

    def __exit__(self, *raised: object) -> None:
        self._set(json.loads(self._before or b"{}"))
        self._server.shutdown()
        self._server.server_close()

    def _set(self, about: dict[str, object]) -> None:
        self._state.set_ephemeral_node(LEADER, json.dumps(about).encode())

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(self._target) as server, contextlib.suppress(OSError):
            lose = threading.Event()
            back = threading.Thread(target=self._back, args=(server, client, lose), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                if self.lost == 0 and data.startswith(self._method + b" "):
                    self.lost += 1
                    lose.set()
                server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket, lose: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if lose.is_set():
                    self._meanwhile()
                    client.shutdown(socket.SHUT_RDWR)  # Nimbus has answered: it has done what was asked
                    return
                client.sendall(data)
