"""The nodes of a cluster: which node has which bucket, and whether all keys of a bucket are where its slot is.

While a slot is being moved, its keys are at two nodes, which refuse a call that would miss a key (TRYAGAIN, ASK). A replica
that replaces the old node does not know of the move, and would answer that the moved keys are absent. So whenever the nodes
are looked up, as after each failover, a slot whose keys come from a node that no longer has it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from states.redis.options import RedisOptions
from states.redis.wire import Call, Link, Server
from trident.servers.redis_server import DEFAULT_PORT, driver, name_of

Address = tuple[str, int]
_ASKING = Call(-1, (b"ASKING",), lambda _answer: None)
_SLOTS, _NODES = (b"CLUSTER", b"SLOTS"), (b"CLUSTER", b"NODES")


class Cluster(Server):
    """Asks any node which node has which slots, and keeps a connection to each that is needed."""

    def __init__(self, options: RedisOptions, stems: Sequence[bytes], greet: Callable[[Link], None]) -> None:
        user, at, hosts = urlsplit(options.url).netloc.rpartition("@")
        self._seeds, self._greet = [options.arguments(user + at + host) for host in hosts.split(",")], greet
        self.name = ", ".join(map(name_of, self._seeds))
        self._slots = [driver().crc.key_slot(stem) for stem in stems]
        self._links: dict[Address, Link] = {}
        self._ranges: list[tuple[int, int, Address, str]] = []  # first and last slot, the node and its id
        self._of_bucket: list[Link] = []
        self._broken = 0

    def link(self, bucket: int) -> Link:
        if not self._of_bucket:
            self._find()
        return self._of_bucket[bucket]

    def links(self) -> Collection[Link]:
        return self._links.values()

    def primaries(self) -> Sequence[Link]:
        if not self._of_bucket:
            self._find()
        return [self._link_at(*address) for address in dict.fromkeys(address for _, _, address, _ in self._ranges)]

    def placement(self) -> Hashable:
        """Return which nodes have the slots of the buckets, and since when; `TryAgainError`: one of them is being moved."""
        nodes = self._find()
        ours = frozenset(self._slots)
        for node in nodes:
            for slot, _ in (*node.arriving, *node.leaving):
                if slot in ours:
                    raise driver().exceptions.TryAgainError(f"TRYAGAIN slot {slot} is being moved")
        served = frozenset((node.id, node.epoch, tuple(sorted(filter(node.serves, ours)))) for node in nodes)
        return (self._broken, served)

    def redirect(self, call: Call, error: Any) -> None:
        """Ask where a slot is being moved to, if all keys of a reading call have moved already."""
        if type(error) is not driver().exceptions.AskError or not call.reads:
            raise error
        target = self._link_at(error.host, error.port)
        target.open()
        target.send(_ASKING, call)

    def forget(self) -> None:
        for link in self._links.values():
            link.drop()
        self._links.clear()
        self._of_bucket = []
        self._broken += 1

    def _link_at(self, host: str, port: int) -> Link:
        link = self._links.get((host, port))
        if link is None:
            link = self._links[host, port] = self._new_link(host, port, self._greet)
        return link

    def _new_link(self, host: str, port: int, greet: Callable[[Link], None]) -> Link:
        return Link.to({**self._seeds[0], "host": host, "port": port}, greet)

    def _find(self) -> list[ClusterNode]:
        """Look up where the buckets are; return each node's own description."""
        errors = driver().exceptions
        known = [address for _, _, address, _ in self._ranges]
        seeds = [(seed.get("host", "localhost"), seed.get("port", DEFAULT_PORT)) for seed in self._seeds]
        failure: Exception = errors.ConnectionError("no node is named")
        for host, port in dict.fromkeys([*known, *seeds]):
            try:
                slots, nodes = self._ask((host, port), _SLOTS, _NODES)
            except (errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError) as error:
                failure = error
                continue
            # A node without an address in its answer is the one that was asked.
            self._ranges = [
                (first, last, ((at or b"").decode() or host, number), name.decode())
                for first, last, (at, number, name, *_), *_ in slots
            ]
            found = list(self._survey(host, nodes))
            self._refuse_stranded(found)
            self._of_bucket = [self._link_at(*self._owner(slot)[0]) for slot in self._slots]
            return found
        raise failure

    def _ask(self, address: Address, *commands: tuple[bytes, ...]) -> list[Any]:
        # A connection for this one question, because a link would be greeted like one for writing.
        link = self._new_link(*address, lambda _link: None)
        try:
            answers = link.ask(*commands)
        finally:
            link.drop()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _survey(self, asked: str, answer: bytes) -> Iterator[ClusterNode]:
        """Iterate over each primary's own description, without those that cannot be asked."""
        errors = driver().exceptions
        addresses = {name: address for _, _, address, name in self._ranges}
        for node in nodes_in(answer):
            if node.own:
                yield node
            elif node.reachable_primary:
                try:
                    (its,) = self._ask(addresses.get(node.id, (node.host or asked, node.port)), _NODES)
                except (errors.ConnectionError, errors.TimeoutError):
                    continue
                yield from (each for each in nodes_in(its) if each.own)

    def _refuse_stranded(self, nodes: list[ClusterNode]) -> None:
        ours = frozenset(self._slots)
        for node in nodes:
            for slot, source in node.arriving:
                if slot in ours and self._owner(slot)[1] not in (source, node.id):
                    raise driver().exceptions.ClusterDownError(
                        f"CLUSTERDOWN slot {slot} was being moved to {node.host}:{node.port} when its node was replaced: its "
                        "keys are at two nodes. redis-cli --cluster fix brings them together"
                    )

    def _owner(self, slot: int) -> tuple[Address, str]:
        for first, last, address, name in self._ranges:
            if first <= slot <= last:
                return address, name
        raise driver().exceptions.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")


# The nodes of a cluster as they describe themselves: the slots that they serve, and those that move to or from them.

_OPEN = re.compile(r"\[(\d+)-([<>])-(\w+)\]")


@dataclass(frozen=True)
class ClusterNode:
    """One line of CLUSTER NODES; a node lists moving slots, each with the other node's id, only for itself."""

    id: str
    host: str
    port: int
    epoch: int  # grows whenever slots come to this node
    own: bool  # it is the node that was asked
    reachable_primary: bool  # it may have keys, and can be asked
    slots: tuple[tuple[int, int], ...]
    arriving: tuple[tuple[int, str], ...]
    leaving: tuple[tuple[int, str], ...]

    def serves(self, slot: int) -> bool:
        return any(first <= slot <= last for first, last in self.slots)


def nodes_in(answer: bytes) -> Iterator[ClusterNode]:
    for line in answer.decode().splitlines():
        name, address, flags, _primary, _ping, _pong, epoch, _link, *slots = line.split()
        host, _, port = address.partition("@")[0].rpartition(":")
        known = set(flags.split(","))
        ranges = (text.partition("-") for text in slots if not text.startswith("["))
        primary = "master" in known and known.isdisjoint({"fail", "noaddr", "handshake"})
        moving = [(int(slot), way, other) for slot, way, other in _OPEN.findall(" ".join(slots))]
        yield ClusterNode(
            name, host, int(port), int(epoch), "myself" in known, primary,
            slots=tuple((int(first), int(last or first)) for first, _, last in ranges),
            arriving=tuple((slot, other) for slot, way, other in moving if way == "<"),
            leaving=tuple((slot, other) for slot, way, other in moving if way == ">"),
        )  # fmt: skip
