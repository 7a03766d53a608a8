"""KafkaTopicState and ToTopic: the tuples of a stream as records of a topic, each batch once, and how one becomes a record.

Records and sentinel, the metadata of the offset that the consumer group `topology/state` has in partition 0 of the topic, are
one transaction of Kafka's. A replay of a batch that is there writes nothing. Readers must use
`isolation.level=read_committed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any

from states.kafka.options import KafkaTopicOptions
from trident.errors import ConfigError, CorruptValueError
from trident.servers.avro import Avro
from trident.servers.kafka_client import kafka_package
from trident.state.interfaces import StateConf, StateSpec, StateType
from trident.storekit import Kinds, kinds

if TYPE_CHECKING:
    from states.kafka.topic_sink import TopicRecord, TopicSink
    from trident.tuples import TridentCollector, TridentTuple


@dataclass(frozen=True)
class _TopicFactory:
    options: KafkaTopicOptions
    kind: StateType = StateType.TRANSACTIONAL

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        kafka_package()
        from states.kafka.topic_sink import TopicSink

        return TopicSink(self.options, conf)


class KafkaTopicState(Kinds[str | KafkaTopicOptions]):
    """A topic that a stream is written to, with `ToTopic` as the updater: `transactional`, exact with transactional spouts.

    It takes brokers and topic, or a `KafkaTopicOptions`, and fields of it by name. There is no opaque one: Kafka cannot take
    back what an earlier attempt has committed.
    """

    _, transactional, _ = kinds(KafkaTopicOptions)

    @classmethod
    def of_kind(
        cls, kind: StateType, target: str | KafkaTopicOptions | None, options: dict[str, Any], topic: str | None = None
    ) -> StateSpec:
        if kind is not StateType.TRANSACTIONAL:
            raise ConfigError(
                "a Kafka state is transactional: Kafka cannot take back what an earlier attempt committed"
            )
        made = KafkaTopicOptions.of(target, options if topic is None else {"topic": topic, **options})
        # With several, the sentinel of one would say nothing of the tuples that another number sends elsewhere.
        return StateSpec(_TopicFactory(made), required_num_partitions=1)


Encode = Callable[[Any], bytes | str | None]
_ROLES = ("key", "value", "headers", "partition", "timestamp")


@dataclass(frozen=True)
class ToTopic:
    """Writes each tuple as a record; the updater of a `KafkaTopicState`.

    The fields `key`, `value`, `headers`, `partition` and `timestamp` are taken where the tuple has them; other names can be
    given. Without a field for the value, it is a JSON object of all remaining fields. None is a null.

    Attributes
    ----------
    key, value, headers, partition, timestamp
        The names of the fields. Headers: a map, or pairs of name and value; a partition: its number, None by the key; a
        timestamp: a datetime or milliseconds, None for now.
    encode, encode_key
        How value and key become bytes: `"auto"` (bytes as they are, text as UTF-8, anything else as JSON), `"json"`, `Avro`,
        or a function that returns bytes, text or None.
    """

    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    encode: str | Avro | Encode = "auto"
    encode_key: str | Avro | Encode = "auto"

    def __post_init__(self) -> None:
        for name, given in (("encode", self.encode), ("encode_key", self.encode_key)):
            if not isinstance(given, Avro) and given not in ("auto", "json") and not callable(given):
                raise ConfigError(f"{name}={given!r} of ToTopic: give 'auto', 'json', Avro(schema) or a function")

    def update_state(self, state: TopicSink, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        if tuples:
            state.write(self._records(tuples))

    def _records(self, tuples: Sequence[TridentTuple]) -> Iterable[TopicRecord]:
        """Make all records of a batch, field by field, which takes a third of the time of record by record."""
        names, rows = tuples[0].fields.names, [each.values for each in tuples]
        columns, places = list(zip(*rows, strict=True)), self._positions(names)
        at = {role: columns[place] for role, place in places.items()}
        rest = {name: place for place, name in enumerate(names) if place not in places.values()}
        values = at["value"] if "value" in at else [{name: row[place] for name, place in rest.items()} for row in rows]
        keys = _encode_values(self.encode_key, at["key"], "the key") if "key" in at else repeat(None)
        partitions = map(_partition, at["partition"]) if "partition" in at else repeat(-1)
        times = map(_milliseconds, at["timestamp"]) if "timestamp" in at else repeat(0)
        headers = map(_headers, at["headers"]) if "headers" in at else repeat(None)
        return zip(keys, _encode_values(self.encode, values, "the value"), partitions, times, headers, strict=False)

    def _positions(self, names: Sequence[str]) -> dict[str, int]:
        found = {}
        for role, given in zip(
            _ROLES, (self.key, self.value, self.headers, self.partition, self.timestamp), strict=True
        ):
            if given is not None and given not in names:
                raise ConfigError(f"{role}={given!r} of ToTopic: the tuples have the fields {', '.join(names)}")
            if (given or role) in names:
                found[role] = list(names).index(given or role)
        return found


def _encode_values(given: str | Avro | Encode, values: Sequence[Any], what: str) -> list[bytes | None]:
    if given == "auto":
        return [
            value.encode()
            if type(value) is str
            else value
            if type(value) is bytes or value is None
            else _json(value, what)
            for value in values
        ]
    if given == "json":
        return [None if value is None else _json(value, what) for value in values]
    encode: Any = given.encoder() if isinstance(given, Avro) else given
    return [_bytes(encode(value), what) for value in values]


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"it has {type(value).__name__}")


_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def _json(value: Any, what: str) -> bytes:
    try:
        return _to_json(value).encode()
    except (TypeError, ValueError) as error:
        raise CorruptValueError(
            f"encode {what} of a record: {value!r:.300} has no form in JSON ({error}); change it, or give encode= a function"
        ) from error


def _bytes(encoded: Any, what: str) -> bytes | None:
    if encoded is None or isinstance(encoded, bytes):
        return encoded
    if isinstance(encoded, str):
        return encoded.encode()
    raise CorruptValueError(f"encode {what} of a record: the function returned a {type(encoded).__name__}, not bytes")


def _partition(value: Any) -> int:
    rule = "give a whole number from 0 on, or None for the one of the key"
    return -1 if value is None else _whole(value, 0, f"the partition of a record is {value!r}: {rule}")


def _milliseconds(value: Any) -> int:
    if value is None:
        return 0
    number = value
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        number = round(moment.timestamp() * 1000)
    rule = "give a moment after the beginning of 1970 (which means now to Kafka's client), its milliseconds, or None"
    return _whole(number, 1, f"the timestamp of a record is {value!r}: {rule}")


def _whole(value: Any, least: int, refusal: str) -> int:
    """Return a number as an int; refuse one that would become another, or mean something else to Kafka's client."""
    with suppress(TypeError, ValueError, OverflowError):
        whole = int(value)
        if whole == value and least <= whole < 1 << 63:
            return whole
    raise CorruptValueError(refusal)


def _headers(value: Any) -> list[tuple[str, bytes | None]] | None:
    if value is None:
        return None
    pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
    both = ((one["key"], one["value"]) if isinstance(one, Mapping) else one for one in pairs)
    return [(name, held.encode() if isinstance(held, str) else held) for name, held in both]
