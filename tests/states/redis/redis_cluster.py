"""A Redis cluster for tests, and a slot of it that moves step by step."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.harness.servers import Server, free_ports, start_redis

SLOTS = 1 << 14


class Cluster:
    """Primaries, and nodes that join them later.

    Attributes
    ----------
    nodes, clients
        All nodes, and a client of each.
    """

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self.nodes: list[Server] = []
        self.clients: list[Any] = []
        self._buses: list[int] = []

    def join(self, first: int = 0, end: int = 0) -> Any:
        """Start a node that serves the slots from `first` to before `end`, and have it join the others."""
        (bus,) = free_ports(1)
        arguments = (
            "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", 2000, "--save", "",
            "--repl-diskless-sync-delay", 0,
        )  # fmt: skip
        node = start_redis(self._new_folder(), *arguments)
        self.nodes.append(node)
        self._buses.append(bus)
        client: Any = redis.Redis(port=node.port)
        self.clients.append(client)
        if end:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self._buses[0])
        return client

    def replicate(self, primary: int) -> Any:
        """Start a node that is a replica of another one; return its client."""
        client = self.join()
        self.wait()
        client.execute_command("CLUSTER", "REPLICATE", self.id(primary))
        wait_for(lambda: client.info("replication").get("master_link_status") == "up")
        return client

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(node.address for node in self.nodes)

    def id(self, number: int) -> Any:
        """Return what the cluster calls a node."""
        return self.clients[number].execute_command("CLUSTER", "MYID")

    def wait(self) -> None:
        """Wait until every node knows every other one, and all slots are served."""
        count = str(len(self.nodes))

        def settled(client: Any) -> bool:
            info = client.cluster("INFO")
            return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == count)

        wait_for(lambda: all(map(settled, self.clients)))

    def owner(self, slot: int, asked: int = 0) -> int:
        """Return the number of the node that serves a slot, as one of them knows it; -1 for none, as while one takes over."""
        ranges = self.clients[asked].execute_command("CLUSTER", "SLOTS")
        port = next((node[1] for first, last, node, *_ in ranges if first <= slot <= last), None)
        return next((number for number, node in enumerate(self.nodes) if node.port == port), -1)

    def wait_for_agreement(self) -> None:
        """Wait until all nodes say the same of who serves which slots since which epoch.

        A node that takes a slot over before it has heard of the others' latest epochs takes too low a number for its own; it
        gives the slot up when it hears of them, and deletes the keys that it has there.
        """

        def said(client: Any) -> dict[str, tuple[str, list[str]]]:
            nodes = client.cluster("NODES")
            return {node["node_id"]: (node["epoch"], node["slots"]) for node in nodes.values()}

        wait_for(lambda: all(said(client) == said(self.clients[0]) for client in self.clients[1:]))

    def sizes(self) -> list[int]:
        return [client.dbsize() for client in self.clients]

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        for node in self.nodes:
            node.stop()


@contextmanager
def cluster_in(new_folder: Callable[[], Path], primaries: int) -> Iterator[Cluster]:
    cluster = Cluster(new_folder)
    try:
        for number in range(primaries):
            cluster.join(number * SLOTS // primaries, (number + 1) * SLOTS // primaries)
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()


class Move:
    """A slot on its way from the node that serves it to another one; every step is a method."""

    def __init__(self, cluster: Cluster, slot: int, target: int | None = None) -> None:
        self._cluster, self.slot = cluster, slot
        self.source = cluster.owner(slot)
        self.target = (self.source + 1) % len(cluster.nodes) if target is None else target
        self._at = [cluster.id(number) for number in range(len(cluster.nodes))]

    def open(self) -> None:
        """Tell both nodes that the slot is on its way."""
        self._cluster.wait_for_agreement()
        self._set(self.target, "IMPORTING", self._at[self.source])
        self._set(self.source, "MIGRATING", self._at[self.target])

    def left(self) -> list[bytes]:
        """Return the slot's keys that have not left yet."""
        found: list[bytes] = self._cluster.clients[self.source].execute_command(
            "CLUSTER", "GETKEYSINSLOT", self.slot, 10_000
        )
        return found

    def carry(self, keys: Sequence[bytes]) -> None:
        if keys:
            port = self._cluster.nodes[self.target].port
            self._cluster.clients[self.source].execute_command(
                "MIGRATE", "127.0.0.1", port, "", 0, 10_000, "KEYS", *keys
            )

    def carry_all(self) -> None:
        self.carry(self.left())

    def arrive(self) -> None:
        """Tell the target that the slot is its own; the others do not know it yet."""
        self._set(self.target, "NODE", self._at[self.target])

    def close(self) -> None:
        """Tell all nodes."""
        for number in (self.target, self.source, *range(len(self._cluster.nodes))):
            self._set(number, "NODE", self._at[self.target])

    def whole(self) -> None:
        for step in (self.open, self.carry_all, self.close):
            step()

    def back(self) -> None:
        """Bring the slot back to where it was, also if it never arrived."""
        if self._cluster.owner(self.slot) == self.source:
            for number in (self.target, self.source):
                self._cluster.clients[number].execute_command("CLUSTER", "SETSLOT", self.slot, "STABLE")
        else:
            Move(self._cluster, self.slot, self.source).whole()

    def _set(self, number: int, what: str, node: Any) -> None:
        self._cluster.clients[number].execute_command("CLUSTER", "SETSLOT", self.slot, what, node)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait, half a minute at most."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # between two questions
