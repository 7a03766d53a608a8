"""The Kafka spouts, of batches and of single records: what a user gives, checked, and the promise of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from spouts.kafka.options import KafkaOptions, Topics, columns_of, emitted_fields
from spouts.kafka.value_formats import ByColumns, ByRecord, Json, format_of
from spouts.messages import MessageSpout, RetryPolicy
from trident.fields import Fields
from trident.servers.avro import Avro
from trident.setting_types import Limit, Pause, check_arguments
from trident.spout.interfaces import OnNewLog, SpoutType
from trident.storm.interfaces import TopologyContext

if TYPE_CHECKING:
    from spouts.kafka.range_coordinator import KafkaCoordinator
    from spouts.kafka.record_tables import KafkaEmitter
    from spouts.kafka.topic_queue import TopicQueue


class _KafkaSpout:
    spout_type: SpoutType

    @check_arguments
    def __init__(
        self,
        bootstrap_servers: str,
        topics: Any,
        *,
        value: Literal["bytes", "text"] | Json | Avro | ByRecord | ByColumns = "bytes",
        key: Literal["bytes", "text"] = "bytes",
        fields: str | Sequence[str] = "value",
        first_poll: Literal["earliest", "latest", "committed"] | datetime = "earliest",
        max_batch_records: Limit = 500_000,
        max_batch_bytes: Limit = 64 << 20,
        max_batch_s: Pause | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        group_id: str | None = None,
        refresh_s: Pause = 5.0,
        partition_timeout_s: Pause = 10.0,
        on_data_loss: Literal["fail", "skip"] = "fail",
        on_bad: Literal["fail", "null"] = "fail",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = KafkaOptions(
            bootstrap_servers, Topics.of(topics), format_of(value), key, columns_of(fields), first_poll, isolation, group_id,
            refresh_s, on_data_loss, dict(config or {}), max_batch_records, max_batch_bytes, max_batch_s, partition_timeout_s,
            on_bad,
        )  # fmt: skip
        # The offsets of a group are committed behind the record of a batch, and not waited for: they may be too low.
        self.on_new_log: OnNewLog = "elsewhere" if first_poll in ("latest", "committed") else "start"

    def __repr__(self) -> str:
        """Show the options without secrets."""
        return f"{type(self).__name__}({self._options!r})"

    @property
    def source_names(self) -> Sequence[str]:
        """The topics, the pattern, or the partitions that were named of a topic."""
        topics = self._options.topics
        if topics.pattern is not None:
            return [str(topics)]
        return [name if at is None else f"{name}/{at}" for name, some in topics.named.items() for at in some or [None]]

    def get_output_fields(self) -> Fields:
        return emitted_fields(self._options)

    def get_coordinator(self, conf: Mapping[str, Any]) -> KafkaCoordinator:
        """Open the driver's side; `SpoutError` if no broker answers or a topic is not there."""
        from spouts.kafka.range_coordinator import KafkaCoordinator

        return KafkaCoordinator(self._options, self.spout_type)

    def get_emitter(self, conf: Mapping[str, Any]) -> KafkaEmitter:
        from spouts.kafka.record_tables import KafkaEmitter

        return KafkaEmitter(self._options)


class OpaqueTridentKafkaSpout(_KafkaSpout):
    """Emits each record of Kafka topics; a replay may hold other records, but none is lost or repeated. Opaque.

    A partition that is away is left out of batches until it is back. Use it with opaque states.

    Parameters
    ----------
    bootstrap_servers
        `"host:port"`, several with commas.
    topics
        A topic's name, a list of names, `re.compile(...)` for all topics whose whole name matches, or the partitions of
        each topic, `{"orders": [0, 2]}`.
    value
        `"bytes"`, `"text"` (UTF-8), `Json("account: string, amount: bigint")`, `Avro(schema)`, or a function of yours:
        `ByRecord(fields, function)`, `ByColumns(fields, function)`. JSON and Avro emit their fields in the place of `value`.
    key
        `"bytes"` or `"text"`.
    fields
        What is emitted, in this order: any of `value`, `key`, `timestamp`, `partition`, `offset`, `topic`, `headers`.
    first_poll
        Where a topic that is not in the topology's log yet begins: `"earliest"`, `"latest"`, a `datetime` (records from
        then on), `"committed"` (the offsets of `group_id`, the beginning where it has none). A partition that is added to a
        topic later, and a topic that a pattern finds later, begin at their first record in any case.
    max_batch_records, max_batch_bytes, max_batch_s
        The most that one batch holds: offsets, bytes of keys and values (estimated from samples of the records), and
        seconds that it takes to be processed and committed (from the speed so far; None: no limit).
    isolation
        `"read_committed"` leaves out the records of transactions that were aborted or are open; `"read_uncommitted"`.
    group_id
        Offsets are committed to this consumer group after the record of each batch, for monitors of lag. They are read
        only with `first_poll="committed"`.
    refresh_s
        Seconds between searches for new partitions and topics.
    partition_timeout_s
        How many seconds an attempt waits for a partition that gives nothing. Then it fails, and is tried again until the
        partition is back; these tries do not count.
    on_data_loss
        What happens if records that come next are gone (retention, a topic created again, an unclean election): `"fail"`,
        or `"skip"` goes on without them; each skip is logged and counted.
    on_bad
        What happens to a value that is not text, JSON or Avro: `"fail"`, or `"null"`: its fields are None.
    config
        Any settings of librdkafka, as for TLS and SASL.
    """

    spout_type = SpoutType.OPAQUE


