"""Topics of a Kafka for tests: made under names of their own, filled, cut off, doubled, deleted, and read back whole."""

import itertools
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

_LIMIT_S = 60.0
_MARKED_S = 2.0
_ELECTING = (KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
_numbers = itertools.count(1)


class Record(NamedTuple):
    """What is written to a topic, or was read from it. Only `value` is needed to write one."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    offset: int = -1


class Topics:
    """Does to the topics of a Kafka, at the addresses `bootstrap`, what a test needs, and waits until it is done."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # brokers are killed

    def create(self, partitions: int = 1, name: str = "", copies: int = -1, **config: object) -> str:
        """Make a topic of settings such as `retention_ms=1000`; return its name, which no other has unless given."""
        name = name or f"topic-{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, partitions, copies, config=settings)
        self._done(self.admin.create_topics([topic]))
        self._wait(name, lambda found: len(found) == partitions)
        return name

    def delete(self, name: str) -> None:
        self._done(self.admin.delete_topics([name]))
        self._wait(name, lambda found: not found)

    def recreate(self, name: str, partitions: int = 1) -> None:
        """Delete a topic and make another one of the same name."""
        self.delete(name)
        self.create(partitions, name)

    def add_partitions(self, name: str, total: int) -> None:
        self._done(self.admin.create_partitions([NewPartitions(name, total)]))
        self._wait(name, lambda found: len(found) == total)

    def delete_records(self, name: str, before: int, partition: int = 0) -> None:
        """Delete the records of a partition before an offset, as its retention would."""
        self._done(self.admin.delete_records([TopicPartition(name, partition, before)]))

    def ends(self, name: str, first: bool = False, committed: bool = True) -> list[int]:
        """Return the offset after the last record of each partition, or of the first one that is there.

        `committed`: not past the first transaction that is open.
        """
        spec = OffsetSpec.earliest() if first else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(name, partition): spec for partition in range(self.partitions(name))}
        deadline = time.monotonic() + _LIMIT_S
        while True:
            answers = self.admin.list_offsets(asked, isolation_level=level)
            try:
                return [answers[one].result(_LIMIT_S).offset for one in asked]
            except KafkaException as error:  # the client may not know the leader yet, nor a broker that it was elected
                told: KafkaError = error.args[0]
                if not (told.retriable() or told.code() in _ELECTING) or time.monotonic() > deadline:
                    raise
                self.admin.list_topics(timeout=_LIMIT_S)  # has it learn of the leader

    def partitions(self, name: str) -> int:
        """Return how many partitions a topic has; 0: there is none of that name."""
        found = self.admin.list_topics(timeout=_LIMIT_S).topics.get(name)
        return 0 if found is None else len(found.partitions)

    def produce(self, name: str, records: Iterable[Record | bytes], **config: object) -> None:
        """Write records and wait until all copies have them; `config` is the producer's, with underscores."""
        producer = self.producer(**config)
        self._produce(producer, name, records)

    def filled(self, records: Iterable[Record | bytes], partitions: int = 1, **config: Any) -> str:
        """Make a topic that has these records; return its name."""
        name = self.create(partitions, **config)
        self.produce(name, records)
        return name

    def transaction(self, name: str, records: Iterable[Record | bytes], abort: bool = False, id: str = "") -> None:
        """Write records in one transaction of a producer of its own, which commits or aborts it."""
        producer = self.producer(transactional_id=id or uuid.uuid4().hex)
        producer.init_transactions(_LIMIT_S)
        producer.begin_transaction()
        self._produce(producer, name, records)
        if abort:
            producer.abort_transaction(_LIMIT_S)
        else:
            producer.commit_transaction(_LIMIT_S)
        self._wait_for_marks(name)

    def producer(self, **config: object) -> Producer:
        """Return a producer that waits for all copies and keeps the order; `config` with underscores."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0, **settings})

    def read(self, name: str, committed: bool = True) -> list[Record]:
        """Return the records of a topic by partition and offset; `committed`: of transactions that were, or all."""
        if committed:
            self._wait_for_marks(name)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True, "log_level": 0, "auto.offset.reset": "error", "fetch.wait.max.ms": 10,
            }
        )  # fmt: skip
        try:
            return _read(consumer, name, self.ends(name, first=True), self.ends(name, committed=committed))
        finally:
            consumer.close()

    def _wait_for_marks(self, name: str) -> None:
        """Wait until no transaction is open: its end is acknowledged before it is noted in the partitions."""
        deadline = time.monotonic() + _MARKED_S
        while self.ends(name) != self.ends(name, committed=False) and time.monotonic() < deadline:
            pass  # a transaction may be open on purpose

    def _produce(self, producer: Producer, name: str, records: Iterable[Record | bytes]) -> None:
        errors: list[Any] = []

        def delivered(error: Any, _: Message) -> None:
            if error is not None:
                errors.append(error)

        for record in records:
            one = record if isinstance(record, Record) else Record(record)
            while True:
                try:
                    producer.produce(
                        name, one.value, one.key, one.partition, on_delivery=delivered, timestamp=one.timestamp_ms,
                        headers=list(one.headers),
                    )  # fmt: skip
                    break
                except BufferError:
                    producer.poll(0.1)
        left = producer.flush(_LIMIT_S)
        assert not errors, errors[0]
        assert not left, f"{left} records of {name} were not delivered"

    def _done(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(_LIMIT_S)

    def _wait(self, name: str, settled: Any) -> None:
        """Wait until every partition that a topic has is led, and what is asked for holds."""
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            topic = self.admin.list_topics(timeout=_LIMIT_S).topics.get(name)
            found = [] if topic is None else list(topic.partitions.values())
            if settled(found) and all(one.leader >= 0 for one in found):
                return
        raise TimeoutError(f"the topic {name} is not as it should be")


def _read(consumer: Consumer, name: str, begins: Sequence[int], ends: Sequence[int]) -> list[Record]:
    """Read up to the given offsets.

    The last offsets of a partition may belong to no record that a reader sees (the mark of a transaction's end, records
    that were aborted), so the client's word that it is at the end is waited for.
    """
    waiting = {partition for partition, end in enumerate(ends) if begins[partition] < end}
    records: list[Record] = []
    consumer.assign([TopicPartition(name, partition, begins[partition]) for partition in sorted(waiting)])
    deadline = time.monotonic() + _LIMIT_S
    while waiting:
        assert time.monotonic() < deadline, f"could not read {name} up to {ends}"
        for message in consumer.consume(10_000, 0.05):
            record = _record(message)
            if record.offset >= ends[record.partition]:
                waiting.discard(record.partition)
            elif message.error():
                raise RuntimeError(message.error())
            else:
                records.append(record)
    return sorted(records, key=lambda one: (one.partition, one.offset))


def _record(message: Any) -> Record:
    _, at = message.timestamp()
    headers = tuple(message.headers() or ())
    return Record(message.value(), message.key(), message.partition(), headers, at, message.offset())
