"""Requests that wait are answered together, all as after the same committed batch; one that fails, fails alone.

Together they are one Arrow table: each row has the number of its request, in a column that user code does not see. A step that
works row by row, or that has a key, to which that number is added, works on all requests at once. An aggregate without a key
gets the number as its key; requests without rows get the aggregate of nothing. Any other step runs request by request.
"""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import python_of, strict_array
from trident.channel import waitable
from trident.config import Config
from trident.engine.fragment_runs import run_step
from trident.engine.routing import route
from trident.errors import BackendError, DRPCExecutionException, StaleTransactionError, StateMismatchError, describe
from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    Graph,
    JoinNode,
    MapNode,
    MergeNode,
    MultiReduceNode,
    Node,
    RepartitionNode,
    SelectNode,
)
from trident.log.log_state import LogState
from trident.operations.expressions import col
from trident.operations.interfaces import ArrowFunction, TridentOperationContext
from trident.plan import Exchange, RequestPlan, Sink, Step
from trident.read.open_partitions import open_state
from trident.read.state_partitions import read_in_rounds
from trident.read.state_reader import ForeignLog, snapshots_of
from trident.read.views import StateView
from trident.roles import has
from trident.spout.interfaces import TransactionAttempt
from trident.state.txid import Snapshot
from trident.steps.failures import Bounds, StepFailed, TupleErrors, failing_at
from trident.steps.in_batch import aggregate, join, multi_reduce
from trident.steps.rows import StepRun

logger = logging.getLogger(__name__)

Answer = list[list[Any]]

_CLOSE_WAIT_S = 5.0
_REQUEST = ""  # no field has this name
_NUMBER = Fields.of([_REQUEST], ["bigint"])


@runtime_checkable
class QueriedTopology(Protocol):
    """A topology that runs in this process, as its DRPC functions know it; holding its `gate` delays the next commit."""

    @property
    def graph(self) -> Graph: ...
    @property
    def config(self) -> Config: ...
    @property
    def gate(self) -> AbstractContextManager[Any]: ...
    @property
    def log_state(self) -> LogState: ...
    @property
    def partitions(self) -> Mapping[str, int]: ...


class OwnLog:
    """The log of a topology that runs in this process. It says what is committed, to any thread."""

    def __init__(self, running: QueriedTopology) -> None:
        self._running, self.gate = running, running.gate

    def now(self) -> LogState:
        """Return what is committed now. The object may change with the next call."""
        return self._running.log_state

    def partitions(self, state: str) -> int:
        return self._running.partitions.get(state, 1)


CommittedLog = OwnLog | ForeignLog


class RequestStates:
    """The states that one function queries. For one thread at a time."""

    def __init__(self, plan: RequestPlan, config: Config, log: CommittedLog | None) -> None:
        self._plan, self._config, self._log = plan, config, log
        self._opened: dict[str, tuple[int, list[Any], Any]] = {}
        """Of each state how many partitions it has, those that are open, and what a step queries."""
        self._snapshots: dict[str, Snapshot] = {}

    def renew(self) -> None:
        names = [name for name, node in self._plan.states.items() if not node.static]
        if self._log is None or not names:
            return
        self._snapshots = snapshots_of(self._log.now, names)

    def __call__(self, name: str) -> Any:
        node = self._plan.states[name]
        log = None if node.static else self._log
        assert node.static or log is not None, "only functions without updated states go without a log"
        partitions = (node.spec.required_num_partitions or 1) if log is None else log.partitions(name)
        opened, instances, _ = self._opened.get(name, (0, [], None))
        if opened != partitions:  # a restart may have changed the number
            for state in instances:
                state.close()
            topology, conf = self._plan.topology, self._config.as_mapping()
            instances = [
                open_state(topology, node, conf, partition, partitions, read_only=True)
                for partition in range(1 if log is None else partitions)
            ]
            view = instances[0].given
            if log is not None:
                view = StateView.for_query(instances, lambda: self._snapshots[name], node, log.now)
            self._opened[name] = partitions, instances, view
        return self._opened[name][2]

    def close(self) -> None:
        for state in (each for _, instances, _ in self._opened.values() for each in instances):
            state.close()


