"""What runs in a worker: read parts of a batch, apply the fused steps, aggregate in part, hand back Arrow.

A worker process keeps the unpickled program of each topology it served, so a batch ships only its parts.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import StateNode
from trident.operations.interfaces import TridentOperationContext
from trident.planner import Fragment
from trident.runtime.aggregates import partial
from trident.runtime.rows import Failure, Poison, StepFailed, failure_of
from trident.runtime.steps import apply_step
from trident.state.interfaces import StateConf

__all__ = ["Program", "TaskOutput", "WorkerProgram", "run_fragment", "run_part"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Program:
    """What a worker needs of a topology: fragments and emitters of the spouts, static states, settings."""

    topology: str
    fragments: Mapping[str, Fragment]
    emitters: Mapping[str, Any]
    states: Mapping[str, StateNode]
    settings: Mapping[str, Any]


@dataclass
class TaskOutput:
    """What one part of a batch gave.

    Attributes
    ----------
    sinks
        Tables by the id of the entry that they are the input of.
    tuples
        How many tuples the spout emitted.
    failure
        Why the part failed; nothing else counts then.
    captured
        Tuples that were put aside.
    """

    sinks: dict[str, list[pa.Table]] = field(default_factory=dict)
    tuples: int = 0
    failure: Failure | None = None
    captured: list[Failure] = field(default_factory=list)


class WorkerProgram:
    """A program, prepared once in this process.

    Parameters
    ----------
    more
        Further operations to prepare.
    prepared
        Operations that are prepared (and cleaned up) elsewhere in this process.
    """

    def __init__(self, program: Program, more: Sequence[Any] = (), prepared: Sequence[Any] = ()) -> None:
        self.program = program
        self._states: dict[str, Any] = {}
        own = [*(op for fragment in program.fragments.values() for op in operations_of(fragment)), *more]
        elsewhere = {id(operation) for operation in prepared}
        distinct = {id(operation): operation for operation in own if id(operation) not in elsewhere}
        self.operations = list(distinct.values())
        context = TridentOperationContext()
        for operation in self.operations:
            if hasattr(operation, "prepare"):
                operation.prepare(program.settings, context)

    def state(self, name: str) -> Any:
        """Return a static state, made when first asked for."""
        if name not in self._states:
            node = self.program.states[name]
            conf = StateConf(self.program.topology, name, settings=self.program.settings, read_only=True)
            self._states[name] = node.spec.factory.make_state(conf, 0, node.spec.required_num_partitions or 1)
        return self._states[name]

    def cleanup(self) -> None:
        """End every operation; an error of one does not keep the others from ending."""
        for operation in self.operations:
            try:
                if hasattr(operation, "cleanup"):
                    operation.cleanup()
            except Exception:
                logger.exception("cleanup of %r failed", operation)


def operations_of(fragment: Fragment) -> Iterator[Any]:
    """Iterate over the user objects of a fragment: its operations and the aggregators of its sinks."""
    for step in fragment.steps:
        for name in ("function", "filter", "consumer"):
            if hasattr(step.node, name):
                yield getattr(step.node, name)
    for sink in fragment.sinks:
        if sink.aggregation is not None:
            yield sink.aggregation.aggregator


def run_part(worker: WorkerProgram, spout: str, part: Any, capture: bool) -> TaskOutput:
    """Read one part and run its fragment. What fails comes back as data, not as an exception."""
    output = TaskOutput()
    poison = Poison(capture)
    try:
        fragment = worker.program.fragments[spout]
        for table in _read(worker.program.emitters[spout], fragment, part):
            output.tuples += table.num_rows
            for target, tables in run_fragment(fragment, table, poison, worker.state).items():
                output.sinks.setdefault(target, []).extend(tables)
    except StepFailed as error:
        return TaskOutput(failure=error.failure)
    except Exception as error:  # noqa: BLE001  whatever a spout or kernel raises fails the attempt, not the process
        return TaskOutput(failure=failure_of(spout, error))
    output.captured = poison.captured
    return output


def _read(emitter: Any, fragment: Fragment, part: Any) -> Iterator[pa.Table]:
    schema = schema_of(fragment.fields)
    try:
        for data in emitter.emit(part):
            table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
            if table.schema.names != schema.names:
                cause = f"emitted the columns {table.schema.names}, but the fields are {schema.names}"
                raise StepFailed(Failure(fragment.entry, None, cause, retry=False))
            # A wider or a dictionary encoding of the declared type is made that type; what does not fit raises.
            yield table if table.schema.types == schema.types else table.cast(schema)
    except StepFailed:
        raise
    except Exception as error:
        raise StepFailed(failure_of(fragment.entry, error)) from error


def run_fragment(
    fragment: Fragment, table: pa.Table, poison: Poison, states: Callable[[str], Any]
) -> dict[str, list[pa.Table]]:
    """Apply a fragment's steps to a table of its entry; return the sinks' inputs, combiners already in part."""
    tables = {fragment.entry: table}
    for step in fragment.steps:
        try:
            tables[step.id] = apply_step(step, tables[step.source], poison, states)
        except StepFailed:
            raise
        except Exception as error:  # a kernel that has no answer for a column, or a static state that cannot be opened
            raise StepFailed(failure_of(step.id, error)) from error
    result: dict[str, list[pa.Table]] = {}
    for sink in fragment.sinks:
        data = tables[sink.source].select(list(sink.fields.names))
        if sink.aggregation is not None and sink.aggregation.combines:
            try:
                data = partial(sink.target, sink.aggregation, data, poison)
            except StepFailed:
                raise
            except Exception as error:
                raise StepFailed(failure_of(sink.target, error)) from error
        result.setdefault(sink.target, []).append(data)
    return result


# ---- in a Spark task --------------------------------------------------------------------------------------------------

_PROGRAMS_KEPT = 8
_programs: dict[str, WorkerProgram] = {}


def _worker(program_id: str, pickled: bytes) -> WorkerProgram:
    """Return the program as this process has it; that of the topology served longest ago makes room for a new one."""
    if program_id not in _programs:
        if len(_programs) == _PROGRAMS_KEPT:
            _programs.pop(next(iter(_programs))).cleanup()
        _programs[program_id] = WorkerProgram(cloudpickle.loads(pickled))
    _programs[program_id] = _programs.pop(program_id)
    return _programs[program_id]


def _cleanup() -> None:
    for worker in _programs.values():
        worker.cleanup()


atexit.register(_cleanup)


def run_task(program_id: str, pickled: bytes, parts: Iterator[tuple[str, Any, bool]]) -> Iterator[bytes]:
    """The body of a Spark task: run parts one after the other; each gives one frame of bytes."""
    try:
        worker = _worker(program_id, pickled)
    except Exception as error:  # noqa: BLE001  an operation's prepare may raise anything; it fails the attempt as data
        list(parts)  # Spark keeps a worker only if it reads all of its input
        yield pack(TaskOutput(failure=failure_of("prepare", error)))
        return
    for spout, part, capture in parts:
        yield pack(run_part(worker, spout, part, capture))


def pack(output: TaskOutput) -> bytes:
    """Return an output as bytes: Arrow IPC for the tables."""
    sinks = {target: [_ipc(table) for table in tables] for target, tables in output.sinks.items()}
    return bytes(cloudpickle.dumps((sinks, output.tuples, output.failure, output.captured)))


def unpack(data: bytes) -> TaskOutput:
    """Return what `pack` packed. The bytes come from this topology's own tasks, never from a store or a network peer."""
    sinks, tuples, failure, captured = cloudpickle.loads(data)
    tables = {target: [pa.ipc.open_stream(blob).read_all() for blob in blobs] for target, blobs in sinks.items()}
    return TaskOutput(tables, tuples, failure, captured)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def merge_outputs(outputs: Sequence[TaskOutput]) -> TaskOutput:
    """Put the outputs of all parts together; the first failure wins."""
    whole = TaskOutput()
    for output in outputs:
        if output.failure is not None:
            return TaskOutput(failure=output.failure)
        whole.tuples += output.tuples
        whole.captured.extend(output.captured)
        for target, tables in output.sinks.items():
            whole.sinks.setdefault(target, []).extend(tables)
    return whole
