"""The values of a tuple, of each record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from spouts.kafka.options import KafkaOptions
from spouts.kafka.record_functions import ByRecord, KafkaRecord
from trident.errors import SpoutError

if TYPE_CHECKING:
    from confluent_kafka import Message


class RecordValues:
    """Reads records as the options say."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._key = _text_key if options.key == "text" else _key

    def __call__(self, records: Sequence[Message]) -> list[Sequence[Any]]:
        """Return the values of each record, empty if a function leaves it out; `SpoutError` for one that cannot be read."""
        if isinstance(self._options.value, ByRecord):
            return [self._translated(self._options.value, each) for each in records]
        columns: list[list[Any]] = []
        for name in self._options.fields:
            if name == "value":
                columns += self._options.value.lists([each.value() for each in records])
            else:
                read = self._key if name == "key" else _COLUMNS[name]
                columns.append([read(each) for each in records])
        return list(zip(*columns, strict=True))

    @staticmethod
    def _translated(by_record: ByRecord, record: Message) -> Sequence[Any]:
        try:
            row = by_record.function(KafkaRecord(*(_COLUMNS[name](record) for name in KafkaRecord._fields)))
        except Exception as error:
            raise SpoutError(f"the function of ByRecord raised {type(error).__name__}: {error}") from error
        return () if row is None else tuple(row)


def _key(record: Message) -> Any:
    return record.key()


def _text_key(record: Message) -> str | None:
    key = record.key()
    return key.decode() if isinstance(key, bytes) else key


def _timestamp(record: Message) -> datetime | None:
    kind, ms = record.timestamp()
    try:
        return datetime.fromtimestamp(ms / 1000, UTC) if kind else None
    except (ValueError, OverflowError, OSError) as error:
        raise SpoutError(f"its timestamp is {ms} ms since 1970, which no year from 1 to 9999 has") from error


def _headers(record: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in record.headers() or ()]


_COLUMNS: dict[str, Callable[[Message], Any]] = {
    "value": lambda record: record.value(),
    "key": _key,
    "timestamp": _timestamp,
    "partition": lambda record: record.partition(),
    "offset": lambda record: record.offset(),
    "topic": lambda record: record.topic(),
    "headers": _headers,
}
