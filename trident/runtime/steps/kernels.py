"""Says what runs as an Arrow kernel and what row by row in Python, by asking the modules that decide it."""

from __future__ import annotations

from trident.graph import (
    AggregateNode,
    Aggregation,
    EachNode,
    FilterNode,
    MapNode,
    MultiReduceNode,
    Node,
    PeekNode,
    QueryNode,
    RepartitionNode,
    WindowNode,
)
from trident.operations.expressions import Expression
from trident.operations.vectorised import ArrowFilter, ArrowFunction
from trident.planner import Plan
from trident.runtime.steps.aggregates import is_native
from trident.runtime.steps.applying import has_step_kernel
from trident.runtime.steps.in_batch import has_aggregate_kernel

_KERNEL, _ROWS = "Arrow kernel", "row by row"


def step_runs(node: Node) -> str:
    """Return how a step runs. A kernel may also run row by row where a sum could overflow."""
    if any(isinstance(operation, (ArrowFilter, ArrowFunction)) for operation in node.operations):
        return "vectorised"
    if any(isinstance(operation, Expression) for operation in node.operations):
        return _KERNEL
    if isinstance(node, (EachNode, FilterNode)):
        return _KERNEL if has_step_kernel(node) else _ROWS
    if isinstance(node, AggregateNode):
        return _KERNEL if has_aggregate_kernel(node) else _ROWS
    if isinstance(node, (MapNode, PeekNode, MultiReduceNode)):
        return _ROWS
    if isinstance(node, QueryNode):
        return "read in bulk, answered row by row"
    if isinstance(node, RepartitionNode) and node.routing.kind == "custom":
        return _ROWS
    return _KERNEL


def aggregation_runs(aggregation: Aggregation) -> str:
    """Return how the tuples of a task are aggregated before they go to a state."""
    if not aggregation.combines:
        return "every tuple goes to the state"
    return f"aggregated in each task first, {_KERNEL if is_native(aggregation.aggregator) else _ROWS}"


def window_runs(node: WindowNode) -> str:
    """Return how the tuples of a task are aggregated before they go to a window."""
    if node.config.counts or not node.combines or len(node.late):
        return f"every tuple goes to the {node.config.what}"
    return f"aggregated in each task first, {_KERNEL if is_native(node.member.aggregator) else _ROWS}"


def only_kernels(plan: Plan) -> bool:
    """Whether no user code runs before the states, so that the time of a batch depends on its size only."""
    fragments = plan.fragments.values()
    steps = [step.node for fragment in fragments for step in fragment.steps]
    steps += [exchange.node for exchange in plan.exchanges.values()]
    sinks = [sink for fragment in fragments for sink in fragment.sinks]
    aggregators = [sink.aggregation.aggregator for sink in sinks if sink.aggregation is not None]
    return all(step_runs(node) == _KERNEL for node in steps) and all(map(is_native, aggregators))
