"""The declared topology as frozen nodes; no engine object is in them.

Begin with `nodes.py`, then `declared.py` (`Graph`); `aggregations.py` has the nodes of aggregates and states.
"""

from trident.graph.aggregations import (
    AggregateNode,
    Aggregation,
    Evolution,
    JoinSide,
    JoinWithinNode,
    Member,
    Migrate,
    PersistNode,
    QueryNode,
    StateNode,
    WindowNode,
)
from trident.graph.declared import Graph
from trident.graph.nodes import (
    DrpcNode,
    EachNode,
    ExchangeNode,
    FilterNode,
    JoinNode,
    MapNode,
    MergeNode,
    MultiReduceNode,
    Node,
    PeekNode,
    ProjectNode,
    RepartitionNode,
    Routing,
    SelectNode,
    SpoutNode,
)

__all__ = [
    "AggregateNode",
    "Aggregation",
    "DrpcNode",
    "EachNode",
    "Evolution",
    "ExchangeNode",
    "FilterNode",
    "Graph",
    "JoinNode",
    "JoinSide",
    "JoinWithinNode",
    "MapNode",
    "Member",
    "MergeNode",
    "Migrate",
    "MultiReduceNode",
    "Node",
    "PeekNode",
    "PersistNode",
    "ProjectNode",
    "QueryNode",
    "RepartitionNode",
    "Routing",
    "SelectNode",
    "SpoutNode",
    "StateNode",
    "WindowNode",
]
