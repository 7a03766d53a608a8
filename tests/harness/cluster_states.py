"""A cluster's state with a record of what it told."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.harness.servers import Server
from trident.cluster.submissions import add_topology
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import Assignment, NodePort, StormBase, WantedStatus
from trident.cluster_state.storm_cluster_state import ClusterState, StormClusterState
from trident.errors import ClusterUnreachable
from trident.nodes.interface import NodeEvent

_LIMIT_S = 60.0
ON_SERVERS = ("zookeeper", "postgres", "s3")
_roots = itertools.count(1)


def address_on(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the address of a cluster on a server of a kind, which no other test has."""
    server: Any = request.getfixturevalue(f"{kind}_server")
    name = f"cluster{next(_roots)}"
    if kind == "postgres":
        return f"postgresql://trident@{server.address}/postgres?cluster={name}"
    return f"s3://logs/{name}" if kind == "s3" else f"zookeeper://{server.hosts}/{name}"


class Opened:
    """A session, and the events that it told."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.events: list[NodeEvent] = []
        self._more = threading.Condition()
        state.register(self._tell)

    def told(self, *events: tuple[str, str], limit_s: float = _LIMIT_S) -> None:
        """Wait until these were told, and nothing else; then forget them."""
        self.until(lambda told: len(told) >= len(events), limit_s)
        assert sorted(self.take()) == sorted(events)

    def settled(self, path: str = "/settled") -> list[NodeEvent]:
        """Return all that was told of what has been done before, whoever did it; forget it."""
        mark = ("changed", f"{path}-{time.monotonic_ns()}")
        self.state.get_data(mark[1], watch=True)
        self.state.set_data(mark[1], b"")
        self.until(lambda told: mark in told)
        taken = self.take()
        assert taken[-1] == mark
        return taken[:-1]

    def until(self, holds: Callable[[list[NodeEvent]], bool], limit_s: float = _LIMIT_S) -> None:
        with self._more:
            assert self._more.wait_for(lambda: holds(self.events), limit_s), f"told in {limit_s} s: {self.events}"

    def take(self) -> list[NodeEvent]:
        """Return what was told, and forget it."""
        with self._more:
            taken, self.events = self.events, []
            return taken

    def _tell(self, event: NodeEvent) -> None:
        with self._more:
            self.events.append(event)
            self._more.notify_all()


@contextlib.contextmanager
def opened(address: str | Path, session_timeout_s: float = 10.0) -> Iterator[Opened]:
    with closing(open_cluster_state(address, session_timeout_s)) as state:
        yield Opened(state)


def check_hang(address: str, server: Server, kind: str) -> None:
    """Check that a server that hangs is an error after the timeout, and that all goes on when it answers again."""
    with opened(address, 1.0) as one:
        server.pause()
        try:
            scheme, _, _ = address.partition("://")
            with pytest.raises(ClusterUnreachable, match=f"no answer from {kind} at {scheme}://.* for . seconds"):
                one.state.get_data("/a")
        finally:
            server.resume()
        one.state.set_data("/a", b"1")
        assert one.state.get_data("/a") == b"1"


Opening = Callable[..., Opened]
"""Opens one more session of the same cluster, by default with a timeout of ten seconds."""

LOST_ANSWERS: list[Any] = [
    # A compare-and-set is done once; one that was refused is refused.
    (lambda one, other: one.set_data("/a", b"0"), lambda one: one.compare_and_set("/a", b"1", 0), True, (b"1", 1)),
    (lambda one, other: (one.set_data("/a", b"0"), other.set_data("/a", b"1")),
     lambda one: one.compare_and_set("/a", b"2", 0), False, (b"1", 1)),
    # A creation is ours.
    (lambda one, other: None, lambda one: one.create_ephemeral_node("/a", b"1"), True, (b"1", 0)),
    (lambda one, other: None, lambda one: one.compare_and_set("/a", b"1", None), True, (b"1", 0)),
    # A node of another, and one that was ours before, is not created.
    (lambda one, other: other.create_ephemeral_node("/a", b"1"),
     lambda one: one.create_ephemeral_node("/a", b"1"), False, (b"1", 0)),
    (lambda one, other: other.set_data("/a", b"1"),
     lambda one: one.compare_and_set("/a", b"1", None), False, (b"1", 0)),
    (lambda one, other: one.create_ephemeral_node("/a", b"1"),
     lambda one: one.create_ephemeral_node("/a", b"1"), False, (b"1", 0)),
    # A delete is done.
    (lambda one, other: other.set_data("/a/b/c", b"1"), lambda one: one.delete_node("/a"), None, ()),
]  # fmt: skip
"""What two sessions do before; the change of the first whose answer is lost; what it returns, and the node then."""


def set_assignment(cluster: StormClusterState, storm_id: str, info: Assignment) -> None:
    """Say where a topology runs from now on."""
    while not cluster.replace_assignment(storm_id, cluster.assignment_info(storm_id), info):
        pass


def submitted(
    cluster: StormClusterState, name: str, status: WantedStatus | None = None,
    kind: Literal["trident", "bolts"] = "trident",
) -> str:  # fmt: skip
    """Keep a topology as Nimbus does, of which no driver runs; returns its id."""
    conf = {"engine": "in_process", "spark.ssl.keyPassword": "hush"}
    wanted = status or WantedStatus("active", 0.0)
    return add_topology(cluster, StormBase(name, time.time() - 60, wanted, 2, {}, kind, "m.py:t", "hash", conf))


def assigned(cluster: StormClusterState, storm_id: str, node: str = "a", port: int = 6700, host: str = "host") -> float:
    """Give a topology a slot; returns since when."""
    start, driver = time.time(), Assignment.DRIVER
    info = Assignment("code", {node: host}, {driver: NodePort(node, port)}, {driver: start}, "hash", 1)
    set_assignment(cluster, storm_id, info)
    return start