class RequestExecutor:
    """Answers requests of one function, in one thread at a time; prepares its operations and opens its states."""

    def __init__(self, plan: RequestPlan, config: Config, log: CommittedLog | None) -> None:
        self._function, (self._entry, *nodes), self._last = plan.function, plan.nodes, plan.nodes[-1]
        self._steps = [(node, _carrying(node)) for node in nodes]  # as declared, and as it runs over numbered rows
        self._gate = log.gate if isinstance(log, OwnLog) else None
        self._states = RequestStates(plan, config, log)
        self._numbers, self._bounds = itertools.count(1), Bounds.of(config.as_mapping())
        self._operations = list({id(each): each for node in plan.nodes for each in node.operations}.values())
        context = TridentOperationContext()
        for operation in self._operations:
            if has(operation, "prepare"):
                operation.prepare(config.as_mapping(), context)

    def answers(self, args: Sequence[str]) -> list[Answer]:
        """Answer all requests in order, at one committed snapshot; `StepFailed` does not say for which one a step failed."""
        run = StepRun(TransactionAttempt(next(self._numbers), 0), TupleErrors(bounds=self._bounds), self._states)

        def read() -> list[Answer]:
            self._states.renew()
            return self._apply_steps(args, run)

        return read_in_rounds(read, lambda error: isinstance(cause_of(error), StaleTransactionError), self._gate)

    def _apply_steps(self, args: Sequence[str], run: StepRun) -> list[Answer]:
        numbers = pa.array(range(len(args)), pa.int64())
        tables = {self._entry.id: pa.table([strict_array(args, pa.string()), numbers], [*self._entry.fields, _REQUEST])}
        for node, carrying in self._steps:
            with failing_at(node.id):
                tables[node.id] = _apply(node, carrying, [tables[id_] for id_ in node.parents], len(args), run)
        table, rows_of = tables[self._last.id], [Answer() for _ in args]
        columns = [python_of(table.column(name)) for name in self._last.fields.names]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), table.num_rows)
        for number, row in zip(table.column(_REQUEST).to_pylist(), rows, strict=True):
            rows_of[number].append(list(row))
        return rows_of

    def answer(self, args: str) -> Answer:
        """Answer one request, in the thread that asks; `DRPCExecutionException` if it fails."""
        check_args(self._function, args)
        try:
            return self.answers([args])[0]
        except (Exception, SystemExit) as error:
            raise _execution_error(self._function, error) from error

    def close(self) -> None:
        """End the operations and close the states; an error of one does not keep the others open."""
        for end in [*(op.cleanup for op in self._operations if has(op, "cleanup")), self._states.close]:
            try:
                end()
            except Exception:
                logger.exception("DRPC: closing failed")


def _carrying(node: Node) -> Step:
    """Return the step that keeps the number of the request beside all fields."""
    if isinstance(node, AggregateNode):
        members = tuple(replace(one, group=_NUMBER.concat(one.group)) for one in node.members)
        node = replace(node, fields=_NUMBER.concat(node.fields), members=members)
    elif isinstance(node, JoinNode):
        keys = len(node.groups[0])
        names, types = list(node.fields.names), list(node.fields.types)
        node = replace(
            node,
            fields=Fields.of([*names[:keys], _REQUEST, *names[keys:]], [*types[:keys], "bigint", *types[keys:]]),
            inputs=tuple(fields.concat(_NUMBER) for fields in node.inputs),
            groups=tuple(group.concat(_NUMBER) for group in node.groups),
        )
    elif isinstance(node, SelectNode):
        node = replace(node, fields=node.fields.concat(_NUMBER), expressions=(*node.expressions, col(_REQUEST)))
    elif isinstance(node, MergeNode):
        inputs = tuple(fields.concat(_NUMBER) for fields in node.inputs)
        node = replace(node, fields=node.fields.concat(_NUMBER), inputs=inputs)
    return Step(node.id, node.parents, node, tuple(dict.fromkeys([*node.fields.names, _REQUEST])))


def _apply(node: Node, carrying: Step, sources: list[pa.Table], requests: int, run: StepRun) -> pa.Table:
    if isinstance(node, JoinNode) and not node.preserve:
        return join(carrying.node, sources, run.on_error.bounds)
    from_unknown_rows = isinstance(node, MapNode) and isinstance(node.function, ArrowFunction)
    if from_unknown_rows or isinstance(node, (JoinNode, MultiReduceNode)):
        return _one_by_one(node, sources, requests, run)
    if isinstance(node, RepartitionNode) and node.routing.kind == "custom":
        # The rows of the only partition; a user's function may send a row there several times, or nowhere.
        sink = Sink(node.id, node.parents[0], node.fields, routing=node.routing)
        exchange = Exchange(node, (node.fields,), 1)
        frames = route(sink, exchange, sources, (node.id, 0, 0), run)
        return pa.concat_tables([sources[0].slice(0, 0), *(frame.data for frame in frames)])
    done = run_step(carrying, sources, run)
    if not isinstance(node, AggregateNode) or len(node.group) or node.partial:
        return done
    without_rows = sorted(set(range(requests)).difference(sources[0].column(_REQUEST).to_pylist()))
    nothing = sources[0].slice(0, 0)
    tables = [_with_number(aggregate(node.id, node, nothing, run), number, done) for number in without_rows]
    return pa.concat_tables([done, *tables])


def _one_by_one(node: Node, sources: list[pa.Table], requests: int, run: StepRun) -> pa.Table:
    tables = []
    for number in range(requests):
        own = [source.filter(pc.equal(source.column(_REQUEST), number)) for source in sources]
        if isinstance(node, JoinNode):
            table = join(node, own)
        elif isinstance(node, MultiReduceNode):
            table = multi_reduce(node, own, run)
        else:
            table = run_step(Step(node.id, node.parents, node, node.fields.names), own, run)
        tables.append(_with_number(table, number))
    return pa.concat_tables(tables)


