"""A proxy before the brokers of a Kafka: chosen requests are answered late, never, with an error, or by another broker.

It knows where one request ends and the next begins, and which one it is: each has its length, the number of its kind (its API
key), its version and its own number in front. What brokers say of their addresses is replaced by those of the proxy, so that
a client stays behind it. Nothing is left to timing: a test waits until a rule was met.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tests.harness.kafka_servers import KafkaCluster
from tests.harness.proxy import Passing, Pump

FETCH, LIST_OFFSETS, METADATA, COMMIT, OFFSETS_OF_GROUP, COORDINATOR, EPOCH_END, SETTINGS = 1, 2, 3, 8, 9, 10, 23, 32
"""The API keys of requests."""

How = Literal["never", "late", "cut", "error", "other broker"]
_HOST = b"127.0.0.1"
_WAIT_S = 30.0


class Rule:
    """What happens to requests of some kinds while it is in force.

    `never`: no answer; `late`: it goes on once the rule is lifted; `cut`: the connection ends in place of an answer; `error`:
    the broker is asked for a name that it does not know, and its answer given; `other broker`: another one answers.
    """

    def __init__(self, how: How, keys: set[int], only: Callable[[bytes], bool], names: tuple[bytes, ...]) -> None:
        self.how, self.keys, self.only, self.names = how, keys, only, names
        self.met, self.lifted = threading.Event(), threading.Event()

    def wait(self) -> None:
        assert self.met.wait(_WAIT_S), f"no request of the kinds {self.keys} came"

    def changed(self, frame: bytes, back: bool = False) -> bytes:
        """Return a request with names that no broker knows, or its answer with the right ones."""
        for name in self.names:
            wrong = b"x" * len(name)
            frame = frame.replace(wrong, name) if back else frame.replace(name, wrong)
        return frame


def asks_for_time(frame: bytes, ms: int) -> bool:
    """Whether a request for offsets asks for the records from a time on."""
    return struct.pack(">q", ms) in frame


class KafkaProxy:
    """One door for each broker."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._rules: list[Rule] = []
        self._brokers = [broker.port for broker in cluster.brokers]
        self._doors = [_Door(self, at) for at in range(len(self._brokers))]

    @property
    def bootstrap(self) -> str:
        """What a client is given as `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{door.port}" for door in self._doors)

    @contextmanager
    def rule(
        self, how: How, *keys: int, only: Callable[[bytes], bool] = lambda frame: True, names: tuple[bytes, ...] = ()
    ) -> Iterator[Rule]:
        """Have a rule in force; `only` says of a request whether it is meant, `names` (and ids) are wrong for `error`."""
        made = Rule(how, set(keys), only, names)
        self._rules.append(made)
        try:
            yield made
        finally:
            self.lift(made)

    def lift(self, rule: Rule) -> None:
        if rule in self._rules:
            self._rules.remove(rule)
        rule.lifted.set()

    def close(self) -> None:
        for door in self._doors:
            door.close()

    def _rule_for(self, key: int, frame: bytes) -> Rule | None:
        return next((each for each in self._rules if key in each.keys and each.only(frame)), None)

    def _here(self, frame: bytes) -> bytes:
        """Return an answer in which the brokers are where the proxy listens."""
        for broker, door in zip(self._brokers, self._doors, strict=True):
            frame = frame.replace(_HOST + struct.pack(">i", broker), _HOST + struct.pack(">i", door.port))
        return frame


class _Door(Passing):
    """Listens before one broker."""

    def __init__(self, proxy: KafkaProxy, at: int) -> None:
        self._proxy, self._at = proxy, at
        super().__init__(proxy._brokers[at])

    def _pumps(self, client: socket.socket, server: socket.socket) -> tuple[Pump, Pump]:
        connection = _Connection(self._proxy, self._at, client, server)
        return connection.ask, connection.answer


class _Connection:
    """A client's connection to one broker."""

    def __init__(self, proxy: KafkaProxy, at: int, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._at, self._client, self._server = proxy, at, client, server
        self._changed: dict[bytes, Rule] = {}  # by the number of a request: what has to be changed back in its answer
        self._lock = threading.Lock()

    def ask(self) -> None:
        while frame := _frame(self._client):
            (key,) = struct.unpack(">h", frame[:2])
            rule = self._proxy._rule_for(key, frame)
            if rule is None:
                _send(self._server, frame)
                continue
            self._act(rule, frame)
            rule.met.set()
            if rule.how == "cut":
                return

    def _act(self, rule: Rule, frame: bytes) -> None:
        match rule.how:
            case "never" | "cut":
                pass
            case "late":
                rule.met.set()
                rule.lifted.wait(_WAIT_S)
                _send(self._server, frame)
            case "error":
                self._changed[frame[4:8]] = rule
                _send(self._server, rule.changed(frame))
            case "other broker":
                ports = self._proxy._brokers
                with socket.create_connection(("127.0.0.1", ports[(self._at + 1) % len(ports)])) as other:
                    _send(other, frame)
                    self._give(_frame(other))

    def answer(self) -> None:
        while frame := _frame(self._server):
            rule = self._changed.pop(frame[:4], None)
            self._give(frame if rule is None else rule.changed(frame, back=True))

    def _give(self, frame: bytes) -> None:
        with self._lock:
            _send(self._client, self._proxy._here(frame))


def _frame(source: socket.socket) -> bytes:
    """Return the next request or answer without its length; nothing: the connection has ended."""
    size = _read(source, 4)
    return _read(source, *struct.unpack(">i", size)) if size else b""


def _read(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        more = source.recv(count - len(found))
        if not more:
            return b""
        found += more
    return bytes(found)


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(struct.pack(">i", len(frame)) + frame)
