"""The server's connections: how many there are, how large a request's head is, how long each of them may take.

uvicorn's `h11_max_incomplete_event_size` bounds what of a request is not whole. Its `limit_concurrency` looks at whole
requests only and its timer at connections that rest: so its protocol is given a clock, and its server an accept loop that
knows when there are enough.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from trident.http.guard import HEAD_BOUNDS, MAX_HEAD_BYTES, MAX_HEADERS

__all__ = ["HEAD_S", "BoundedServer", "affordable"]

HEAD_S = 5.0
"""Seconds for the head of a request, from the connection's begin or its own first byte on, if a request has no fewer."""

logger = logging.getLogger(__name__)

_GRACE_S = 1.0
_NO_DESCRIPTOR_S = 1.0


def affordable(connections: int) -> int:
    """Return how many connections to hold: the given number, but half of the free file descriptors at most.

    The other half is the topology's, which needs some for its log and its stores in the same process.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return connections
    free = limit - sum(1 for _ in Path("/dev/fd").iterdir())
    return max(1, min(connections, free // 2))


class BoundedServer(uvicorn.Server):
    """A server that answers connections beyond `connections` with 503 and closes them.

    One address has no more than its share of them when others ask: a connection of the address that holds most gives way to
    one of an address that holds fewer, unless all of them are at work on a request that has come whole.

    Parameters
    ----------
    config
        Of uvicorn.
    timeout_s
        Seconds for a request, from its first byte on, until it has come whole and its answer was taken.
    connections
        How many may be open.
    """

    def __init__(self, config: uvicorn.Config, timeout_s: float, connections: int) -> None:
        super().__init__(config)
        self._timeout_s, self._most = timeout_s, connections
        cause = f"{connections} connections are open, which is as many as may be; try again later"
        self._too_many = _refusal(503, "overloaded", cause, b"retry-after: 1\r\n")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept; see `uvicorn.Server`, which would accept without end."""
        await super().startup(sockets=[])
        assert sockets is not None, (
            "the listening socket is made before the thread, so that its errors are the caller's"
        )
        self._accepting = asyncio.get_running_loop().create_task(self._accept(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, then as `uvicorn.Server`."""
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
                if len(self.server_state.connections) < self._most or self._make_room(address[0]):
                    await loop.connect_accepted_socket(self._connection, connection)
                else:
                    self._refuse(connection)
                    await asyncio.sleep(0)  # an accept that need not wait does not let others run
            except OSError as error:  # most often: no descriptor is free; who asks waits in the kernel's queue
                logger.warning("a server cannot accept a connection: %s", error)
                await asyncio.sleep(_NO_DESCRIPTOR_S)

    def _make_room(self, newcomer: str) -> bool:
        """Close a connection of the address that holds most, if that still holds more than the newcomer's will."""
        held: dict[str, list[_Connection]] = {}
        for each in self.server_state.connections:
            if isinstance(each, _Connection) and not each.transport.is_closing():
                held.setdefault(each.address, []).append(each)
        most = max(held.values(), key=len, default=[])
        if len(most) <= len(held.get(newcomer, ())) + 1:
            return False
        waiting = [each for each in most if not each.is_at_work]
        if waiting:
            min(waiting, key=lambda each: each.waits_since).give_way(self._too_many)
        return bool(waiting)

    def _connection(self) -> _Connection:
        return _Connection(self.config, self.server_state, self._timeout_s)

    def _refuse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            connection.send(self._too_many)
            connection.recv(MAX_HEAD_BYTES)  # what is unread when it is closed makes the kernel drop the answer


class _Connection(H11Protocol):
    """One connection. A single timer covers what its client still owes: a head, a whole request, or taking its answer.

    The timer runs from the connection's begin and from the first byte of each request. What is owed is read off the state of
    h11, which knows what has come and bounds what is not whole.

    Attributes
    ----------
    address
        The client's, without the port.
    waits_since
        When it began to wait for a request, or for the rest of one.
    """

    def __init__(self, config: uvicorn.Config, server_state: ServerState, timeout_s: float) -> None:
        super().__init__(config, server_state, {})
        self._timeout_s, self._head_s = timeout_s, min(HEAD_S, timeout_s)
        self.address, self.waits_since = "", 0.0
        self._awaits_head = self._rests = False
        self._due: float | None = None
        self._then = self._late
        self._looks_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # is not moved with each request, but looks at what is due

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self._begun:
            data = data.lstrip(b"\r\n")  # line ends between requests are no request, but whoever sends them owes one
            if data or self._rests:
                self._await_head()
            self._begin()
        if data and not self.transport.is_closing() and self.conn.their_state is not h11.ERROR:
            super().data_received(data)
            self._look_at_request()

    def on_response_complete(self) -> None:
        if self._begun:
            self._begin()
        super().on_response_complete()
        if self.transport.is_closing():
            return  # the timer goes on: a client that does not take the answer would keep it open
        self.waits_since, self._awaits_head = self.loop.time(), False
        if self._in_flight:  # that of the next request
            self._set_due(self._timeout_s, self._late)
        else:
            self._look_at_request()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; uvicorn calls this where h11 has refused it."""
        if not self._refuse_large_head():
            self._refuse(400, "invalid", "this is no HTTP/1.1 request")

    @property
    def is_at_work(self) -> bool:
        """Whether a request has come whole and is not answered yet."""
        return self._in_flight and self.conn.their_state is not h11.SEND_BODY

    def give_way(self, refusal: bytes) -> None:
        """Close the connection for one of another client; a client whose request has begun is told."""
        if self._begun and self.conn.their_state is h11.IDLE:
            self.transport.write(refusal)
            self._set_due(_GRACE_S, self.transport.abort)
            self.transport.close()
        else:
            self.transport.abort()

    @property
    def _in_flight(self) -> bool:
        return self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    @property
    def _begun(self) -> bytes:
        """What has come of a head that is not whole, or of requests behind the one that is being answered."""
        return self.conn.trailing_data[0]

    def _begin(self) -> None:
        """Let the application know until when it has to answer the request that begins now."""
        self.app_state["deadline"] = self.loop.time() + self._timeout_s

    def _await_head(self) -> None:
        if not self._awaits_head:
            self.waits_since = self.loop.time()
        self._awaits_head, self._rests = True, False
        self._set_due(self._head_s, self._late)

    def _look_at_request(self) -> None:
        """See what the client owes now."""
        if self.transport.is_closing() or self.conn.their_state is h11.ERROR:
            return
        if self._in_flight:
            if self._awaits_head:
                self._awaits_head = False
                self._set_due(self.app_state["deadline"] - self.loop.time(), self._late)
        elif self.conn.their_state is h11.IDLE and not self._begun:
            self._rest()
        elif self.conn.their_state is h11.IDLE and not self._refuse_large_head() and not self._awaits_head:
            self._await_head()

    def _rest(self) -> None:
        """Nothing is owed, unless the answer was not taken yet: then the timer goes on."""
        self._rests = True
        if not self.transport.get_write_buffer_size():
            self._set_due(self.config.timeout_keep_alive, self.transport.abort)

    def _late(self) -> None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._in_flight:  # the application answers 504 by itself; only taking that is waited for
            self._set_due(_GRACE_S, self.transport.abort)
        elif self._rests:
            self._rest()
        elif self._begun and self.conn.their_state is h11.IDLE:
            self._refuse(408, "timeout", f"no whole head of a request within {self._head_s:g} s")
        else:
            self.transport.abort()

    def _refuse_large_head(self) -> bool:
        head = self._begun
        if self._in_flight or (len(head) <= MAX_HEAD_BYTES and head.count(b"\n") <= MAX_HEADERS + 1):
            return False
        self._refuse(431, "too_large", HEAD_BOUNDS)
        return True

    def _refuse(self, status: int, reason: str, cause: str) -> None:
        self._set_due(_GRACE_S, self.transport.abort)
        if self._in_flight:  # the refusal would be taken as the answer to the request, which may still come
            self.transport.pause_reading()
            return
        self.transport.write(_refusal(status, reason, cause))
        self.transport.close()

    def _set_due(self, seconds: float, then: Callable[[], None]) -> None:
        self._due, self._then = self.loop.time() + seconds, then
        if self._timer is not None and self._due < self._looks_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._looks_at = self._due
            self._timer = self.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._due > self.loop.time():
            self._set_due(self._due - self.loop.time(), self._then)
        else:
            self._due = None
            self._then()


def _refusal(status: int, reason: str, cause: str, header: bytes = b"") -> bytes:
    """Return an answer of the server itself, before there is a request that the application could answer."""
    problem = {"function": "*", "reason": reason, "step": None, "cause": cause}
    body = json.dumps({"error": problem}).encode()
    length = str(len(body)).encode()
    head = b"content-type: application/json\r\ncontent-length: " + length + b"\r\nconnection: close\r\n"
    return b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode()) + head + header + b"\r\n" + body
