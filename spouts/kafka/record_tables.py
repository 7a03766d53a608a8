"""Turns records into Arrow tables, the workers' side of the spouts of batches, or into the values of single tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spouts.kafka.batch_ranges import OffsetRange
from spouts.kafka.clients import Message, consumer_settings
from spouts.kafka.options import COLUMNS, EPOCH, KafkaOptions, emitted_fields
from spouts.kafka.range_reader import READERS, RangeReader, offset_of
from spouts.kafka.value_formats import BadValue, ByColumns, ByRecord, KafkaRecord
from trident.arrow import arrow_type, impossible_in, schema_of
from trident.errors import SpoutError
from trident.spout.interfaces import BadRow

_MESSAGES = 1000  # at a time: more at once do not stay in the processor's cache
_ROWS, _BYTES = 32 << 10, 4 << 20  # of a table


class KafkaEmitter:
    """Reads the ranges of a part. Pickled to the worker; the consumer is opened there and stays open for later batches."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options, self._fields = options, emitted_fields(options)
        self._columns = KafkaRecord._fields if options.value.replaces_all else options.fields

    def emit(self, part: Sequence[OffsetRange]) -> Iterator[pa.Table | BadRow]:
        """Give the records of a part, range after range, in tables of a few megabytes."""
        with READERS.borrow(consumer_settings(self._options)) as reader:
            for one in part:
                for table in self._tables(one, reader):
                    yield from self._emit(one, table)
            # Behind the reading: an id that is right afterwards was right all the time.
            reader.check_topics({one.spot.topic: one.topic_id for one in part})

    def _tables(self, one: OffsetRange, reader: RangeReader) -> Iterator[pa.Table]:
        """Collect arrays of records into tables; with `offset`, to say where a bad value is."""
        names = (*self._columns, *(() if "offset" in self._columns else ("offset",)))
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        options = self._options

        def batch_of(messages: list[Message]) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([_column_of(name, messages) for name in names], names=list(names))

        may_skip = options.on_data_loss == "skip"
        for batch in reader.read(one, _MESSAGES, batch_of, options.partition_timeout_s, may_skip):
            batches.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROWS or size >= _BYTES:
                yield pa.Table.from_batches(batches).combine_chunks()
                batches, rows, size = [], 0, 0
        if batches:
            yield pa.Table.from_batches(batches).combine_chunks()

    def _emit(self, one: OffsetRange, table: pa.Table) -> Iterator[pa.Table | BadRow]:
        """Give the records that cannot be read, each by itself, and the tuples of the others."""
        # The bad ones are taken out and the rest is read once more together, so one of them costs a pass and not a batch.
        while table.num_rows:
            try:
                yield self._tuples(table)
                return
            except BadValue as bad:
                for at, why in bad.rows.items():
                    error = SpoutError(f"offset {table['offset'][at].as_py()} in {one.spot}: {why}")
                    error.__cause__ = bad.causes.get(at)
                    yield BadRow(table.slice(at, 1), error)
                table = table.take(np.setdiff1d(np.arange(table.num_rows), list(bad.rows))).combine_chunks()

    def _tuples(self, table: pa.Table) -> pa.Table:
        value, table = self._options.value, self._with_moments(table)
        if isinstance(value, ByRecord | ByColumns):
            return value.translate(table.select(KafkaRecord._fields))
        columns: list[pa.Array] = []
        for name in self._options.fields:
            columns.extend(self._column(name, table))
        return pa.table(columns, schema=schema_of(self._fields))

    def _with_moments(self, table: pa.Table) -> pa.Table:
        """Return a table whose timestamps are of the field's type; a time that Python has none for is a bad value."""
        if "timestamp" not in table.schema.names:
            return table
        at, times = table.schema.get_field_index("timestamp"), table["timestamp"]
        is_bad, beyond = impossible_in(times)
        if is_bad and self._options.on_bad != "null":
            why = (
                "its timestamp is {} ms since 1970, which no year from 1 to 9999 has; "
                'its producer may count micro- or nanoseconds; on_bad="null" would read it as None'
            )
            wrong = np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist()
            raise BadValue({at: why.format(times[at].value) for at in wrong})
        if is_bad:
            times = pc.if_else(beyond, pa.scalar(None, times.type), times)
        return table.set_column(at, "timestamp", times.cast(arrow_type("timestamp")))

    def _column(self, name: str, table: pa.Table) -> Sequence[pa.Array]:
        (array,) = table[name].chunks
        if name == "value":
            return self._options.value.columns(array, self._options.on_bad == "null")
        if name == "key" and self._options.key == "text":
            try:
                return [array.cast(pa.string())]
            except pa.ArrowInvalid:
                why = 'its key is not text in UTF-8; read it with key="bytes"'
                raise BadValue(dict.fromkeys(filter(partial(_is_no_text, array), range(len(array))), why)) from None
        return [array]