class TransactionalTridentKafkaSpout(_KafkaSpout):
    """Emits each record of Kafka topics; a replay of a batch holds the same records. Transactional.

    While a partition is away the topology waits. A topic that is compacted is refused, because it loses records between
    two attempts. The options are the same as for `OpaqueTridentKafkaSpout`.
    """

    spout_type = SpoutType.TRANSACTIONAL


class KafkaSpout(MessageSpout):
    """Emits the records of Kafka topics one by one; an offset is committed once every record before it is acknowledged.

    A task reads the same partitions at each start, so no group is rebalanced. The order is that of each partition, but for
    records that are tried again. What is acknowledged behind the committed offset is committed with it in its metadata, so
    that a restart does not emit it again.

    Parameters
    ----------
    bootstrap_servers, topics, key, fields, isolation, refresh_s, on_data_loss, config
        As for `OpaqueTridentKafkaSpout`; a skip by `on_data_loss` is logged. A topic created again is read from its beginning.
    value
        As there, but for `ByColumns`.
    group_id
        The consumer group that offsets are committed to. One topology per group, and no other consumers in it.
    first_poll
        Where a partition begins for which the group has no offset: `"earliest"`, `"latest"`, or a `datetime`. One that
        is added to a topic later begins at its first record.
    max_pending
        The most records that a task holds before they are acknowledged.
    max_uncommitted
        The most offsets of a partition from the lowest unacknowledged one on. Then the partition waits for that one.
    commit_every_s
        How often offsets are committed; also whenever `max_pending` more records are done.
    max_failures
        After so many failures a record is given up. None: never, or after 10 if there are `dead_letters`.
    first_pause_s, longest_pause_s
        Seconds before the first retry; each further pause is twice as long, up to the longest.
    dead_letters
        The topic that gets records that are given up, with the reason in headers; it must exist. None: the log gets them.
    """

    @check_arguments
    def __init__(
        self,
        bootstrap_servers: str,
        topics: Any,
        *,
        group_id: str,
        value: Literal["bytes", "text"] | Json | Avro | ByRecord = "bytes",
        key: Literal["bytes", "text"] = "bytes",
        fields: str | Sequence[str] = "value",
        first_poll: Literal["earliest", "latest"] | datetime = "earliest",
        max_pending: Limit = 1000,
        max_uncommitted: Limit = 100_000,
        commit_every_s: Pause = 1.0,
        max_failures: int | None = None,
        first_pause_s: float = 0.2,
        longest_pause_s: float = 60.0,
        dead_letters: str | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        refresh_s: Pause = 5.0,
        on_data_loss: Literal["fail", "skip"] = "fail",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = KafkaOptions(
            bootstrap_servers, Topics.of(topics), format_of(value), key, columns_of(fields), first_poll, isolation, group_id,
            refresh_s, on_data_loss, dict(config or {}), max_pending=max_pending, max_uncommitted=max_uncommitted,
            commit_every_s=commit_every_s, dead_letters=dead_letters,
        )  # fmt: skip
        policy = RetryPolicy(max_failures, first_pause_s, longest_pause_s, dead_letters)
        super().__init__(emitted_fields(self._options), policy, max_pending)

    def __repr__(self) -> str:
        """Show the options without secrets."""
        return f"KafkaSpout({self._options!r}, {self._policy!r})"

    def _connect(self, context: TopologyContext, report: Callable[[BaseException], None]) -> TopicQueue:
        from spouts.kafka.topic_queue import TopicQueue

        return TopicQueue(self._options, context.task, context.tasks)
