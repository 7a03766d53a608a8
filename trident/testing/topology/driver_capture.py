"""Collects the tuples of every stream, batch by batch, with a consumer behind each node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trident.graph import Graph, Node, PeekNode
from trident.spout.interfaces import TransactionAttempt
from trident.tuples import TridentTuple

Row = tuple[Any, ...]


class _Collected:
    """The consumer behind one node."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def accept(self, tuple: TridentTuple) -> None:
        self.rows.append(tuple.values)


class Captures:
    """The tuples of the nodes of a topology: of running attempts, and of committed batches."""

    def __init__(self) -> None:
        self._collected: dict[str, _Collected] = {}
        self._live: dict[TransactionAttempt, dict[str, list[Row]]] = {}
        self.committed: dict[int, dict[str, list[Row]]] = {}

    def watching(self, graph: Graph) -> Graph:
        """Return the graph with a consumer behind each node whose tuples a user can see."""
        seen = [node for node in graph.nodes if len(node.fields) and not _is_inner(node)]
        return replace(graph, nodes=(*graph.nodes, *map(self._behind, seen)))

    def _behind(self, node: Node) -> PeekNode:
        consumer = self._collected[node.id] = _Collected()
        return PeekNode(f"{node.id}/captured", (node.id,), node.fields, node.fields, consumer)

    @contextmanager
    def of(self, attempt: TransactionAttempt) -> Iterator[None]:
        """Collect tuples for an attempt while the context is open."""
        self.begin()
        yield
        self.end(attempt)

    def begin(self) -> None:
        """Forget the tuples of an attempt that failed."""
        for collected in self._collected.values():
            collected.rows.clear()

    def end(self, attempt: TransactionAttempt) -> None:
        """Store the tuples since `begin` for the attempt."""
        live = self._live.setdefault(attempt, {})
        for node, collected in self._collected.items():
            live.setdefault(node, []).extend(collected.rows)
        self.begin()

    def commit(self, attempt: TransactionAttempt) -> None:
        """Keep the tuples of the attempt, because its batch is committed; drop the tuples of other attempts."""
        self.committed[attempt.txid] = self._live.pop(attempt)
        self._live = {live: rows for live, rows in self._live.items() if live.txid > attempt.txid}

    def knows(self, node: str) -> bool:
        """Whether a node's tuples are captured."""
        return node in self._collected

    def by_batch(self, node: str) -> dict[int, list[Row]]:
        """Return the tuples of a node by txid."""
        return {txid: list(rows.get(node, ())) for txid, rows in self.committed.items()}


def _is_inner(node: Node) -> bool:
    """Whether a node is only a piece of a declared step: the first half of an aggregate, or its exchange."""
    return node.id.endswith((":part", ":exchange"))
