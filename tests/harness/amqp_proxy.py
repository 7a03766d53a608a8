"""A proxy before a RabbitMQ: from a chosen frame on, nothing but heartbeats passes, or the connection ends, or an error comes.

It knows where one frame ends and the next begins, and which method it is, so that a broker is silent that still shows signs of
life. Nothing is left to timing: a test waits until a rule was met.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import pika.frame

from tests.harness.passing import BUFFER, Passing, Pump, shut

__all__ = ["AmqpProxy", "How", "Rule"]

How = Literal["never", "late", "cut", "error"]
_WAIT_S = 30.0
_ERROR = pika.frame.Method(0, pika.spec.Connection.Close(541, "INTERNAL_ERROR", 0, 0)).marshal()


class Rule:
    """What happens at one kind of frame while it is in force.

    `never`: neither this frame nor what follows it in this direction passes, but heartbeats do; `late`: it all passes once the
    rule is lifted; `cut`: the connection ends in its place; `error`: the client gets an internal error of the broker instead.

    Parameters
    ----------
    method
        The method that the frame has, such as `Basic.Deliver`.
    is_client
        Whether it is one of the client's.
    """

    def __init__(self, how: How, method: str, is_client: bool) -> None:
        self.how, self.method, self.is_client = how, method, is_client
        self.met = threading.Event()
        self._lock = threading.Lock()
        self._is_lifted = False
        self._held: list[Callable[[], None]] = []

    def hold(self, send: Callable[[], None]) -> None:
        """Have a frame sent when the rule is lifted."""
        with self._lock:
            if self._is_lifted:
                send()
            else:
                self._held.append(send)

    def lift(self) -> None:
        """Send what was held."""
        with self._lock:
            self._is_lifted = True
            for send in self._held:
                with contextlib.suppress(OSError):  # the client did not wait
                    send()

    def wait(self) -> None:
        """Wait until a frame met it."""
        assert self.met.wait(_WAIT_S), f"no {self.method} came"


class AmqpProxy(Passing):
    """Passes connections through to a RabbitMQ."""

    _rule: Rule | None = None

    @contextmanager
    def rule(self, how: How, method: str, is_client: bool = False) -> Iterator[Rule]:
        """Have a rule in force."""
        made = self._rule = Rule(how, method, is_client)
        try:
            yield made
        finally:
            self.lift(made)

    def lift(self, rule: Rule) -> None:
        """Let frames pass from now on, other than on connections that are silent for ever."""
        self._rule = None
        rule.lift()

    def cut(self) -> None:
        """End all connections that are open now."""
        with self._lock:
            for each in self._sockets:
                shut(each)

    def rule_for(self, method: str, is_client: bool) -> Rule | None:
        """Return the rule that a frame meets."""
        rule = self._rule
        return rule if rule is not None and (rule.method, rule.is_client) == (method, is_client) else None

    def _pumps(self, client: socket.socket, server: socket.socket) -> tuple[Pump, Pump]:
        return _Way(self, client, server, is_client=True).run, _Way(self, server, client, is_client=False).run


class _Way:
    """What one side of a connection sends to the other."""

    def __init__(self, proxy: AmqpProxy, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        self._proxy, self._source, self._target, self._is_client = proxy, source, target, is_client
        self._rule: Rule | None = None  # that was met on this way
        self._lock = threading.Lock()

    def run(self) -> None:
        data = b""
        while more := self._source.recv(BUFFER):
            data += more
            while (found := pika.frame.decode_frame(data))[1] is not None:
                size, frame = found
                if not self._pass_on(frame, data[:size]):
                    return
                data = data[size:]

    def _pass_on(self, frame: Any, data: bytes) -> bool:
        """Do with a frame what the rule says; whether the connection goes on."""
        if self._rule is None and isinstance(frame, pika.frame.Method):
            self._rule = self._proxy.rule_for(frame.method.NAME, self._is_client)
        rule = self._rule
        if rule is None or isinstance(frame, pika.frame.Heartbeat):
            self._send(data)
            return True
        if rule.how == "late":
            rule.hold(partial(self._send, data))
        elif rule.how == "error":
            (self._source if self._is_client else self._target).sendall(_ERROR)
        rule.met.set()
        return rule.how in ("never", "late")

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._target.sendall(data)
