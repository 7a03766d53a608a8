"""Answers the DRPC functions of a topology in the thread of a test, between its batches."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from trident.coordination.log_state import LogState
from trident.drpc.batching import Answer, RequestExecutor, unknown_function
from trident.graph import Graph
from trident.planner import make_request_plan
from trident.runtime.start.opened_topology import OpenedTopology


class DriverRequests:
    """Answers requests one by one, as after the last committed batch; a function is opened by its first request."""

    def __init__(self, graph: Graph, opened: OpenedTopology) -> None:
        self._graph, self._opened = graph, opened
        self._log = _OpenedLog(opened)
        self._executors: dict[str, RequestExecutor] = {}

    def answer(self, function: str, args: str) -> Answer:
        """Return the answer of one request."""
        if function not in self._executors:
            known = [node.function for node in self._graph.functions()]
            if function not in known:
                raise unknown_function(function, self._graph.name, known)
            plan = make_request_plan(self._graph, function)
            self._executors[function] = RequestExecutor(plan, self._opened.config, self._log)
        return self._executors[function].answer(args)

    def close(self) -> None:
        """End the operations of the functions, and close what they opened."""
        for executor in self._executors.values():
            executor.close()


class _OpenedLog:
    """The `CommittedLog` of a topology that a driver has opened."""

    def __init__(self, opened: OpenedTopology) -> None:
        self._opened = opened
        self.gate: AbstractContextManager[Any] | None = opened.gate

    def now(self) -> LogState:
        return self._opened.log.state

    def partitions(self, state: str) -> int:
        return self._opened.plan.partitions.get(state, 1)
