"""What runs the parts of a batch: the interface, and the runner of this process. The one on Spark is in `spark_runner.py`.

A program as bytes for Spark's workers; what cannot be pickled is named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

import cloudpickle

from trident.errors import TopologyError, describe
from trident.graph import Node, PeekNode, ProjectNode
from trident.operations.names import operation_name
from trident.runtime.engine.hops import destinations_of
from trident.runtime.engine.routing import RowFrame, with_partitions
from trident.runtime.engine.task_output import TaskOutput, merge_outputs
from trident.runtime.engine.worker import (
    Order,
    Part,
    Program,
    captures,
    operations_of,
    run_entry,
    run_part,
    with_empty_parts,
)
from trident.runtime.steps.failures import StepFailed
from trident.spout.interfaces import TransactionAttempt

__all__ = ["InProcessRunner", "Part", "Runner", "captures", "of_width", "pickled", "processed", "unseen"]


class Runner(Protocol):
    """Processes the parts of one attempt. Thread-safe: several attempts may run at once.

    Attributes
    ----------
    here
        Whether it works in the caller's thread and never waits.
    parallelism
        About how many parts a batch is cut into; also the number of partitions of an exchange that declares none.
    program
        The program that runs, with these numbers of partitions.
    commits
        The entries that its tasks commit; the others are committed by the driver.
    operations
        The user objects that are prepared in this process.
    """

    here: bool = False
    parallelism: int
    program: Program
    commits: Collection[str] = ()
    operations: Sequence[Any] = ()

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Run all parts and the exchanges behind them; blocks until done. Failures come back as data.

        With an order the states of `commits` are committed too; without one, the output keeps what is needed for that.
        """

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        """Commit what `process` kept to the states of `commits`; return the output of both."""
        return output

    def of_size(self, size: int | None) -> Runner:
        """Return the runner for a batch of about `size` bytes (None: unknown), often this one."""
        return self

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ask a running attempt to stop, if that is possible; its result is ignored in any case."""
        return

    def close(self) -> None:
        """Release what the runner started."""
        return


class InProcessRunner(Runner):
    """Runs the stages in this process, without Spark."""

    here = True

    def __init__(self, program: Program, parallelism: int = 1) -> None:
        self.parallelism = parallelism
        self.program = of_width(program, self.parallelism)
        pickled(program)  # refuse what cannot be pickled, so that a test fails as a cluster would
        self.worker = self.program.opened()
        self._destinations = destinations_of(self.program)
        self.operations = self.worker.operations

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Run all parts one after the other, then level after level of exchanges, in the caller's thread."""
        parts = with_empty_parts(self.program, parts)
        outputs = [run_part(self.worker, attempt, index, *part) for index, part in enumerate(parts)]
        if self._destinations:
            outputs = self._exchanged(outputs, Order(attempt, captures(parts)))
        return outputs[0] if len(outputs) == 1 else merge_outputs(outputs)

    def _exchanged(self, outputs: list[TaskOutput], order: Order) -> list[TaskOutput]:
        """Run level after level of exchanges, with what arrives there."""
        for destinations in self._destinations:
            merged = merge_outputs(outputs)
            if merged.failure is not None:
                return [merged]
            frames, merged.frames = merged.frames, []
            arrived: dict[tuple[str, int], list[RowFrame]] = {destination: [] for destination in destinations}
            for frame in frames:
                arrived.get((frame.target, frame.partition), merged.frames).append(frame)
            outputs = [merged]
            outputs += [
                run_entry(self.worker, order, *destination, arrived[destination]) for destination in destinations
            ]
        return outputs

    def close(self) -> None:
        self.worker.cleanup()


def tag_of(runner: str, attempt: TransactionAttempt) -> str:
    """Return the tag of an attempt's jobs, without a comma; another topology in the session has attempts of the same number."""
    return f"{runner}/{attempt.txid}:{attempt.attempt}"


def processed(runner: Runner, attempt: TransactionAttempt, parts: Sequence[Part]) -> TaskOutput:
    """Process a batch a second time; `StepFailed` if that fails."""
    output = runner.process(attempt, parts)
    if output.failure is not None:
        raise StepFailed(output.failure)
    return output


def unseen(node: Node) -> Node:
    """Return a step as it is the second time: a `peek` has seen the tuples, and what it does would be done again."""
    return ProjectNode(node.id, node.parents, node.fields) if isinstance(node, PeekNode) else node


def of_width(program: Program, parallelism: int) -> Program:
    """Return the program with so many partitions of each exchange that declares none."""
    return replace(program, exchanges=with_partitions(program.exchanges, parallelism))


def pickled(program: Program) -> bytes:
    """Pickle the program for the workers; the error names an operation that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(program))
    except Exception as error:
        raise TopologyError(_blame(program, error)) from error


def _has(node: Any, operation: Any) -> bool:
    return any(own is operation for own in [*vars(node).values(), *node.operations])


def _blame(program: Program, error: Exception) -> str:
    for fragment in program.fragments.values():
        for operation in operations_of(program, fragment.entry):
            step = next((s.id for s in fragment.steps if _has(s.node, operation)), fragment.entry)
            try:
                cloudpickle.dumps(operation)
            except Exception as own:  # noqa: BLE001  pickling runs user code
                name = operation_name(operation)
                return (
                    f"step {step!r}: {name} cannot be sent to Spark workers ({describe(own)}). It or something it closes "
                    "over holds a lock, a connection or an open file: open such things in prepare(conf, context)"
                )
    for name, emitter in program.emitters.items():
        try:
            cloudpickle.dumps(emitter)
        except Exception as own:  # noqa: BLE001  pickling runs user code
            return f"the spout of stream {name!r} cannot be sent to Spark workers ({describe(own)})"
    return f"the topology cannot be sent to Spark workers: {describe(error)}"
