"""Messages between a driver and its workers, and between these; only who has the keys can send one, or read one."""

from __future__ import annotations

import hmac
import logging
import pickle
import socket as sockets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

logger = logging.getLogger(__name__)

_DOMAIN = "trident"
_TRIED_MS = 5000  # how often an idle connection is tried
_DEAD_MS = 15000  # a connection that is silent for so long is closed, and opened again by who opened it
_QUEUED = 64  # messages that wait on their way, at each end
_LINGER_MS = 1000
_AWAY_S, _CONNECT_S = 5.0, 60.0
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(frozen=True)
class Keys:
    """A pair of CURVE keys that all parts of one run of a topology share."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> Keys:
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


Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]  # what makes bytes of a message, and a message of bytes
PICKLES: Codec = partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL), pickle.loads


class PeerAway(Exception):
    """A peer takes no messages."""


class Mailbox:
    """Receives messages in a thread of its own, which calls `take` with each, and `look` about every `look_s` seconds."""

    def __init__(
        self,
        keys: Keys,
        host: str,
        bind: str,
        take: Callable[[Any], None],
        look: Callable[[], None],
        look_s: float,
        away_s: float | None = None,
        codec: Codec = PICKLES,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self._keys, self._take, self._look, self._look_ms = keys, take, look, int(look_s * 1000)
        self._away_s, (self._encode, self._decode) = away_s, codec
        self._context, self._doorkeeper = new_context(keys)
        self._socket = socket = self._context.socket(zmq.PULL)
        socket.rcvhwm = _QUEUED
        self.address = f"{host}:{keys.listen(socket, bind)}"
        self._closing, self._peers = threading.Event(), list[MailboxPeer]()
        self._thread = thread(target=self._receive, name="mailbox", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def peer(self, address: str) -> MailboxPeer:
        peer = MailboxPeer(self._context, self._keys, address, self._encode, self._away_s)
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        """Close the mailbox and all peers, which have a second to send what they have. Not for the thread that receives."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()  # of a mailbox that was never opened
        for peer in self._peers:
            peer.close(_LINGER_MS)
        self._doorkeeper.stop()
        self._context.term()

    def _receive(self) -> None:
        socket, next_look = self._socket, 0.0
        while not self._closing.is_set():
            try:
                if socket.poll(self._look_ms):
                    self._take(self._decode(socket.recv()))
                if monotonic() >= next_look:
                    next_look = monotonic() + self._look_ms / 1000
                    self._look()
            except Exception:  # one message must not end all others
                logger.exception("a message to %s was not understood", self.address)


class MailboxPeer:
    """Sends to one mailbox, in the order of the calls. Its socket belongs to whichever thread holds the lock."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: Keys,
        address: str,
        encode: Callable[[Any], bytes],
        away_s: float | None,
    ) -> None:
        self._lock, self.address, self._encode, self._away_s = threading.Lock(), address, encode, away_s
        self._socket = context.socket(zmq.PUSH)
        self._socket.sndhwm = _QUEUED
        self._events, self.is_connected = self._socket.get_monitor_socket(_EVENTS), False
        self._changed_at, self._limit_s = monotonic(), _CONNECT_S
        keys.connect(self._socket, address)

    def send(self, message: Any, wait_s: float = 0.0) -> None:
        """Send; `PeerAway` if too much waits to be sent and nothing of it is taken within `wait_s` seconds."""
        data = self._encode(message)
        with self._lock:
            try:
                self._socket.sndtimeo = int(wait_s * 1000)
                self._socket.send(data, copy=False)
            except zmq.ZMQError as error:
                raise PeerAway(f"{self.address}: {error}") from error

    def is_lost(self) -> bool:
        """Whether a connection that was there has been away for a while, or has not come for long. For one thread."""
        # A process that has ended is away at once; one that is stopped, or behind a cut, when it has not answered ZeroMQ's own
        # questions for 15 s. One that only keeps Python's lock is not.
        while self._events.poll(0):
            self.is_connected = recv_monitor_message(self._events)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._changed_at, self._limit_s = monotonic(), _AWAY_S if self._away_s is None else self._away_s
        return not self.is_connected and monotonic() - self._changed_at > self._limit_s

    def close(self, linger_ms: int = 0) -> None:
        """Close the connection; what was not sent by then is dropped."""
        with self._lock, suppress(zmq.ZMQError):
            self._socket.disable_monitor()
            self._events.close(0)
            self._socket.close(linger_ms)
