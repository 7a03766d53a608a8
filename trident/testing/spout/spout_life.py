"""One life of a driver that reads a spout, without a log, states or Spark: its calls, and what is pickled or logged between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cloudpickle
import pyarrow as pa

from trident.arrow import cast_table, schema_of
from trident.config import Config
from trident.coordination.framing import decode, encode
from trident.runtime.spouts.batch_spouts import as_trident_spout
from trident.spout.interfaces import (
    BadRow,
    Definition,
    PartitionRead,
    SpoutType,
    TransactionAttempt,
    coordinator_of,
)
from trident.testing.spout.source_under_test import Row

_ATTEMPT = 1 << 20


class FilledBatch(NamedTuple):
    """A batch that was defined, with its rows if it was read."""

    txid: int
    definition: Definition
    rows: Sequence[Row] = ()
    is_read: bool = False


class Life:
    """The coordinator of a spout, and its emitter in a worker.

    What is no plain data, or cannot be pickled, is passed on as it is: only the checks of just that complain of it.
    """

    def __init__(self, spout: Any) -> None:
        settings = Config().as_mapping()
        self.spout = as_trident_spout(spout)
        self.fields = self.spout.get_output_fields()
        self.coordinator = coordinator_of(self.spout.get_coordinator(settings))
        self.emitter = through_pickle(self.spout.get_emitter(settings))
        self._is_completed_by_reading = self.coordinator.offers("complete")
        self._first: dict[tuple[int, str], list[pa.Table]] = {}

    @property
    def rereads(self) -> bool:
        """Whether a definition can be read again; one that reading has completed is read again only if a replay is the same."""
        return not self._is_completed_by_reading or self.spout.spout_type is SpoutType.TRANSACTIONAL

    def define(self, txid: int, previous: Definition | None) -> Definition | None:
        """Have a batch defined; both definitions go through the log."""
        return through_log(self.define_here(txid, through_log(previous)))

    def define_here(self, txid: int, previous: Definition | None) -> Definition | None:
        """Have a batch defined; where reading completes the definition, it is read."""
        definition = self.coordinator.initialize_transaction(txid, previous)
        if definition is None or self.coordinator.traits(definition).is_complete:
            return definition
        tables, read = list[pa.Table](), dict[str, PartitionRead]()
        for one in self._emitted(txid, definition, 1, 0):
            if isinstance(one, PartitionRead):
                read[one.partition] = one
            else:
                tables.append(one)
        complete = self.coordinator.complete(definition, read)
        self._first[txid, repr(through_log(complete))] = tables
        return complete

    def tables(self, batch: FilledBatch, parallelism: int = 1, attempt: int = 0) -> Iterator[pa.Table]:
        """Read a batch as the workers do; what was read to complete the definition is not read again."""
        key = batch.txid, repr(batch.definition)
        first = self._first.pop(key, None) if self.rereads else self._first.get(key)
        found = self._emitted(batch.txid, batch.definition, parallelism, attempt) if first is None else first
        yield from (one for one in found if not isinstance(one, PartitionRead))

    def read(self, batch: FilledBatch, parallelism: int = 1, attempt: int = 0) -> list[Row]:
        """Return the rows of a batch; columns under wrong names are taken for those that they should be."""
        schema, rows = schema_of(self.fields), list[Row]()
        for table in self.tables(batch, parallelism, attempt):
            if table.schema.names != schema.names and table.num_columns >= len(schema):
                table = table.select(range(len(schema))).rename_columns(schema.names)
            rows += rows_of_table(table if table.schema.types == schema.types else cast_table(table, self.fields))
        return rows

    def commit(self, batch: FilledBatch, attempt: int = 0) -> None:
        """Let a spout that takes part in commits commit."""
        self.coordinator.commit(TransactionAttempt(batch.txid, _ATTEMPT + attempt), through_log(batch.definition))

    def succeeded(self, batch: FilledBatch, attempt: int = 0) -> None:
        """Commit a batch, and say that it is committed."""
        self.commit(batch, attempt)
        self.coordinator.success(batch.txid, through_log(batch.definition))

    def _emitted(
        self, txid: int, definition: Definition, parallelism: int, attempt: int
    ) -> Iterator[pa.Table | PartitionRead]:
        tried = TransactionAttempt(txid, _ATTEMPT + attempt)
        for part in self.coordinator.parts(tried, through_log(definition), parallelism):
            for data in self.emitter.emit(through_pickle(part)):
                if isinstance(data, BadRow):
                    raise data.error
                yield pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data


def rows_of_table(table: pa.Table) -> list[Row]:
    """Return the rows as tuples of Python's values."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def through_log(definition: Definition | None) -> Definition | None:
    """Return a definition as it comes back from the log."""
    try:
        return decode(encode(definition))
    except ValueError:
        return definition


def through_pickle(value: Any) -> Any:
    """Return what a worker gets of a value."""
    try:
        return cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return value


def read_whole(spout: Any, batches: Sequence[FilledBatch]) -> list[list[Row]]:
    """Return the rows of batches as a driver reads them that has defined none of them."""
    return list(map(Life(spout).read, batches))