def _with_number(table: pa.Table, number: int, like: pa.Table | None = None) -> pa.Table:
    numbered = table.append_column(_REQUEST, pa.array([number] * table.num_rows, pa.int64()))
    return numbered if like is None else numbered.select(like.column_names)


def check_args(function: str, args: object) -> None:
    if not isinstance(args, str):
        raise DRPCExecutionException(function, f"the arguments must be one text, got {args!r}", reason="invalid")
    try:
        args.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON can express
        cause = f"the arguments are not a text that UTF-8 can encode ({error})"
        raise DRPCExecutionException(function, cause, reason="invalid") from None


def unknown_function(function: str, topology: str, known: Sequence[str]) -> DRPCExecutionException:
    return DRPCExecutionException(function, f"topology {topology!r} has the functions {list(known)}", reason="unknown")


def cause_of(error: BaseException) -> BaseException:
    """Return what user code or a store raised, of an error that came out of a step."""
    while isinstance(error, StepFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error


@dataclass(eq=False)
class _Request:
    args: str
    answer: Future[Answer] = field(default_factory=Future)


class DRPCFunction:
    """One function, to be asked from any thread: its waiting requests, and the threads that answer all of them at once."""

    def __init__(self, name: str, executors: Sequence[RequestExecutor], max_batch: int) -> None:
        self.name, self._max_batch = name, max_batch
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(executor,), name=f"trident-drpc-{name}-{number}", daemon=True)
            for number, executor in enumerate(executors)
        ]
        for thread in self._threads:
            thread.start()

    def execute(self, args: str, timeout: float | None = None) -> Answer:
        """Ask and wait for the answer: the rows of the function's last step, `[]` if there are none.

        Raises `DRPCExecutionException`: a step failed, or there was no answer within `timeout` seconds.
        """
        answer = self.submit(args)
        try:
            return answer.result(waitable(timeout))
        except TimeoutError:
            self.forget(answer)
            raise DRPCExecutionException(self.name, f"no answer within {timeout} s", reason="timeout") from None

    def submit(self, args: str) -> Future[Answer]:
        """Ask; the future gives the answer or raises `DRPCExecutionException`. Cancelled in time, it is not run."""
        check_args(self.name, args)
        request = _Request(args)
        with self._changed:
            if self._closed:
                raise self._stopped_error()
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    @property
    def waiting(self) -> int:
        """How many requests wait for others to be answered."""
        return len(self._waiting)

    def forget(self, answer: Future[Answer]) -> None:
        """Cancel a request that is no longer waited for; if it has not started, it never runs."""
        if answer.cancel():
            with self._changed:
                self._waiting = deque(one for one in self._waiting if one.answer is not answer)

    def close(self) -> None:
        """Refuse what waits and let the threads end; one that is stuck in user code is left behind."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for request in waiting:
            if request.answer.set_running_or_notify_cancel():
                request.answer.set_exception(self._stopped_error())
        for thread in self._threads:
            thread.join(_CLOSE_WAIT_S)
            if thread.is_alive():
                logger.warning("DRPC function %s: a request is still running; it is abandoned", self.name)

    def __repr__(self) -> str:
        return f"DRPCFunction({self.name!r})"

    def _stopped_error(self) -> DRPCExecutionException:
        return DRPCExecutionException(self.name, "the topology or the server was stopped", reason="stopped")

    def _serve(self, executor: RequestExecutor) -> None:
        while requests := self._take():
            self._answer(executor, [one for one in requests if one.answer.set_running_or_notify_cancel()])
        executor.close()

    def _take(self) -> list[_Request]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]

    def _answer(self, executor: RequestExecutor, requests: list[_Request]) -> None:
        """Find the requests that fail by halves; a store that does not answer, or is the wrong one, fails all at once."""
        if not requests:
            return
        try:
            answers = executor.answers([one.args for one in requests])
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code may raise anything; the clients get the error
            if len(requests) > 1 and not isinstance(cause_of(error), (BackendError, StateMismatchError)):
                half = len(requests) // 2
                self._answer(executor, requests[:half])
                self._answer(executor, requests[half:])
                return
            for request in requests:
                request.answer.set_exception(_execution_error(self.name, error))
            return
        for request, answer in zip(requests, answers, strict=True):
            request.answer.set_result(answer)


def _execution_error(function: str, error: BaseException) -> DRPCExecutionException:
    if isinstance(error, StepFailed):
        failure = error.failure
        on = f" on tuple {failure.row}" if failure.row is not None else ""
        return DRPCExecutionException(function, f"{failure.cause}{on}", failure.step)
    return DRPCExecutionException(function, describe(error))