def _is_no_text(keys: pa.Array, at: int) -> bool:
    try:
        keys[at].cast(pa.string())
    except pa.ArrowInvalid:
        return True
    return False


class RecordValues:
    """Reads records for single tuples, as the options say."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options, self._width = options, len(emitted_fields(options))

    def __call__(self, records: Sequence[Message]) -> Sequence[tuple[Any, ...] | None]:
        """Return the values of each record, None if a function leaves it out; `SpoutError` for one that cannot be read."""
        if isinstance(self._options.value, ByRecord):
            return [self._translate(self._options.value, each) for each in records]
        columns: list[list[Any]] = []
        for name in self._options.fields:
            found = [_READ[name](each) for each in records]
            if name == "value":
                columns += self._options.value.lists(found)
            elif name == "key" and self._options.key == "text":
                columns.append([each.decode() if isinstance(each, bytes) else each for each in found])
            else:
                columns.append(found)
        return list(zip(*columns, strict=True))

    def _translate(self, by_record: ByRecord, record: Message) -> tuple[Any, ...] | None:
        try:
            row = by_record.row(KafkaRecord(*(_READ[name](record) for name in KafkaRecord._fields)))
        except Exception as error:
            raise SpoutError(f"the function of ByRecord raised {type(error).__name__}: {error}") from error
        if row is not None and len(row) != self._width:
            raise SpoutError(
                f"the function of ByRecord gave {row!r:.200}; give one value for each of {self._width} fields"
            )
        return row


# ---- what messages have -------------------------------------------------------------------------------------------------


def _timestamp(record: Message) -> datetime | None:
    kind, ms = record.timestamp()
    try:
        # A float of seconds is exact to the microsecond only until the year 2242.
        return EPOCH + timedelta(milliseconds=ms) if kind else None
    except OverflowError as error:
        raise SpoutError(f"its timestamp is {ms} ms since 1970, which no year from 1 to 9999 has") from error


def _headers(record: Message) -> list[dict[str, Any]]:
    return [{"key": each[0], "value": each[1]} for each in record.headers() or ()]


_READ: dict[str, Callable[[Message], Any]] = {
    **{name: methodcaller(name) for name in COLUMNS}, "timestamp": _timestamp, "headers": _headers
}  # fmt: skip
_ARROW = {name: arrow_type(type_) for name, type_ in COLUMNS.items()}


def _column_of(name: str, messages: list[Message]) -> pa.Array:
    """Return what messages of one partition have; a call a message only for what differs."""
    match name:
        case "timestamp":
            ms = pa.array([ms if kind else None for kind, ms in (each.timestamp() for each in messages)], pa.int64())
            return ms.cast(pa.timestamp("ms", tz="UTC"))
        case "partition" | "topic":
            return pa.repeat(pa.scalar(_READ[name](messages[0]), _ARROW[name]), len(messages))
        case "offset":
            first, last = offset_of(messages[0]), offset_of(messages[-1])
            if last - first == len(messages) - 1:
                return pa.array(np.arange(first, last + 1, dtype=np.int64))
    return pa.array(list(map(_READ[name], messages)), _ARROW[name])
