"""Turns records into Arrow tables, and those into tuples: of whole batches in the workers, or of single messages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from operator import call, methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spouts.kafka.clients import Message
from spouts.kafka.options import COLUMNS, EPOCH, KafkaOptions, emitted_fields
from spouts.kafka.positions import OffsetRange
from spouts.kafka.range_reader import READERS, offset_of
from spouts.kafka.value_formats import BadValue, ByColumns, ByRecord, KafkaRecord, Plain
from trident.arrow import arrow_type, impossible_in, python_of, schema_of
from trident.errors import SpoutError
from trident.spout.interfaces import BadRow
from trident.types import TYPES, class_of, is_text

_MESSAGES = 1000  # at a time: more at once do not stay in the processor's cache
_ROWS, _BYTES = 32 << 10, 4 << 20  # of a table
_MS = timedelta(milliseconds=1)
_TEXT, _KEY_HINT = Plain("string"), 'read it with key="bytes"'
_FAR = (
    "its timestamp is {} ms since 1970, which no year from 1 to 9999 has; "
    'its producer may count micro- or nanoseconds; on_bad="null" would read it as None'
)


class RecordTables:
    """Makes tables of records, and of those the tuples that the options name."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._columns = list(KafkaRecord._fields if options.value.replaces_all else options.fields)

    @cached_property
    def _schema(self) -> pa.Schema:
        return schema_of(emitted_fields(self._options))  # to read the types takes longer than to read a message

    @cached_property
    def _tests(self) -> Sequence[Callable[[Any], bool]]:
        return list(map(_plain_test, emitted_fields(self._options).types))

    def of(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Return what messages of one partition have, and where a bad value is: the offset."""
        names = list(dict.fromkeys((*self._columns, "offset")))
        return pa.RecordBatch.from_arrays([_column(name, messages) for name in names], names)

    def tuples(self, table: pa.Table) -> pa.Table:
        """Return the tuples of records; `BadValue` if any of them cannot be read."""
        value, table = self._options.value, self._with_moments(table)
        if isinstance(value, ByRecord | ByColumns):
            return value.translate(table)
        columns: list[pa.Array] = []
        for name in self._options.fields:
            (array,) = table[name].chunks
            if name == "value":
                columns.extend(value.columns(array, self._options.on_bad == "null"))
            elif name == "key" and self._options.key == "text":
                columns.extend(_TEXT.columns(array, False, "key", _KEY_HINT))
            else:
                columns.append(array)
        return pa.table(columns, schema=self._schema)

    def rows(self, messages: Sequence[Message]) -> list[tuple[Any, ...] | None]:
        """Return the values of each message, None if a function leaves it out; `SpoutError` if any cannot be read."""
        # Not by way of a table: to make one of a single message takes twenty times as long.
        value = self._options.value
        try:
            if isinstance(value, ByRecord):
                # As it would come back from a column of its type; most of it comes as it is.
                rows, tests = value.call(map(_record, messages)), self._tests
                if not all(len(row) == len(tests) and all(map(call, tests, row)) for row in rows.values()):
                    fit = value.fit(rows).columns
                    rows = dict(zip(rows, zip(*map(python_of, fit), strict=True), strict=True))
                return list(map(rows.get, range(len(messages))))
            columns: list[list[Any]] = []
            for name in self._options.fields:
                found = list(map(_READ[name], messages))
                if name == "value":
                    columns += value.lists(found)
                elif name == "key" and self._options.key == "text":
                    columns += _TEXT.lists(found, "key", _KEY_HINT)
                else:
                    columns.append(found)
        except BadValue as bad:
            raise SpoutError(bad.why.partition("; on_bad=")[0]) from bad
        return list(zip(*columns, strict=True))

    def _with_moments(self, table: pa.Table) -> pa.Table:
        """Return a table whose timestamps are of the field's type; a time that Python has none for is a bad value."""
        if "timestamp" not in table.schema.names:
            return table
        at, times = table.schema.get_field_index("timestamp"), table["timestamp"]
        is_bad, beyond = impossible_in(times)
        if is_bad and self._options.on_bad != "null":
            wrong = np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist()
            raise BadValue({at: _FAR.format(times[at].value) for at in wrong})
        if is_bad:
            times = pc.if_else(beyond, pa.scalar(None, times.type), times)
        return table.set_column(at, "timestamp", times.cast(arrow_type("timestamp")))


def _plain_test(ddl: str | None) -> Callable[[Any], bool]:
    """Return what says whether a value would come back from a column of its type as it is; others are sent there."""
    kind = class_of(ddl)
    if kind is int:
        limit = TYPES[ddl or ""].limit
        return lambda value: value is None or (type(value) is int and -limit <= value < limit)
    if kind in (bool, bytes) or ddl == "double":
        return lambda value: value is None or type(value) is kind
    if ddl == "string":
        return lambda value: value is None or (type(value) is str and (value.isascii() or is_text([value])))
    if ddl == "timestamp":
        return lambda value: value is None or (type(value) is datetime and value.tzinfo is UTC)
    return lambda value: value is None


def _timestamp(message: Message) -> Any:
    kind, ms = message.timestamp()
    try:
        # A float of seconds is exact to the microsecond only until the year 2242.
        return EPOCH + ms * _MS if kind else None
    except OverflowError:
        raise BadValue({0: _FAR.format(ms)}) from None


def _headers(message: Message) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in message.headers() or ()]  # type: ignore[str-unpack]  # pairs


