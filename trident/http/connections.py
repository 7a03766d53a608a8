"""The server's connections: how many there are, how large a request's head is, how long each of them may take.

uvicorn has no bound on them: its `limit_concurrency` looks at whole requests only, its timer at connections that rest, and
the parser, httptools, at nothing. So its protocol is given a clock and a count of bytes, and its server an accept loop
that knows when there are enough.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD_BYTES = 16 << 10
"""The longest head of a request: its first line and headers, or what follows its body."""
MAX_HEADERS = 100
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

    `config`: of uvicorn.
    `timeout_s`: seconds for a request, from its first byte on, until it has come whole and its answer was taken.
    `connections`: how many may be open.
    """

    def __init__(self, config: uvicorn.Config, timeout_s: float, connections: int) -> None:
        super().__init__(config)
        self._timeout_s, self._most = timeout_s, connections
        cause = f"{connections} connections are open, which is the maximum; try again later"
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
        return _Connection(self.config, self.server_state, self.lifespan.state, self._timeout_s)

    def _refuse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            connection.send(self._too_many)
            connection.recv(MAX_HEAD_BYTES)  # what is unread when it is closed makes the kernel drop the answer


class _TooLarge(Exception):
    """Ends the parsing of a request."""


class _Connection(HttpToolsProtocol):
    """One connection. A single timer covers what its client still owes: a head, a whole request, or taking its answer.

    The timer runs from the connection's begin and from the first byte of each request, and rests while nothing is owed;
    uvicorn's own timer closes a connection that rests too long.

    `address`: the client's, without the port.
    `waits_since`: when it began to wait for a request, or for the rest of one.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], timeout_s: float
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._timeout_s, self._head_s = timeout_s, min(HEAD_S, timeout_s)
        self.address, self.waits_since = "", 0.0
        self._due: float | None = None
        self._then = self._late
        self._looks_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # is not moved with each request, but looks at what is due
        self._awaits = ""  # "head" or "body" of a request that has begun
        self._head_bytes = self._headers = 0
        self._unparsed = 0  # bytes that came, but of which no part was whole yet; the parser keeps them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._due is None:  # line ends between requests are no request, but they stop uvicorn's timer
            self._await_head()
        if self._head_bytes + self._unparsed > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._awaits, self._head_bytes, self._headers = "head", 0, 0
        if not self._in_flight():
            self._await_head()
        self.scope["state"]["deadline"] = self.loop.time() + self._timeout_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._headers += 1
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._awaits = "body"
        if not self._in_flight():
            self._set_due(self.scope["state"]["deadline"] - self.loop.time(), self._late)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._awaits, self._unparsed = "", 0
        if not self._in_flight():  # it was answered before it had come whole
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return  # the timer goes on: a client that does not take the answer would keep it open
        self.waits_since = self.loop.time()
        if self._in_flight():
            self._set_due(self._timeout_s, self._late)
        elif self._awaits == "head":
            self._await_head()
        elif not self._awaits:
            self._rest()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; uvicorn calls this where the parser, or one of the callbacks above, has failed."""
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            self._refuse_head()
        else:
            self._refuse(400, "invalid", "this is not an HTTP/1.1 request")

    def _count(self, size: int) -> None:
        self._unparsed -= size
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            raise _TooLarge

    @property
    def is_at_work(self) -> bool:
        """Whether a request has come whole and is not answered yet."""
        return self._in_flight() and not self._awaits

    def give_way(self, refusal: bytes) -> None:
        """Close the connection to make room for another client; a client whose request has begun gets `refusal`."""
        if self._awaits and not self._in_flight():
            self.transport.write(refusal)
            self._set_due(_GRACE_S, self.transport.abort)
            self.transport.close()
        else:
            self.transport.abort()

    def _await_head(self) -> None:
        self.waits_since = self.loop.time()
        self._set_due(self._head_s, self._late)

    def _in_flight(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _rest(self) -> None:
        """Nothing is owed, unless the answer was not taken yet: then the timer goes on."""
        if self.transport.get_write_buffer_size():
            return
        self._due = None
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _late(self) -> None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._in_flight():  # the application answers 504 by itself; only taking that is waited for
            self._set_due(_GRACE_S, self.transport.abort)
        elif self._awaits == "head":
            self._refuse(408, "timeout", f"no complete head of a request within {self._head_s:g} s")
        elif self._awaits == "body" or self.timeout_keep_alive_task is None:
            self.transport.abort()

    def _refuse_head(self) -> None:
        cause = f"the head of a request may have {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers"
        self._refuse(431, "too_large", cause)

    def _refuse(self, status: int, reason: str, cause: str) -> None:
        if self._in_flight():  # the refusal would be taken as the answer to the request before
            self.transport.abort()
            return
        self._set_due(_GRACE_S, self.transport.abort)
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
    return STATUS_LINE[status] + head + header + b"\r\n" + body
