"""The options of a Kafka spout, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from spouts.kafka.value_formats import Format
from trident.errors import ConfigError
from trident.fields import Fields
from trident.redaction import Redacted

COLUMNS = {
    "value": "binary",
    "key": "binary",
    "timestamp": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "topic": "string",
    "headers": "array<struct<key:string,value:binary>>",
}
"""What a record has, with the types."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_OURS = {
    "bootstrap.servers": "the first argument",
    "group.id": "group_id",
    "isolation.level": "isolation",
    "auto.offset.reset": "first_poll",
    "enable.auto.commit": "group_id (offsets are committed there after the record of the batch)",
    "enable.auto.offset.store": "group_id",
    "enable.partition.eof": "nothing: the spout needs it",
    "group.instance.id": "nothing: the spout joins no group",
}


@dataclass(frozen=True)
class Topics:
    """Which partitions are read: of topics by name, None for all of one; or of those whose whole name matches a pattern."""

    named: Mapping[str, tuple[int, ...] | None]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: Any) -> Topics:
        if isinstance(topics, re.Pattern) and isinstance(topics.pattern, str):
            return cls({}, topics)
        names = list(topics) if isinstance(topics, (list, tuple, set, frozenset, Mapping)) else [topics]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(
                f"topics={topics!r}: give the name of a topic, a list of names, re.compile(...), or {{name: [partitions]}}"
            )
        if not isinstance(topics, Mapping):
            return cls(dict.fromkeys(names))
        return cls({name: _partitions(topics, given) for name, given in topics.items()})

    def hold(self, topic: str, partition: int | None = None) -> bool:
        if self.pattern is not None:
            # Kafka keeps offsets and transactions in topics of its own, which a pattern such as .* would find.
            return self.pattern.fullmatch(topic) is not None and not topic.startswith("__")
        return topic in self.named and (partition is None or partition in (self.named[topic] or (partition,)))

    def __str__(self) -> str:
        return ", ".join(map(repr, self.named)) if self.pattern is None else f"pattern {self.pattern.pattern!r}"


def _partitions(topics: Any, given: Any) -> tuple[int, ...]:
    numbers = {*given} if isinstance(given, (list, tuple, set, frozenset, range)) else set()
    if not numbers or not all(type(one) is int and one >= 0 for one in numbers):
        raise ConfigError(
            f"topics={topics!r}: name at least one partition of each topic by its number, as in {{'orders': [0]}}"
        )
    return tuple(sorted(numbers))


@dataclass(frozen=True, repr=False)
class KafkaOptions(Redacted):
    """What the spouts of Kafka were given; see `OpaqueTridentKafkaSpout` and `KafkaSpout`. They check types and bounds."""

    bootstrap_servers: str
    topics: Topics
    value: Format
    key: Literal["bytes", "text"]
    fields: tuple[str, ...]
    first_poll: Literal["earliest", "latest", "committed"] | datetime
    isolation: Literal["read_committed", "read_uncommitted"]
    group_id: str | None
    refresh_s: float
    on_data_loss: Literal["fail", "skip"]
    config: Mapping[str, Any]
    max_batch_records: int = 1
    max_batch_bytes: int = 1
    max_batch_s: float | None = None
    partition_timeout_s: float = 10.0
    on_bad: Literal["fail", "null"] = "fail"
    max_pending: int = 1
    max_uncommitted: int = 1
    commit_every_s: float = 1.0
    dead_letters: str | None = None

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise ConfigError(f'bootstrap_servers={self.bootstrap_servers!r}: write "host:port", several with commas')
        # Any of these would let the client move or commit positions by itself, behind the back of the log.
        for name in self.config:
            if name in _OURS:
                raise ConfigError(f"config: {name!r} is set by {_OURS[name]}")
        first = self.first_poll
        if isinstance(first, datetime) and first.tzinfo is None:
            raise ConfigError(f"first_poll={first!r}: a datetime needs a time zone, such as datetime.UTC")
        if self.group_id == "":
            raise ConfigError("group_id='': give the name of the group that offsets are committed to")
        if first == "committed" and self.group_id is None:
            raise ConfigError('first_poll="committed" needs group_id: the group whose offsets are meant')
        if self.dead_letters in self.topics.named:
            raise ConfigError(
                f"dead_letters={self.dead_letters!r} is a topic that is read: dead letters would come again"
            )
        self._check_columns()

    def _check_columns(self) -> None:
        if not self.fields or len(set(self.fields)) < len(self.fields) or not COLUMNS.keys() >= {*self.fields}:
            raise ConfigError(f"fields={', '.join(self.fields)!r}: each at most once, of {', '.join(COLUMNS)}")
        if self.value.replaces_all and self.fields != ("value",):
            raise ConfigError(
                f"fields={', '.join(self.fields)!r} with ByColumns: its function gets every column and says what is emitted"
            )


def columns_of(fields: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for part in fields.split(",")) if isinstance(fields, str) else tuple(fields)


def emitted_fields(options: KafkaOptions) -> Fields:
    if options.value.replaces_all:
        return options.value.fields
    types = {**COLUMNS, "key": "string" if options.key == "text" else "binary"}
    return Fields(*(options.value.fields if name == "value" else f"{name}: {types[name]}" for name in options.fields))
