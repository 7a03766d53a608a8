"""What the workers of a topology and its driver send each other, and over which sockets.

Every message is a packed dict with its kind. A worker sends `register`, `ready`, `beat`, `died` and `ended`, each with its
number and incarnation; the driver answers with its `WorkerOrders`, or `replaced` to a worker in whose place another one runs.

What a Spark task gets, so that it becomes a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import zmq

from trident.spark.link_keys import Keys, new_context
from trident.state.encoding.extensions import pack, unpack
from trident.storm.execution.task_layout import TaskLayout
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology


@dataclass(frozen=True)
class WorkerOrders:
    """What a worker must know and do.

    `version`: grows with each change.
    `places`: the workers that are there: their addresses and incarnations by their numbers.
    `active`: whether spouts are asked for tuples.
    `stop`: whether the worker must end.
    """

    version: int = 0
    places: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    active: bool = False
    stop: bool = False

    def as_message(self) -> dict[str, Any]:
        """Return the orders as they travel."""
        return {"kind": "orders", **asdict(self), "places": {at: list(place) for at, place in self.places.items()}}

    @staticmethod
    def of(message: Mapping[str, Any]) -> WorkerOrders:
        """Return the orders in a message."""
        places = {at: (address, incarnation) for at, (address, incarnation) in message["places"].items()}
        return WorkerOrders(message["version"], places, message["active"], message["stop"])


class Registry:
    """The driver's end; one thread uses it."""

    def __init__(self, keys: Keys, host: str, bind: str) -> None:
        self._context, self._doorkeeper = new_context(keys)
        self._socket = self._context.socket(zmq.ROUTER)
        self.address = f"{host}:{keys.listen(self._socket, bind)}"
        self.corrupt = 0

    def receive(self, wait_s: float) -> tuple[bytes, dict[str, Any]] | None:
        """Return the next message and whom it is from; None if there is none in time, or it cannot be read."""
        if not self._socket.poll(int(wait_s * 1000)):
            return None
        try:
            sender, data = self._socket.recv_multipart(zmq.NOBLOCK)
            message = unpack(data)
            int(message["worker"]), int(message["incarnation"]), str(message["kind"])
        except Exception:  # noqa: BLE001  damaged bytes may raise anything
            self.corrupt += 1
            return None
        return sender, message

    def send(self, to: bytes, message: Mapping[str, Any]) -> None:
        """Send to a worker; what cannot be sent is dropped, and sent again with the next beat."""
        with suppress(zmq.ZMQError):
            self._socket.send_multipart((to, pack(message)), zmq.NOBLOCK)

    def close(self) -> None:
        """Close all connections."""
        self._doorkeeper.stop()
        self._context.destroy(linger=1000)


class Line:
    """A worker's end; one thread uses it."""

    def __init__(self, keys: Keys, address: str, worker: int, incarnation: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        keys.connect(self._socket, address)
        self._who = {"worker": worker, "incarnation": incarnation}

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next message of the driver; None if there is none in time."""
        if not self._socket.poll(int(wait_s * 1000)):
            return None
        message: dict[str, Any] = unpack(self._socket.recv(zmq.NOBLOCK))
        return message

    def send(self, kind: str, **content: Any) -> None:
        """Send to the driver; while it cannot be reached, what is sent is dropped."""
        with suppress(zmq.Again):
            self._socket.send(pack({"kind": kind, **self._who, **content}), zmq.NOBLOCK)

    def close(self) -> None:
        """Close the connection; the last messages have a second to go out."""
        self._context.destroy(linger=1000)


@dataclass(frozen=True)
class Ticket:
    """Enough to reach the driver. The rest needs the user's modules, and a failure to load it is reported to the driver.

    `registry`: the driver's address.
    `launch`: a pickled `Launch`.
    """

    topology: str
    worker: int
    incarnation: int
    registry: str
    timeout_s: float
    keys: Keys
    launch: bytes = field(repr=False)


@dataclass(frozen=True)
class Launch:
    """What all workers run."""

    topology: StormTopology
    pickled: Mapping[str, bytes]
    layout: TaskLayout
    conf: StormConfig
