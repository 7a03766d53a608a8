"""ReplayCheck: processes some batches a second time, and compares what reaches the states, because a replay must give the same.

Before a batch is processed, a hash of its txid says whether it is one of them: the same at a replay. A copy of the topology's
steps, in this process whatever the engine, processes the same rows again, as they came or backwards and in other tables (and if
it is Spark that processes the batch, a first time too). If what reaches a state differs, `replay_causes.py` finds the step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

import cloudpickle
import pyarrow as pa

from trident.graph import RepartitionNode
from trident.operations.metrics import counting
from trident.planner import Sink
from trident.runtime.engine.fragment_runs import PutBack
from trident.runtime.engine.replay_causes import (
    StepDifference,
    cause_of,
    difference_of,
    is_by_order,
    reaching,
    turned,
)
from trident.runtime.engine.runners import InProcessRunner, Part, captures, pickled, processed, unseen
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Program, operations_of, read_part
from trident.runtime.steps.failures import TupleErrors, failure_of
from trident.runtime.steps.removed_keys import are_removals
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.worker_input import MARKS
from trident.spout.interfaces import TransactionAttempt

logger = logging.getLogger(__name__)

_MOST_BYTES = 64 << 20
"""A larger batch is not processed twice, because its rows are all in the memory of this process."""

_CLOSE_S = 1.0


class Checked(NamedTuple):
    """What processing a batch twice showed.

    `done`: False if that failed.
    `difference`: the first difference; None if there is none.
    """

    done: bool
    difference: StepDifference | None = None


class ReplayCheck:
    """Processes some batches twice. Thread-safe: one batch after the other.

    `program`: the steps in front of the states.
    `share`: which share of the batches, 0 … 1.
    `parallelism`: as of the runner whose outputs are compared.
    """

    def __init__(self, program: Program, share: float = 1.0, parallelism: int = 2) -> None:
        self._program, self._share, self._parallelism = program, share, parallelism
        self._lock = threading.Lock()
        self._runner: InProcessRunner | None = None
        self._has_warned = False
        self._may_turn = not _goes_by_order(program)
        sinks = (sink for fragment in program.fragments.values() for sink in fragment.sinks)
        self._sinks = {(sink.target, sink.port): sink for sink in sinks if sink.target not in program.exchanges}

    def chooses(self, txid: int, parts: Sequence[Part], size: int) -> bool:
        """Whether a batch of about `size` bytes is to be processed twice."""
        if self._hash(txid) >= self._share * (1 << 32):
            return False
        if not parts or size > _MOST_BYTES or captures(parts):
            return False
        return not any(isinstance(part, PutBack) for _, part, _ in parts)

    def read(self, parts: Sequence[Part]) -> list[Part]:
        """Read the rows of a batch, as its processing does; `StepFailed` if a source fails."""
        return [(spout, read_part(self._program, spout, part), capture) for spout, part, capture in parts]

    def check(self, attempt: TransactionAttempt, parts: Sequence[Part], output: TaskOutput | None = None) -> Checked:
        """Process a batch a second time, and before that a first time if there is no `output` of that.

        It reads what is not read yet. Whatever goes wrong only ends this check.
        """
        with self._lock, counting():  # what operations count here is of no batch
            try:
                return Checked(True, self._difference(attempt, self.read(parts), output))
            except Exception as error:  # noqa: BLE001  the batch itself went well
                if not self._has_warned:
                    self._has_warned, failure = True, failure_of("", error)
                    logger.warning(
                        "topology %s: batch %s could not be processed twice: step %r: %s; later ones are only counted",
                        self._program.topology, attempt, failure.step, failure.cause,
                    )  # fmt: skip
                return Checked(False)

    def close(self) -> None:
        """Clean up the operations, unless one of them does not return."""
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                if self._runner is not None:
                    self._runner.close()
            finally:
                self._lock.release()

    def _difference(
        self, attempt: TransactionAttempt, parts: Sequence[Part], output: TaskOutput | None
    ) -> StepDifference | None:
        runner = self._runner = self._runner or _copy_of(self._program, self._parallelism)
        run = StepRun(attempt, TupleErrors(bounds=runner.worker.bounds), runner.worker.state)
        first = output or processed(runner, attempt, parts)
        for reordered in self._ways_of(attempt.txid):
            again = processed(runner, attempt, _backwards(parts) if reordered else parts)
            found = self._differing(first, again, run, reordered)
            if found is not None:
                return cause_of(runner.program, run, parts) or found
        return None

    def _ways_of(self, txid: int) -> Sequence[bool]:
        """Return whether the rows come in another order: of a share of the batches in one way each, of all in both."""
        ways = (False, True) if self._may_turn else (False,)
        return ways if self._share == 1 else (ways[self._hash(txid) % len(ways)],)

    def _hash(self, txid: int) -> int:
        return crc32(f"{self._program.topology}/{txid}".encode())

    def _differing(self, first: TaskOutput, second: TaskOutput, run: StepRun, reordered: bool) -> StepDifference | None:
        """Return how what the two runs sent differs for the first state for which it does; None if there is none."""
        for sink in self._sinks.values():
            sent = [_sent(sink, output) for output in (first, second)]
            if any(sent):
                schema = next(table.schema for tables in sent for table in tables)
                one, other = (reaching(sink, tables or [schema.empty_table()], run) for tables in sent)
                if (found := difference_of(sink.target, one, other, reordered)) is not None:
                    return found
        return None


def _backwards(parts: Sequence[Part]) -> list[Part]:
    return [(spout, replace(part, tables=turned(part.tables)), capture) for spout, part, capture in reversed(parts)]


def _copy_of(program: Program, parallelism: int) -> InProcessRunner:
    """Return a runner of operations of its own. Consumers of `peek` are left out: what they do would be done again."""
    fragments = {
        entry: replace(each, steps=tuple(replace(step, node=unseen(step.node)) for step in each.steps))
        for entry, each in program.fragments.items()
    }
    copy = cloudpickle.loads(pickled(replace(program, fragments=fragments, opens=None)))
    return InProcessRunner(copy, parallelism)


def _goes_by_order(program: Program) -> bool:
    """Whether results may depend on the order of the tuples, as they should."""
    exchanges = [exchange.node for exchange in program.exchanges.values()]
    shuffles = any(isinstance(node, RepartitionNode) and node.routing.kind == "shuffle" for node in exchanges)
    if shuffles and any(fragment.blocking for fragment in program.fragments.values()):
        return True  # `shuffle` deals out the tuples in their order, and an aggregate of a partition sees which it got
    return any(is_by_order(operations_of(program, entry)) for entry in program.fragments)


def _sent(sink: Sink, output: TaskOutput) -> list[pa.Table]:
    """Return the tables that were sent to a state."""
    tables: list[Any] = [*output.sinks.get(sink.target, ())]
    tables += [frame.data for frame in output.frames if (frame.target, frame.port) == (sink.target, sink.port)]
    if sink.join is not None:
        return [each for each in tables if each.column_names[0] == MARKS[sink.port]]
    return [each for each in tables if are_removals(each) == (sink.removes is not None)]
