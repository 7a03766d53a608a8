"""The secret of a topology: only who has it may connect to its driver and its workers, or can read what they send.

And where they find each other.
"""

from __future__ import annotations

import hmac
import socket as sockets
from dataclasses import dataclass, field

import zmq
from zmq.auth.thread import ThreadAuthenticator

_DOMAIN = "trident"
_TRIED_MS = 5000  # how often an idle connection is tried
_DEAD_MS = 15000  # a connection that is silent for so long is closed, and opened again by who opened it


@dataclass(frozen=True)
class Keys:
    """A pair of CURVE keys that all parts of one run of a topology share."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> Keys:
        """Return a pair that was never there before."""
        return Keys(*zmq.curve_keypair())

    def listen(self, socket: zmq.Socket[bytes], host: str) -> int:
        """Let a socket accept any peer that has these keys; return its port. Its context must come from `new_context`."""
        self._secure(socket)
        socket.curve_server = True
        socket.zap_domain = _DOMAIN.encode()
        socket.ipv6 = ":" in host
        return socket.bind_to_random_port(f"tcp://{host}")

    def connect(self, socket: zmq.Socket[bytes], address: str) -> None:
        """Connect a socket to `host:port`, where someone with these keys listens."""
        self._secure(socket)
        socket.curve_serverkey = self.public
        socket.ipv6 = address.count(":") > 1
        socket.connect(f"tcp://{address}")

    def callback(self, domain: str, key: bytes) -> bool:
        """Say whether a client may connect: the name is that of ZeroMQ's authenticator."""
        return hmac.compare_digest(key, self.public)

    def _secure(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret
        socket.linger = 0
        socket.heartbeat_ivl, socket.heartbeat_timeout = _TRIED_MS, _DEAD_MS


def new_context(keys: Keys) -> tuple[zmq.Context[zmq.Socket[bytes]], ThreadAuthenticator]:
    """Return a context whose listening sockets refuse peers with other keys, and the authenticator, which is to be stopped."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    doorkeeper = ThreadAuthenticator(context)
    doorkeeper.start()
    doorkeeper.configure_curve_callback(_DOMAIN, keys)
    return context, doorkeeper


def own_address(driver: str, wait_s: float) -> str:
    """Return the address of this machine in the network in which it reaches the driver, for a listening socket."""
    host, _, port = driver.rpartition(":")
    with sockets.create_connection((host.strip("[]"), int(port)), wait_s) as connection:
        own = str(connection.getsockname()[0])
    return f"[{own}]" if ":" in own else own
