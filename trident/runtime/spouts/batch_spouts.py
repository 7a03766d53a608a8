"""Spouts as the driver loop sees them: one coordinator each, whatever interface the user implemented."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.arrow import row_of
from trident.config import Config
from trident.errors import ReplayMismatchError
from trident.fields import Fields
from trident.planner import Plan
from trident.planner.guarantees import spout_type_of
from trident.runtime.closing import Closers
from trident.runtime.spouts.partitioned_spouts import PartitionedTridentSpoutExecutor
from trident.runtime.spouts.rich_spouts import RichSpoutBatchExecutor, TableEmitter, checksum, slices, table_of_emitted
from trident.spout.interfaces import (
    BatchCoordinator,
    Definition,
    IBatchSpout,
    ITridentSpout,
    SpoutType,
    TransactionAttempt,
    coordinator_of,
)
from trident.spout.spout_kinds import is_partitioned

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpoutHandle:
    """A spout of the running topology, in the driver."""

    name: str
    coordinator: BatchCoordinator
    spout_type: SpoutType


def open_spouts(plan: Plan, config: Config, closers: Closers) -> tuple[dict[str, SpoutHandle], dict[str, Any]]:
    """Open the coordinators of a plan's spouts; returns them and, for the workers, their emitters."""
    handles, emitters = {}, {}
    # folders that the topology writes, each with a name such as its files there have
    own = {state.spec.place: "part-0.snappy.parquet" for state in plan.states.values() if state.spec.place}
    if config.log_dir:
        own[config.log_dir] = "00000001-0001.log"
    for node in plan.spouts:
        settings = {**config.as_mapping(), "topology": plan.topology, "stream": node.id, "own_files": own}
        spout = as_trident_spout(node.spout, node.id)
        handle = handles[node.id] = SpoutHandle(
            node.id, coordinator_of(spout.get_coordinator(settings), node.id), spout_type_of(spout)
        )
        closers.add("spouts", handle.coordinator.close)
        emitters[node.id] = spout.get_emitter(settings)
    return handles, emitters


def as_trident_spout(spout: Any, stream: str = "") -> ITridentSpout:
    """Return the spout itself, or one of another kind in its executor; `stream` is the name of its stream."""
    if is_partitioned(spout):
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


class BatchSpoutExecutor(BatchCoordinator):
    """Runs an `IBatchSpout` in the driver: the rows of a batch are collected there and shipped with the job.

    Different from Storm: a batch without rows is one only if `emit_batch` returns True, so an idle spout costs no empty
    batches; if it returns neither, a warning says so, once. The definition of a transactional spout holds a checksum
    of the rows, which a replay is compared with.
    """

    def __init__(self, spout: IBatchSpout) -> None:
        self._spout = spout
        self.spout_type = spout_type_of(spout)
        self._rows: dict[int, pa.Table] = {}
        self._has_warned = False

    def get_output_fields(self) -> Fields:
        return self._spout.get_output_fields()

    def get_coordinator(self, conf: Mapping[str, Any]) -> BatchSpoutExecutor:
        """Open the spout."""
        self._spout.open(conf)
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> TableEmitter:
        """Return the worker's side; parts are tables already."""
        return TableEmitter()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        table, said = self._emitted(txid)
        if not table.num_rows and said is not True:
            self._warn(txid, said)
            return None
        self._rows[txid] = table
        return self._definition(table)

    def size(self, definition: Definition) -> int | None:
        """Say how many bytes the rows of a batch take."""
        size: int = definition["bytes"]
        return size

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        """Return the batch's rows in slices; after a restart the spout is asked to emit the batch again."""
        if attempt.txid not in self._rows:
            again, _ = self._emitted(attempt.txid)
            self._check_replay(attempt.txid, definition, self._definition(again))
            self._rows[attempt.txid] = again
        table = self._rows[attempt.txid]
        return slices(table, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        self._rows.pop(txid, None)
        self._spout.ack(txid)

    def close(self) -> None:
        self._spout.close()

    def _warn(self, txid: int, said: object) -> None:
        """Tell the author of a spout that says neither that there is nothing now nor that a batch is empty."""
        if said is None and not self._has_warned:
            _log.warning(
                "%s.emit_batch(%d) emitted nothing and returned None, so it is asked for batch %d again until it emits "
                "something. Return False to say that there is nothing now, or True if the batch is empty and the next one is "
                "to be asked for",
                type(self._spout).__name__, txid, txid,
            )  # fmt: skip
            self._has_warned = True

    def _emitted(self, txid: int) -> tuple[pa.Table, object]:
        """Let the spout emit a batch; return its rows, and what it says: True if this is the batch even without rows."""
        collector = _Rows()
        said = self._spout.emit_batch(txid, collector)
        call = f"{type(self._spout).__name__}.emit_batch({txid})"
        return table_of_emitted(call, self.get_output_fields(), collector.rows), said

    def _definition(self, table: pa.Table) -> dict[str, int]:
        counted = {"rows": table.num_rows, "bytes": table.nbytes if table.num_rows else 0}
        return counted | {"crc": checksum(table)} if self.spout_type is SpoutType.TRANSACTIONAL else counted

    def _check_replay(self, txid: int, defined: dict[str, int], found: dict[str, int]) -> None:
        if any(found[each] != defined[each] for each in ("rows", "crc") if each in found):
            call = f"{type(self._spout).__name__}.emit_batch({txid})"
            raise ReplayMismatchError(
                f"{call} gave other rows than when the batch was defined: {_said(found)} in place of {_said(defined)}. A "
                "transactional spout gives the same again. Let it do so and start again, or declare it as what it is: "
                "spout_type = SpoutType.OPAQUE"
            )


def _said(definition: dict[str, int]) -> str:
    return f"{definition['rows']} rows" + (f" with checksum {definition['crc']:08x}" if "crc" in definition else "")
