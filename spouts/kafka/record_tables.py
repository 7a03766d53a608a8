"""Turns the records of ranges into Arrow tables: the workers' side of a Kafka spout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spouts.kafka.batch_ranges import OffsetRange
from spouts.kafka.client_settings import consumer_settings
from spouts.kafka.consumer_pool import Pool
from spouts.kafka.options import KafkaOptions
from spouts.kafka.range_reader import RangeReader, offset_of
from spouts.kafka.record_functions import ByColumns, ByRecord, KafkaRecord
from spouts.kafka.value_formats import BadValue
from trident.arrow import arrow_type, beyond_python, schema_of
from trident.errors import SpoutError
from trident.fields import Fields
from trident.servers.kafka_client import kafka_package
from trident.spout.interfaces import BadRow

if TYPE_CHECKING:
    from confluent_kafka import Message

READERS = Pool()
"""The consumers of this process."""

_MESSAGES = 1000  # at a time: more at once do not stay in the processor's cache
_ROWS, _BYTES = 32 << 10, 4 << 20  # of a table
_TYPES = {
    "value": "binary",
    "key": "binary",
    "timestamp": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "topic": "string",
    "headers": "array<struct<key:string,value:binary>>",
}


def emitted_fields(options: KafkaOptions) -> Fields:
    """Return the fields of a spout with these options."""
    if options.value.replaces_all:
        return options.value.fields
    key = "string" if options.key == "text" else "binary"
    types = {**_TYPES, "key": key}
    return Fields(*(options.value.fields if name == "value" else f"{name}: {types[name]}" for name in options.fields))


class KafkaEmitter:
    """Reads the ranges of a part. Pickled to the worker; the consumer is opened there and stays open for later batches."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options, self._fields = options, emitted_fields(options)
        self._columns = KafkaRecord._fields if options.value.replaces_all else options.fields

    @property
    def key(self) -> str:
        """By what the consumers are found in `READERS`."""
        return repr(sorted(self._settings().items(), key=str))

    def emit(self, part: Sequence[OffsetRange]) -> Iterator[pa.Table | BadRow]:
        """Give the records of a part, range after range, in tables of a few megabytes."""
        kafka_package()
        settings = self._settings()
        with READERS.borrow(self.key, lambda: RangeReader(settings)) as reader:
            for one in part:
                for table in self._tables(one, reader):
                    yield from self._emitted(one, table)
            reader.check_topics({one.spot.topic: one.topic_id for one in part})

    def _settings(self) -> dict[str, Any]:
        options = self._options
        return consumer_settings(options.bootstrap_servers, options.isolation, options.group_id, options.config)

    def _tables(self, one: OffsetRange, reader: RangeReader) -> Iterator[pa.Table]:
        """Collect arrays of records into tables; with `offset`, to say where a bad value is."""
        names = (*self._columns, *(() if "offset" in self._columns else ("offset",)))
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        options = self._options

        def batch_of(messages: list[Message]) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([_COLUMNS[name](messages) for name in names], names=list(names))

        may_skip = options.on_lost == "skip"
        for batch in reader.read(one, _MESSAGES, batch_of, options.partition_timeout_s, may_skip):
            batches.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROWS or size >= _BYTES:
                yield pa.Table.from_batches(batches).combine_chunks()
                batches, rows, size = [], 0, 0
        if batches:
            yield pa.Table.from_batches(batches).combine_chunks()

    def _emitted(self, one: OffsetRange, table: pa.Table) -> Iterator[pa.Table | BadRow]:
        """Give the records that cannot be read, each by itself, and the tuples of the others."""
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
        beyond = beyond_python(times)
        if beyond is not None and self._options.on_bad != "null":
            why = (
                "its timestamp is {} ms since 1970, which no year from 1 to 9999 has; "
                'its producer may count micro- or nanoseconds; on_bad="null" would read it as None'
            )
            wrong = np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist()
            raise BadValue({at: why.format(times[at].value) for at in wrong})
        if beyond is not None:
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


# ---- columns of messages ------------------------------------------------------------------------------------------------


_value, _key = methodcaller("value"), methodcaller("key")


def _values(messages: list[Message]) -> pa.Array:
    return pa.array(list(map(_value, messages)), pa.binary())


def _keys(messages: list[Message]) -> pa.Array:
    return pa.array(list(map(_key, messages)), pa.binary())


def _timestamps(messages: list[Message]) -> pa.Array:
    ms = pa.array([ms if kind else None for kind, ms in (each.timestamp() for each in messages)], pa.int64())
    return ms.cast(pa.timestamp("ms", tz="UTC"))


def _partitions(messages: list[Message]) -> pa.Array:
    return pa.array(np.full(len(messages), messages[0].partition(), np.int32))


def _offsets(messages: list[Message]) -> pa.Array:
    first, last = offset_of(messages[0]), offset_of(messages[-1])
    if last - first == len(messages) - 1:
        return pa.array(np.arange(first, last + 1, dtype=np.int64))
    return pa.array([each.offset() for each in messages], pa.int64())


def _topics(messages: list[Message]) -> pa.Array:
    return pa.repeat(pa.scalar(messages[0].topic(), pa.string()), len(messages))


def _headers(messages: list[Message]) -> pa.Array:
    rows = [[{"key": each[0], "value": each[1]} for each in one.headers() or ()] for one in messages]
    return pa.array(rows, arrow_type(_TYPES["headers"]))


_COLUMNS: dict[str, Callable[[list[Message]], pa.Array]] = {
    "value": _values,
    "key": _keys,
    "timestamp": _timestamps,
    "partition": _partitions,
    "offset": _offsets,
    "topic": _topics,
    "headers": _headers,
}
