"""An `IRichSpout` as the driver loop sees it: its tuples are collected in batches, and acknowledged with them.

Rows of a batch that are in the driver: collected there as a table, cut into parts and shipped with the job.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from trident.arrow import UNFIT, row_of, table_of
from trident.errors import SpoutError, TopologyError
from trident.fields import Fields
from trident.roles import adapted
from trident.spout.interfaces import Away, BatchCoordinator, Definition, SpoutType, TransactionAttempt
from trident.spout.rich import IRichSpout, RichSpoutDefaults, TopologyContext, fields_of_rich_spout


class _Emitted(NamedTuple):
    values: tuple[Any, ...]
    message_id: Any


class _Batch(NamedTuple):
    table: pa.Table
    ids: list[Any]


class RichSpoutBatchExecutor(BatchCoordinator):
    """Runs an `IRichSpout` in the driver. At-least-once: a tuple of a batch that failed is emitted again and counted again.

    Message ids are acknowledged after the record of their batch, and failed when an attempt at it has ended: before the next
    attempt, or when the topology ends. After a crash the source itself must hand out again what was not acknowledged.

    Different from Storm: a batch ends with the first call that emits nothing, always, and has `max_batch_size` tuples at most,
    also if one call emits more. Ids are remembered until their batch is committed or fails, however long that takes.
    """

    spout_type = SpoutType.NON_TRANSACTIONAL

    def __init__(self, spout: IRichSpout, stream: str) -> None:
        self._spout, self._stream, self._name = spout, stream, type(spout).__name__
        self._fields = fields_of_rich_spout(spout)
        self._besides: RichSpoutDefaults = adapted(RichSpoutDefaults, spout)
        self._most = self._besides.max_batch_size
        if self._most < 1:
            raise TopologyError(f"{self._name}.max_batch_size is {self._most}; it must be at least 1")
        self._share, self._active = 1.0, False
        self._waiting: deque[_Emitted] = deque()  # emitted beyond the end of a batch
        self._batches: dict[int, _Batch] = {}

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> RichSpoutBatchExecutor:
        """Open the spout."""
        self._spout.open(conf, TopologyContext(self._stream), self)
        self.activate()
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> TableEmitter:
        """Return the worker's side; parts are tables already."""
        return TableEmitter()

    def emit(self, values: Sequence[Any], message_id: Any = None, stream_id: str = "default") -> None:
        if stream_id != "default":
            raise SpoutError(
                f"{self._name} emitted to the stream {stream_id!r}; in a Trident topology a spout has one stream"
            )
        self._waiting.append(_Emitted(row_of(values), message_id))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Let the spout emit a batch; attempts at it and at later ones have ended."""
        self._fail_from(txid)
        most = max(1, int(self._most * self._share))
        while len(self._waiting) < most:
            before = len(self._waiting)
            self._spout.next_tuple()
            if len(self._waiting) == before:
                break
        if not self._waiting:
            return None
        emitted = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._batches[txid] = batch = self._batch(emitted)
        return {"rows": batch.table.num_rows, "bytes": batch.table.nbytes}

    def size(self, definition: Definition) -> int | None:
        """Say how many bytes the rows of a batch take."""
        size: int = definition["bytes"]
        return size

    def look_now(self) -> None:
        self._besides.look_now()

    def is_preparing(self) -> bool:
        return self._besides.is_preparing()

    def away(self) -> Away | None:
        return self._besides.away()

    def throttle(self, share: float) -> None:
        self._share = share

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        return slices(self._batches[attempt.txid].table, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        for message_id in self._batches.pop(txid).ids:
            self._spout.ack(message_id)

    def activate(self) -> None:
        """Tell the spout that it is asked again."""
        self._set_active(True)

    def deactivate(self) -> None:
        """Tell the spout that it is asked no more."""
        self._set_active(False)

    def _set_active(self, active: bool) -> None:
        if active is self._active:
            return
        self._active = active
        if active:
            self._besides.activate()
        else:
            self._besides.deactivate()

    def close(self) -> None:
        """Close the spout; what is not committed is failed first."""
        try:
            self._fail_from(0)
            self.deactivate()
        finally:
            self._spout.close()

    def _batch(self, emitted: Sequence[_Emitted]) -> _Batch:
        ids = [one.message_id for one in emitted if one.message_id is not None]
        try:
            table = table_of_emitted(f"{self._name}.next_tuple()", self._fields, [one.values for one in emitted])
        except SpoutError:
            for message_id in ids:
                self._spout.fail(message_id)
            raise
        return _Batch(table, ids)

    def _fail_from(self, txid: int) -> None:
        for ended in sorted(each for each in self._batches if each >= txid):
            for message_id in self._batches.pop(ended).ids:
                self._spout.fail(message_id)


class TableEmitter:
    """Gives parts that are tables already."""

    is_quick = True  # it never waits, so the loop may call it

    def emit(self, part: pa.Table) -> Iterator[pa.Table]:
        yield part


def slices(table: pa.Table, parallelism: int) -> list[pa.Table]:
    """Cut a table into at most `parallelism` slices, none if it has no rows."""
    size = max(1, -(-table.num_rows // max(1, parallelism)))
    return [table.slice(start, size) for start in range(0, table.num_rows, size)]


def table_of_emitted(call: str, fields: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Build a table from the rows that a spout's call has emitted; `SpoutError` if they do not fit the fields."""
    try:
        return table_of(fields, rows)
    except UNFIT as error:
        raise SpoutError(f"{call} emitted rows that do not fit its fields ({fields}): {error}") from error


def checksum(table: pa.Table) -> int:
    """Return the checksum of a table that was built from rows."""
    crc = 0
    for column in table.columns:
        for buffer in column.chunk(0).buffers():
            crc = crc if buffer is None else zlib.crc32(buffer, crc)
    return crc
