"""Spouts as the driver loop sees them: one coordinator each, whatever interface the user implemented."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import TableEmitter, TablePart, cut_table, row_of
from trident.config import Config
from trident.errors import ReplayMismatchError, SpoutError, TopologyError
from trident.fields import Fields
from trident.plan import Plan
from trident.plan.plan import spout_type_of
from trident.roles import adapt
from trident.run.partitioned_spouts import PartitionedTridentSpoutExecutor, checksum, read_said, table_of_emitted
from trident.spout.interfaces import (
    Away,
    BatchCoordinator,
    Definition,
    IBatchSpout,
    ITridentSpout,
    SpoutType,
    ThrottledCoordinator,
    TransactionAttempt,
    coordinator_of,
)
from trident.spout.partitioned import PartitionedSpout
from trident.spout.rich import IRichSpout, RichSpoutDefaults, TopologyContext, fields_of_rich_spout
from trident.types import plain_number

_log = logging.getLogger(__name__)


def open_spouts(
    plan: Plan, config: Config, closing: Callable[[Callable[[], object]], None]
) -> tuple[dict[str, BatchCoordinator], set[str], dict[str, Any]]:
    """Open a plan's spouts; return their coordinators, which are transactional, and, for the workers, their emitters."""
    coordinators, repeated, emitters = {}, set[str](), {}
    # folders that the topology writes, each with a name such as its files there have
    own = {state.spec.place: "part-0.snappy.parquet" for state in plan.states.values() if state.spec.place}
    if config.log_dir:
        own[config.log_dir] = "00000001-0001.log"
    for node in plan.spouts:
        settings = {**config.as_mapping(), "topology": plan.topology, "stream": node.id, "own_files": own}
        spout = as_trident_spout(node.spout, node.id)
        coordinators[node.id] = coordinator_of(spout.get_coordinator(settings), node.id)
        closing(coordinators[node.id].close)
        repeated |= {node.id} if spout_type_of(spout) is SpoutType.TRANSACTIONAL else set()
        emitters[node.id] = spout.get_emitter(settings)
    return coordinators, repeated, emitters


def as_trident_spout(spout: Any, stream: str = "") -> ITridentSpout:
    """Return the spout itself, or one of another kind in its executor; `stream` is the name of its stream."""
    if isinstance(spout, PartitionedSpout):
        return PartitionedTridentSpoutExecutor(spout)
    if isinstance(spout, ITridentSpout):
        return spout
    return BatchSpoutExecutor(spout) if isinstance(spout, IBatchSpout) else RichSpoutBatchExecutor(spout, stream)


class _Rows:
    """The collector of an `IBatchSpout`."""

    def __init__(self) -> None:
        self.rows: list[Sequence[Any]] = []

    def emit(self, values: Sequence[Any]) -> None:
        self.rows.append(row_of(values))  # a copy, because the spout may reuse its list


