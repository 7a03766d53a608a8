"""The options of a Kafka spout, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from spouts.kafka.value_formats import Format, format_of
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
    """Which partitions are read: of the topics with these names, or whose whole name matches the pattern.

    `names`: names of topics.
    `pattern`: a regular expression, or None.
    `assigned`: the partitions of each topic, if not all of them are read.
    """

    names: tuple[str, ...]
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Any) -> Topics:
        """Make it of what a user gives: a name, several, a compiled pattern, or partitions by topic."""
        if isinstance(topics, re.Pattern):
            return cls((), topics.pattern)
        if isinstance(topics, Mapping):
            assigned = {name: _partitions(topics, found) for name, found in topics.items()}
            return cls(_names(tuple(assigned), topics), None, assigned)
        listed = topics if isinstance(topics, (list, tuple, set, frozenset)) else [topics]
        return cls(_names(tuple(listed), topics))

    def hold(self, topic: str, partition: int | None = None) -> bool:
        if self.pattern is not None:
            # Kafka keeps offsets and transactions in topics of its own, which a pattern such as .* would find.
            return re.fullmatch(self.pattern, topic) is not None and not topic.startswith("__")
        return topic in self.names and (partition is None or partition in self.assigned.get(topic, (partition,)))

    def __str__(self) -> str:
        return f"pattern {self.pattern!r}" if self.pattern is not None else ", ".join(map(repr, self.names))


def _partitions(given: Any, found: Any) -> tuple[int, ...]:
    numbers = {*found} if isinstance(found, (list, tuple, set, frozenset, range)) else set()
    if not numbers or not all(type(one) is int and one >= 0 for one in numbers):
        raise ConfigError(
            f"topics={given!r}: name at least one partition of each topic by its number, as in {{'orders': [0]}}"
        )
    return tuple(sorted(numbers))


def _names(names: tuple[str, ...], given: Any) -> tuple[str, ...]:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"topics={given!r}: give the name of a topic, a list of names, re.compile(...), or {{name: [partitions]}}"
        )
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, repr=False)
class KafkaOptions(Redacted):
    """What the spouts of Kafka were given; see `OpaqueTridentKafkaSpout`. They check types and bounds."""

    bootstrap_servers: str
    topics: Topics
    value: Format
    key: Literal["bytes", "text"]
    fields: tuple[str, ...]
    first_poll: Literal["earliest", "latest", "committed"] | datetime
    isolation: Literal["read_committed", "read_uncommitted"]
    group_id: str | None
    on_data_loss: Literal["fail", "skip"]
    config: Mapping[str, Any]
    refresh_s: float
    max_batch_records: int = 1
    max_batch_bytes: int = 1
    max_batch_s: float | None = None
    partition_timeout_s: float = 10.0
    on_bad: Literal["fail", "null"] = "fail"

    @classmethod
    def of(cls, bootstrap_servers: str, topics: Any, given: Mapping[str, Any]) -> KafkaOptions:
        """Check the options of a user; `ConfigError` names the wrong one."""
        if not bootstrap_servers.strip():
            raise ConfigError(f'bootstrap_servers={bootstrap_servers!r}: write "host:port", several with commas')
        fields = given["fields"]
        columns = tuple(part.strip() for part in fields.split(",")) if isinstance(fields, str) else tuple(fields)
        checked = dict(given, value=format_of(given["value"]), fields=columns, config=dict(given["config"] or {}))
        return cls(bootstrap_servers, Topics.of(topics), **checked)

    def __post_init__(self) -> None:
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
        self._check_columns()

    def _check_columns(self) -> None:
        unknown = [name for name in self.fields if name not in COLUMNS]
        if unknown or not self.fields or len(set(self.fields)) < len(self.fields):
            raise ConfigError(f"fields={', '.join(self.fields)!r}: each at most once, of {', '.join(COLUMNS)}")
        if self.value.replaces_all and self.fields != ("value",):
            raise ConfigError(
                f"fields={', '.join(self.fields)!r} with ByColumns: its function gets every column and says what is emitted"
            )


class ReadLimits(NamedTuple):
    """How much of its partitions a task may hold; see `KafkaSpout`.

    As many records as may be pending may also be acknowledged and not committed: if the task dies they come again.
    """

    max_pending: int
    max_uncommitted: int
    commit_every_s: float


def emitted_fields(options: KafkaOptions) -> Fields:
    if options.value.replaces_all:
        return options.value.fields
    types = {**COLUMNS, "key": "string" if options.key == "text" else "binary"}
    return Fields(*(options.value.fields if name == "value" else f"{name}: {types[name]}" for name in options.fields))
