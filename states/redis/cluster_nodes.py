"""The nodes of a cluster as they describe themselves: the slots that they serve, and those that move to or from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Node", "nodes_in"]

_OPEN = re.compile(r"\[(\d+)-([<>])-(\w+)\]")


@dataclass(frozen=True)
class Node:
    """One line of CLUSTER NODES.

    Attributes
    ----------
    id, host, port
        Its name in the cluster, and its address; the host is empty if it is unknown.
    epoch
        Grows whenever slots come to this node.
    own
        This is the node that was asked. A node lists moving slots only for itself.
    reachable_primary
        It may have keys, and can be asked.
    slots
        Ranges of the slots that it serves: first and last.
    arriving, leaving
        (slot, the other node's id) of each slot that is being moved.
    """

    id: str
    host: str
    port: int
    epoch: int
    own: bool
    reachable_primary: bool
    slots: tuple[tuple[int, int], ...]
    arriving: tuple[tuple[int, str], ...]
    leaving: tuple[tuple[int, str], ...]

    def serves(self, slot: int) -> bool:
        """Whether a slot is this node's."""
        return any(first <= slot <= last for first, last in self.slots)


def nodes_in(answer: bytes) -> Iterator[Node]:
    """Read the answer to CLUSTER NODES."""
    for line in answer.decode().splitlines():
        name, address, flags, _primary, _ping, _pong, epoch, _link, *slots = line.split()
        host, _, port = address.partition("@")[0].rpartition(":")
        known = set(flags.split(","))
        primary = "master" in known and known.isdisjoint({"fail", "noaddr", "handshake"})
        moving = [(int(slot), way, other) for slot, way, other in _OPEN.findall(" ".join(slots))]
        yield Node(
            name, host, int(port), int(epoch), "myself" in known, primary,
            slots=tuple(_range(text) for text in slots if not text.startswith("[")),
            arriving=tuple((slot, other) for slot, way, other in moving if way == "<"),
            leaving=tuple((slot, other) for slot, way, other in moving if way == ">"),
        )  # fmt: skip


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
