"""DRPC in this process."""

from collections.abc import Mapping
from typing import Any, Protocol

import cloudpickle

from trident.config import Config
from trident.drpc.batching import (
    Answer,
    CommittedLog,
    DRPCFunction,
    OwnLog,
    QueriedTopology,
    RequestExecutor,
    unknown_function,
)
from trident.errors import ConfigError, TopologyError, describe
from trident.graph import Graph
from trident.plan import RequestPlan, make_request_plan
from trident.read.open_partitions import graph_to_read
from trident.read.state_reader import ForeignLog
from trident.roles import Closes, close_on_error

__all__ = ["DRPCFunction", "DeclaredTopology", "LocalDRPC"]

_INSTEAD = 'Ask that process (running.drpc("function"), or trident run with --drpc-port)'


class DeclaredTopology(Protocol):
    """A declared topology; `TridentTopology` is one."""

    def graph(self) -> Graph: ...
    def settings(self, conf: Config | Mapping[str, Any] | None = None, **settings: Any) -> Config: ...


class LocalDRPC(Closes):
    """Answers the DRPC functions of a topology in this process.

    Parameters
    ----------
    topology
        A running topology, or a declared one that another process runs (or ran): its states are read through its log then,
        as `trident get` does. A topology whose functions query only static states needs no log.
    conf, settings
        As for `TridentTopology.start`; a running topology keeps its own.
    threads
        How many threads answer each function, with copies of its operations. A second one helps where a request waits for a
        slow store or user code.
    max_batch
        How many waiting requests are answered together at most.

    Raises
    ------
    TopologyError
        It has no function, or one whose operations cannot be copied.
    UnsupportedOperation, LogError, ForeignLogError
        A state cannot be read from this process.
    """

    def __init__(
        self,
        topology: DeclaredTopology | QueriedTopology,
        conf: Config | Mapping[str, Any] | None = None,
        *,
        threads: int = 1,
        max_batch: int = 1024,
        **settings: Any,
    ) -> None:
        if threads < 1 or max_batch < 1:
            raise ConfigError(f"threads={threads}, max_batch={max_batch}: expected whole numbers of at least 1")
        self._log: CommittedLog | None = None
        if isinstance(topology, QueriedTopology):
            graph, config, self._log = topology.graph, topology.config, OwnLog(topology)
        else:
            graph, config = topology.graph(), topology.settings(conf, **settings)
        check_functions(graph)
        plans = [make_request_plan(graph, node.function) for node in graph.functions()]
        updated = {name: node for plan in plans for name, node in plan.states.items() if not node.static}
        self.name, self.closed = graph.name, False
        if self._log is None and updated:
            self._log = ForeignLog(graph.name, config, updated.values(), _INSTEAD)
        if self._log is not None:  # states are opened as former declarations have left them
            stored = graph_to_read(graph, self._log.now().declared)
            plans = [make_request_plan(stored, node.function) for node in stored.functions()]
        self._functions: dict[str, DRPCFunction] = {}
        with close_on_error(self.close):
            for plan in plans:
                executors = [RequestExecutor(copy, config, self._log) for copy in _copies(plan, threads)]
                self._functions[plan.function] = DRPCFunction(plan.function, executors, max_batch)

    @property
    def functions(self) -> list[str]:
        """The names of the functions."""
        return list(self._functions)

    @property
    def txid(self) -> int | None:
        """The last committed batch, which requests see; None if no function queries a state that changes."""
        return None if self._log is None else self._log.now().txid

    def function(self, name: str) -> DRPCFunction:
        """Return one function; `DRPCExecutionException` if there is none of that name."""
        if name not in self._functions:
            raise unknown_function(name, self.name, self.functions)
        return self._functions[name]

    def execute(self, function: str, args: str, timeout: float | None = None) -> Answer:
        """Ask a function and wait for the answer, at most `timeout` seconds; see `DRPCFunction.execute`."""
        return self.function(function).execute(args, timeout)

    def close(self) -> None:
        """Refuse what waits, and end the threads."""
        self.closed = True
        for function in self._functions.values():
            function.close()
        if isinstance(self._log, ForeignLog):
            self._log.close()

    def __repr__(self) -> str:
        return f"LocalDRPC({self.name!r}: {self.functions})"


def check_functions(graph: Graph) -> None:
    if not graph.functions():
        raise TopologyError(f"topology {graph.name!r} has no DRPC function; declare one with new_drpc_stream(function)")


def _copies(plan: RequestPlan, count: int) -> list[RequestPlan]:
    if count == 1:
        return [plan]
    try:
        pickled = cloudpickle.dumps(plan)
    except Exception as error:
        raise TopologyError(
            f"DRPC function {plan.function!r}: its operations cannot be copied for {count} threads ({describe(error)}); use "
            "threads=1, or open locks, connections and files in prepare(conf, context)"
        ) from error
    return [plan, *(cloudpickle.loads(pickled) for _ in range(count - 1))]
