"""Which entries keep the partitions of the stream in front of them: a `partition_persist` of several, and queries before one.

As in Storm, an updater gets the tuples as the last `partition_by`, `shuffle`, `global_` … spread them: partition i of the
stream goes to partition i of the state; where the stream has more, i modulo the number of the state's. So if all tuples of
a key are in one partition of the stream, one partition of the state writes the key (R16). A query on the way passes the
partitions on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trident.graph import Graph, Node, PersistNode, QueryNode
from trident.planner.plan import Fragment, Sink

__all__ = ["keeping", "kept_by", "most_kept", "partitions_of_state"]


def partitions_of_state(graph: Graph, node: PersistNode) -> int:
    """Return the number of partitions of the state that a node writes."""
    return graph.state(node.state).spec.required_num_partitions or graph.hints.get(node.id, 1)


def kept_by(graph: Graph, node: Node, fragment: Fragment) -> int:
    """Return how many partitions an entry keeps of the streams in front of it; 0: it chooses them by itself.

    `fragment` is the one behind it.
    """
    if isinstance(node, QueryNode):
        return most_kept(fragment.sinks)
    if isinstance(node, PersistNode) and graph.state(node.state).free_keys:
        partitions = partitions_of_state(graph, node)
        return partitions if partitions > 1 else 0
    return 0


def keeping(fragment: Fragment, kept: Mapping[str, int]) -> Fragment:
    """Return a fragment whose sinks know which of their targets keep partitions."""
    sinks = tuple(replace(sink, kept=kept.get(sink.target, 0)) for sink in fragment.sinks)
    return replace(fragment, sinks=sinks)


def most_kept(sinks: Iterable[Sink]) -> int:
    """Return the largest number of partitions that a target of these sinks keeps."""
    return max((sink.kept for sink in sinks), default=0)
