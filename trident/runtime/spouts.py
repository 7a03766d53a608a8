"""Spouts as the driver loop sees them: one coordinator each, whatever interface the user implemented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import table_of
from trident.errors import SpoutError
from trident.fields import Fields
from trident.planner.guarantees import spout_type_of
from trident.spout.interfaces import Definition, IBatchSpout, ITridentSpout, TransactionAttempt

__all__ = ["BatchSpoutExecutor", "as_trident_spout"]


def as_trident_spout(spout: Any) -> ITridentSpout:
    """Return the spout itself, or an `IBatchSpout` in its executor."""
    return BatchSpoutExecutor(spout) if not isinstance(spout, ITridentSpout) else spout


class _Rows:
    """The collector of an `IBatchSpout`."""

    def __init__(self) -> None:
        self.rows: list[Sequence[Any]] = []

    def emit(self, values: Sequence[Any]) -> None:
        self.rows.append(values)


class BatchSpoutExecutor:
    """Runs an `IBatchSpout` in the driver: the rows of a batch are collected there and shipped with the job.

    Different from Storm: a batch without rows is not started, so an idle spout costs no empty batches.
    """

    def __init__(self, spout: IBatchSpout) -> None:
        self._spout = spout
        self.spout_type = spout_type_of(spout)
        self._rows: dict[int, pa.Table] = {}

    def get_output_fields(self) -> Fields:
        """Return the spout's fields."""
        return self._spout.get_output_fields()

    def get_coordinator(self, conf: Mapping[str, Any]) -> BatchSpoutExecutor:
        """Open the spout."""
        self._spout.open(conf)
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> _TableEmitter:
        """Parts are tables already."""
        return _TableEmitter()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Let the spout emit the batch."""
        collector = _Rows()
        self._spout.emit_batch(txid, collector)
        if not collector.rows:
            return None
        table = self._rows[txid] = self._table(txid, collector.rows)
        return {"rows": table.num_rows, "bytes": table.nbytes}

    def size(self, definition: Definition) -> int | None:
        """Say how many bytes the rows of a batch take; None of a batch that an earlier version defined."""
        size: int | None = definition.get("bytes")
        return size

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        """Return the batch's rows in slices; after a restart the spout is asked to emit the batch again."""
        if attempt.txid not in self._rows:
            collector = _Rows()
            self._spout.emit_batch(attempt.txid, collector)
            self._rows[attempt.txid] = self._table(attempt.txid, collector.rows)
        table = self._rows[attempt.txid]
        size = max(1, -(-table.num_rows // max(1, parallelism)))
        return [table.slice(start, size) for start in range(0, table.num_rows, size)]

    def success(self, txid: int, definition: Definition) -> None:
        """Forget the batch and tell the spout."""
        self._rows.pop(txid, None)
        self._spout.ack(txid)

    def close(self) -> None:
        """Close the spout."""
        self._spout.close()

    def _table(self, txid: int, rows: list[Sequence[Any]]) -> pa.Table:
        try:
            return table_of(self.get_output_fields(), rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            name = type(self._spout).__name__
            raise SpoutError(
                f"{name}.emit_batch({txid}) emitted rows that do not fit its fields ({self.get_output_fields()}): {error}"
            ) from error


class _TableEmitter:
    is_quick = True  # it waits for nobody: the loop may call it

    def emit(self, part: pa.Table) -> Iterator[pa.Table]:
        """Yield the part."""
        yield part