class _DriverBatches(BatchCoordinator):
    """A spout whose rows the driver collects, and its coordinator: the rows of a batch are a table, shipped with the job."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._tables: dict[int, pa.Table] = {}  # by batch, until it is committed

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_emitter(self, conf: Mapping[str, Any]) -> TableEmitter:
        return TableEmitter()

    def size(self, definition: Definition) -> int:
        return int(definition["bytes"])

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        table = self._tables[attempt.txid]
        return cut_table(table, parallelism, fewest=1) if table.num_rows else []


class BatchSpoutExecutor(_DriverBatches):
    """Runs an `IBatchSpout` in the driver: the rows of a batch are collected there and shipped with the job."""

    def __init__(self, spout: IBatchSpout) -> None:
        super().__init__(spout.get_output_fields())
        self._spout, self.spout_type, self._has_warned = spout, spout_type_of(spout), False

    def get_coordinator(self, conf: Mapping[str, Any]) -> BatchSpoutExecutor:
        self._spout.open(conf)
        return self

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        table, said = self._emit_batch(txid)
        if not table.num_rows and said is not True and plain_number(said) is not True:  # NumPy's True is one, too
            if said is None and not self._has_warned:  # neither that there is nothing now nor that a batch is empty
                _log.warning(
                    "%s.emit_batch(%d) emitted nothing and returned None, so it is asked for batch %d again until it emits "
                    "something. Return False to say that there is nothing now, or True if the batch is empty and the next "
                    "one is to be asked for",
                    type(self._spout).__name__, txid, txid,
                )  # fmt: skip
                self._has_warned = True
            return None
        self._tables[txid] = table
        return self._definition(table)

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        """Return the batch's rows in slices; after a restart the spout is asked to emit the batch again."""
        if attempt.txid not in self._tables:
            again, _ = self._emit_batch(attempt.txid)
            found = self._definition(again)
            if any(found.get(each, was) != was for each, was in definition.items() if each in ("rows", "checksum")):
                call = f"{type(self._spout).__name__}.emit_batch({attempt.txid})"
                now, then = (read_said(each["rows"], each.get("checksum")) for each in (found, definition))
                raise ReplayMismatchError(
                    f"{call} gave other rows than when the batch was defined: {now} in place of {then}. A "
                    "transactional spout gives the same again. Let it do so and start again, or declare it as what it is: "
                    "spout_type = SpoutType.OPAQUE"
                )
            self._tables[attempt.txid] = again
        return super().parts(attempt, definition, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        self._tables.pop(txid, None)
        self._spout.ack(txid)

    def close(self) -> None:
        self._spout.close()

    def _emit_batch(self, txid: int) -> tuple[pa.Table, object]:
        """Let the spout emit a batch; return its rows, and what it says: True if this is the batch even without rows."""
        collector = _Rows()
        said = self._spout.emit_batch(txid, collector)
        call = f"{type(self._spout).__name__}.emit_batch({txid})"
        return table_of_emitted(call, self._fields, collector.rows), said

    def _definition(self, table: pa.Table) -> dict[str, int]:
        counted = {"rows": table.num_rows, "bytes": table.nbytes if table.num_rows else 0}
        return counted | {"checksum": checksum([table])} if self.spout_type is SpoutType.TRANSACTIONAL else counted


class RichSpoutBatchExecutor(_DriverBatches, ThrottledCoordinator):
    """Runs an `IRichSpout` in the driver. At-least-once: message ids are failed when an attempt at their batch has ended."""

    spout_type = SpoutType.NON_TRANSACTIONAL

    def __init__(self, spout: IRichSpout, stream: str) -> None:
        self._spout, self._stream, self._name = spout, stream, type(spout).__name__
        super().__init__(fields_of_rich_spout(spout))
        self._besides: RichSpoutDefaults = adapt(RichSpoutDefaults, spout)
        if not 1 <= self._besides.max_batch_size < math.inf:
            raise TopologyError(f"{self._name}.max_batch_size is {self._besides.max_batch_size}; it must be at least 1")
        self._active = False
        # Values and message ids, emitted beyond the end of a batch.
        self._waiting: deque[tuple[Sequence[Any], Any]] = deque()
        self._ids: dict[int, list[Any]] = {}  # of the messages of a batch, until it is committed or fails

    def get_coordinator(self, conf: Mapping[str, Any]) -> RichSpoutBatchExecutor:
        self._spout.open(conf, TopologyContext(self._stream), self)
        self.activate()
        return self

    def emit(self, values: Sequence[Any], message_id: Any = None, stream_id: str = "default") -> None:
        if stream_id != "default":
            raise SpoutError(
                f"{self._name} emitted to the stream {stream_id!r}; in a Trident topology a spout has one stream"
            )
        self._waiting.append((row_of(values), message_id))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Let the spout emit a batch; attempts at it and at later ones have ended."""
        self._fail_from(txid)
        most = self._most(self._besides.max_batch_size)
        while len(self._waiting) < most:
            before = len(self._waiting)
            self._spout.next_tuple()
            if len(self._waiting) == before:
                break
        if not self._waiting:
            return None
        emitted = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        ids = [message_id for _, message_id in emitted if message_id is not None]
        try:
            table = table_of_emitted(f"{self._name}.next_tuple()", self._fields, [values for values, _ in emitted])
        except SpoutError:
            for message_id in ids:
                self._spout.fail(message_id)
            raise
        self._tables[txid], self._ids[txid] = table, ids
        return {"rows": table.num_rows, "bytes": table.nbytes}

    def refresh(self) -> None:
        self._besides.refresh()

    def may_have_more(self) -> bool:
        return self._besides.may_have_more()

    def unavailable(self) -> Away | None:
        return self._besides.unavailable()

    def success(self, txid: int, definition: Definition) -> None:
        del self._tables[txid]
        for message_id in self._ids.pop(txid):
            self._spout.ack(message_id)

    def activate(self) -> None:
        if not self._active:
            self._active = True
            self._besides.activate()

    def deactivate(self) -> None:
        if self._active:
            self._active = False
            self._besides.deactivate()

    def close(self) -> None:
        try:
            self._fail_from(0)
            self.deactivate()
        finally:
            self._spout.close()

    def _fail_from(self, txid: int) -> None:
        for ended in sorted(each for each in self._ids if each >= txid):
            self._tables.pop(ended, None)
            for message_id in self._ids.pop(ended):
                self._spout.fail(message_id)
