"""How many partitions an exchange has: hints of the steps from it to the next exchange, and of states that keep them."""

from __future__ import annotations

from trident.errors import TopologyError
from trident.graph import Graph, JoinNode, MultiReduceNode, Node, RepartitionNode
from trident.planner.kept_partitions import most_kept
from trident.planner.plan import Fragment

__all__ = ["width_of"]


def width_of(graph: Graph, entry: Node, fragment: Fragment) -> int | None:
    """Return the number of partitions of an entry: 1 for global ones, else the largest hint; None if there is no hint.

    The partitions of a state that keeps those of the stream count as a hint.

    Raises
    ------
    TopologyError
        The hints behind an `identity_partition` ask for another number than there is before it.
    """
    behind = _behind_identity(fragment)
    before = set(fragment.ids).difference(*behind.values())
    width = 1 if _is_single(entry) else max(_largest(graph, before) or 0, most_kept(fragment.sinks)) or None
    for id_, ids in behind.items():
        hint = _largest(graph, ids)
        if hint is not None and hint != width:
            raise TopologyError(
                f"step {id_!r}: identity_partition keeps every tuple in its partition, so there must be as many after it "
                f"as before; there are {'as many as the engine has cores' if width is None else width} before, and "
                f"parallelism_hint asks for {hint} after. Give both the same hint, or use shuffle"
            )
    return width


def _is_single(entry: Node) -> bool:
    if isinstance(entry, RepartitionNode):
        return entry.routing.kind == "global"
    return isinstance(entry, (MultiReduceNode, JoinNode)) and not len(entry.groups[0])


def _largest(graph: Graph, ids: set[str]) -> int | None:
    return max((hint for node, hint in graph.hints.items() if node in ids), default=None)


def _behind_identity(fragment: Fragment) -> dict[str, set[str]]:
    """For each identity partition of a fragment, the steps from it on."""
    found: dict[str, set[str]] = {}
    for step in fragment.steps:
        if isinstance(step.node, RepartitionNode):
            found[step.id] = {step.id}
        for ids in found.values():
            if any(source in ids for source in step.sources):
                ids.add(step.id)
    return found
