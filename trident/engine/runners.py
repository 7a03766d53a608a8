"""What runs the parts of a batch: the interface, the runner of this process, and the one that opens Spark for large batches."""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import cloudpickle

from trident.engine.fragment_runs import TaskOutput, merge_outputs
from trident.engine.routing import RowFrame
from trident.engine.worker import Order, Part, Program, operations_of, run_entry, run_parts
from trident.errors import ConfigError, EnvironmentProblem, TopologyError, describe
from trident.graph import Node, PeekNode, ProjectNode
from trident.operations.names import operation_name
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import StepFailed, failure_of


class Runner(Protocol):
    """Processes the parts of one attempt. Thread-safe: several attempts may run at once.

    `parallelism`: about how many parts a batch is cut into; also the number of partitions of an exchange that declares none.
    """

    here: bool = False  # whether it works in the caller's thread and never waits
    parallelism: int
    program: Program  # the program that runs, with these numbers of partitions
    commits: Collection[str] = ()  # the entries that its tasks commit; the others are committed by the driver
    operations: Sequence[Any] = ()  # the user objects that are prepared in this process

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        """Run all parts and the exchanges behind them; blocks until done. Failures come back as data."""
        # If the order has txids, the states of `commits` are committed too; if not, the output keeps what is needed for that.

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        """Commit what `process` kept to the states of `commits`; return the output of both."""
        return output

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
        self.program = program.of_width(parallelism)
        pickle_program(program)  # refuse what cannot be pickled, so that a test fails as a cluster would
        self.worker = self.program.open_worker()
        self._destinations = self.program.destinations
        self.operations = self.worker.operations

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        outputs = run_parts(self.worker, parts, order)
        if self._destinations:
            outputs = self._run_exchanges(outputs, order)
        return outputs[0] if len(outputs) == 1 else merge_outputs(outputs)

    def _run_exchanges(self, outputs: list[TaskOutput], order: Order) -> list[TaskOutput]:
        for destinations in self._destinations:
            merged = merge_outputs(outputs)
            if merged.failure is not None:
                return [merged]
            frames, merged.frames = merged.frames, []
            arrived: dict[tuple[str, int], list[RowFrame]] = {destination: [] for destination in destinations}
            # What is for a later level, or for the driver, waits with the output.
            for frame in frames:
                arrived.get((frame.target, frame.partition), merged.frames).append(frame)
            outputs = [merged]
            outputs += [
                run_entry(self.worker, order, *destination, arrived[destination]) for destination in destinations
            ]
        return outputs

    def close(self) -> None:
        self.worker.cleanup()


class AutoRunner(Runner):
    """Opens a runner on Spark when a batch needs it; those of at most `most_bytes` run in this process."""

    # Without `most_bytes` all run on Spark, which says how wide they are: so it is opened before the first one is cut.

    def __init__(
        self,
        program: Program,
        parallelism: int,
        open_: Callable[[], Runner],
        commits: Collection[str] = (),
        most_bytes: int | None = None,
        opened: Runner | None = None,
    ) -> None:
        self.program, self.parallelism, self.commits, self._most_bytes = program, parallelism, commits, most_bytes
        self._small: InProcessRunner | None = None
        if most_bytes is not None:
            self._small = InProcessRunner(program, parallelism)
            self.program, self.operations = self._small.program, self._small.operations
        self._open, self._opened, self._closed = open_, opened, False
        self._large: Runner = self if opened is None else opened
        self._lock = threading.Lock()

    def of_size(self, size: int | None) -> Runner:
        """Return the runner for a batch of about `size` bytes; raise why Spark cannot be opened, if it must be."""
        # By the definition of a batch alone, so that a replay of it runs where the batch ran.
        if self._small is None or self._most_bytes is None:
            runner = self._runner()
            if runner is not None:
                self.program, self.parallelism = runner.program, runner.parallelism
        elif size is not None and size <= self._most_bytes:
            return self._small
        return self._large

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        # If Spark cannot be opened the batch fails, and another try would not help.
        try:
            runner = self._runner()
        except (ConfigError, EnvironmentProblem) as error:
            return TaskOutput(failure=failure_of("spark", error, retry=False))
        return runner.process(parts, order) if runner is not None else TaskOutput()

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        runner = self._runner()
        return runner.commit(output, order) if runner is not None else output

    def _runner(self) -> Runner | None:
        # Once this is closed there is none, because then the result is not used.
        with self._lock:
            if self._opened is None and not self._closed:
                self._opened = self._open()
            return None if self._closed else self._opened

    def cancel(self, attempt: TransactionAttempt) -> None:
        opened = self._opened  # without the lock, which is held while Spark starts
        if opened is not None:
            opened.cancel(attempt)

    def close(self) -> None:
        try:
            # With the lock: a batch may be opening Spark, and what it opens would never be closed.
            with self._lock:
                self._closed = True
                if self._opened is not None:
                    self._opened.close()
        finally:
            if self._small is not None:
                self._small.close()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tag_of(runner: str, attempt: TransactionAttempt) -> str:
    # Without a comma; and another topology in the session has attempts of the same number.
    return f"{runner}/{attempt.txid}:{attempt.attempt}"


def process_or_raise(runner: Runner, parts: Sequence[Part], order: Order) -> TaskOutput:
    output = runner.process(parts, order)
    if output.failure is not None:
        raise StepFailed(output.failure)
    return output


def without_peek(node: Node) -> Node:
    # The second time a `peek` has seen the tuples, and what it does would be done again.
    return ProjectNode(node.id, node.parents, node.fields) if isinstance(node, PeekNode) else node


def pickle_program(program: Program) -> bytes:
    """Pickle the program for the workers; the error names an operation that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(program))
    except Exception as error:
        raise TopologyError(_blame(program, error)) from error


def _blame(program: Program, error: Exception) -> str:
    for fragment in program.fragments.values():
        for operation in operations_of(program, fragment.entry):
            steps = ((step.id, [*vars(step.node).values(), *step.node.operations]) for step in fragment.steps)
            step = next((id_ for id_, own in steps if any(one is operation for one in own)), fragment.entry)
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