def _record(message: Any) -> KafkaRecord:
    return KafkaRecord(
        message.value(), message.key(), _timestamp(message), message.partition(), message.offset(), message.topic(),
        _headers(message),
    )  # fmt: skip


_READ: dict[str, Callable[[Message], Any]] = {
    **{name: methodcaller(name) for name in COLUMNS}, "timestamp": _timestamp, "headers": _headers
}  # fmt: skip
_ARROW = {name: arrow_type(type_) for name, type_ in COLUMNS.items()}


def _column(name: str, messages: Sequence[Message]) -> pa.Array:
    """Return what messages of one partition have; a call a message only for what differs."""
    match name:
        case "timestamp":
            ms = pa.array([ms if kind else None for kind, ms in (each.timestamp() for each in messages)], pa.int64())
            return ms.cast(pa.timestamp("ms", tz="UTC"))
        case "headers":
            return pa.array([each.headers() or () for each in messages], _ARROW[name])
        case "partition" | "topic":
            return pa.repeat(pa.scalar(methodcaller(name)(messages[0]), _ARROW[name]), len(messages))
        case "offset":
            first, last = offset_of(messages[0]), offset_of(messages[-1])
            if last - first == len(messages) - 1:
                return pa.array(np.arange(first, last + 1, dtype=np.int64))
    return pa.array(list(map(methodcaller(name), messages)), _ARROW[name])


class KafkaEmitter:
    """Reads the ranges of a part. Pickled to the worker; the consumer is opened there and stays open for later batches."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options, self._tables = options, RecordTables(options)

    def emit(self, part: Sequence[OffsetRange]) -> Iterator[pa.Table | BadRow]:
        """Give the records of a part, range after range, in tables of a few megabytes."""
        with READERS.borrow(self._options) as reader:
            part = reader.drop_gone(part)
            for one in part:
                for table in _gather(reader.read(one, _MESSAGES, self._tables.of)):
                    yield from self._emit(one, table)
            # Behind the reading: an id that is right afterwards was right all the time.
            reader.check_topics({one.spot.topic: one.topic_id for one in part})

    def _emit(self, one: OffsetRange, table: pa.Table) -> Iterator[pa.Table | BadRow]:
        """Give the records that cannot be read, each by itself, and the tuples of the others."""
        # The bad ones are taken out and the rest is read once more together, so one of them costs a pass and not a batch.
        while table.num_rows:
            try:
                yield self._tables.tuples(table)
                return
            except BadValue as bad:
                for at, why in bad.rows.items():
                    error = SpoutError(f"offset {table['offset'][at].as_py()} in {one.spot}: {why}")
                    error.__cause__ = bad.causes.get(at)
                    yield BadRow(table.slice(at, 1), error)
                table = table.take(np.setdiff1d(np.arange(table.num_rows), list(bad.rows))).combine_chunks()


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()
