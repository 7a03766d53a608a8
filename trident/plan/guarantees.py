"""The guarantee matrix: which spout and which state are exact together, and which reads break that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trident.errors import TopologyError
from trident.graph import Graph, Node, PersistNode, QueryNode
from trident.spout.interfaces import DeclaresSpoutType, SpoutType
from trident.state.interfaces import StateType

EXACT = frozenset(
    {
        (SpoutType.TRANSACTIONAL, StateType.TRANSACTIONAL),
        (SpoutType.TRANSACTIONAL, StateType.OPAQUE),
        (SpoutType.OPAQUE, StateType.OPAQUE),
    }
)


def spout_type_of(spout: Any) -> SpoutType:
    """Return what a spout promises, a `SpoutType` or its name; non-transactional for an `IBatchSpout` that declares none."""
    kind: Any = spout.spout_type if isinstance(spout, DeclaresSpoutType) else None
    if kind is None:
        return SpoutType.NON_TRANSACTIONAL
    try:
        return SpoutType(kind.replace("_", "-") if isinstance(kind, str) else kind)
    except ValueError as error:
        names = ", ".join(repr(known.value) for known in SpoutType)
        raise TopologyError(
            f"{type(spout).__name__}.spout_type is {kind!r}, which is unknown; use one of {names}"
        ) from error


def is_exact(promise: SpoutType, kind: StateType, keeps_attempts: bool | None) -> bool:
    """Whether a replayed batch counts once. A state without attempts treats what a lost attempt wrote as committed."""
    return (promise, kind) in EXACT and not (promise is SpoutType.OPAQUE and keeps_attempts is False)


def kind_text(kind: StateType, keeps_attempts: bool | None) -> str:
    """Return the name of a kind, with what its stored fields lack."""
    return kind.value + lack_text(kind, keeps_attempts)


def lack_text(kind: StateType, keeps_attempts: bool | None) -> str:
    """Return what the stored fields of an opaque state lack, if anything."""
    return " without attempts" if kind is StateType.OPAQUE and keeps_attempts is False else ""


class EarlyRead(NamedTuple):
    """A query that runs before its batch updates the state that it reads, and the states that its answers flow into.

    Unless the state can be read as of the batch before, a replay reads what a failed attempt has written. Behind the
    update a query reads the state as after its own batch, in every attempt.
    """

    query: str
    state: str
    into: tuple[str, ...]


def early_reads(graph: Graph, commits: Sequence[Node]) -> Iterator[EarlyRead]:
    """Iterate over the early reads of a plan's commits."""
    updated: set[str] = set()
    written = {node.state for node in commits if isinstance(node, PersistNode)}
    for node in commits:
        if isinstance(node, PersistNode):
            updated.add(node.state)
        elif isinstance(node, QueryNode) and node.state in written - updated:
            into = tuple(behind.state for behind in graph.behind(node.id) if isinstance(behind, PersistNode))
            if into:
                yield EarlyRead(node.id, node.state, into)
