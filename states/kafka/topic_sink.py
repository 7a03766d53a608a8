"""The life of a commit to a topic, and why each batch is written once (R7, R8, R9).

One commit::

    begin_commit(txid)   compares the sentinel, and takes the transactional id: what another producer left open is aborted,
                         and that one is refused from now on. Then it compares the sentinel again, and begins a transaction
    write(records)       nothing if the sentinel is of this very batch, else the records
    commit(txid)         puts the sentinel of this attempt into the transaction, and commits it

The invariant: the topic holds the records of a batch, for readers of committed records, exactly if the sentinel is of that
batch or of a later one, because both become visible in one transaction. The sentinel was read when no other producer could
commit any more. So a replay finds either no record of its batch and writes all, or all and writes none: if a driver died
after Kafka's commit and before the record in the log, or the answer was lost. Then only the sentinel moves, to the attempt
that the log will record. What was written stays as the first attempt wrote it, so a replay must bring the same tuples.

Kafka refuses a producer whose transactional id another one has taken since, and ends its transaction first. So what was read
after taking the id holds until this producer's own commit.

Kafka deletes the offset that has the sentinel together with the topic, and the sentinel says which topic it belongs to: one
that was deleted or made again has none.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from states.kafka.options import KafkaTopicOptions
from trident.errors import (
    BackendError,
    CommitOrderError,
    ConfigError,
    StaleTransactionError,
    StoreAwayError,
    UnsupportedOperation,
)
from trident.servers.kafka_client import STRANGER, Reports, is_away, is_passing
from trident.state.interfaces import State, StateConf, StateFacts, StateType
from trident.state.sentinel import check_sentinel
from trident.state.txid import Sentinel, Txid
from trident.storekit import FieldsCodec, RecordFence, Register, Retries, SentinelRecord, refuse_read_only

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_UNREAD = b"\0"  # no sentinel begins with it
_DEAD_S = 2.0  # a commit in progress takes less
_ABORT_S = 5.0  # at most; Kafka ends the transaction by itself later


TopicRecord = tuple[bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]] | None]
"""What is written for one tuple: key, value, partition (-1: by the key), milliseconds (0: now) and headers."""


class TopicSink(State):
    """A `State` that writes records; see `ToTopic` for what feeds it."""

    kind = StateType.TRANSACTIONAL
    facts = StateFacts(can_be_emptied=False)

    def __init__(self, options: KafkaTopicOptions, conf: StateConf) -> None:
        self.place, self._read_only = conf.prefix, conf.read_only
        self._what = f"state {conf.prefix!r} in topic {options.topic!r} of Kafka at {options.bootstrap}"
        self._writer = TopicWriter(options, options.prefix or conf.prefix, self._what, conf.read_only)
        # The token distinguishes a commit whose answer was lost from another run of the same attempt.
        self._fence = RecordFence(self._writer, FieldsCodec((*Sentinel._fields, "token")), self._what)
        self._own: Sentinel | None = None  # of the commit that has begun
        self._is_written = False  # by an earlier attempt

    def begin_commit(self, txid: int) -> None:
        """Compare the sentinel, and begin a transaction. One that an earlier attempt left open is aborted."""
        refuse_read_only(self._read_only, "begin a commit", self._what)
        commit, self._own = Txid.of(txid), None
        own = commit.sentinel or Sentinel("", int(commit), commit.attempt)  # without a log, its incarnation has no name
        own = own._replace(place=self.place)
        if not self._writer.has_id:
            self._compare(commit, own)  # so that a driver that was replaced does not take the id from its successor
        self._writer.take()
        found = self._compare(commit, own)
        self._is_written = found is not None and (found.incarnation, found.txid) == (own.incarnation, own.txid)
        self._writer.begin()
        self._own = own

    def _compare(self, commit: Txid, own: Sentinel) -> Sentinel | None:
        found = self.read_sentinel()
        if commit.sentinel is not None:
            check_sentinel(self.place, 0, found, commit, self.place)
        elif found is not None and found.txid > commit:
            raise StaleTransactionError(self.place, "the topic", int(commit), found.txid)
        self._fence.check_move(own)
        return found

    def write(self, records: Iterable[TopicRecord]) -> None:
        """Write records, unless an earlier attempt of the batch has; all of a batch or none."""
        if self._own is None:
            raise CommitOrderError(f"{self._what} was written outside begin_commit and commit")
        if not self._is_written:
            self._writer.write(records)

    def commit(self, txid: int) -> None:
        own, self._own = self._own, None
        if own is None or own.txid != txid:
            raise CommitOrderError(f"commit({txid!s}) without its begin_commit: {self._what}")
        self._lay(own)

    def read_sentinel(self) -> Sentinel | None:
        found = self._fence.read()
        return None if found is None else found.sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Lay a sentinel without records, if what was read last is still there; `force` also moves it back."""
        refuse_read_only(self._read_only, "move the sentinel", self._what)
        self._own, sentinel = None, sentinel._replace(place=self.place)
        self._fence.check_move(sentinel, force)
        self._lay(sentinel)

    def reset(self) -> None:
        """Refuse to empty the topic (`UnsupportedOperation`): what other programs have read cannot be taken back."""
        raise UnsupportedOperation(
            f"empty {self._what}: other programs may have read its records. To write everything again, give another topic "
            "and a new log_dir"
        )

    def close(self) -> None:
        self._own = None
        self._writer.close()

    def _lay(self, sentinel: Sentinel) -> None:
        self._writer.mark = sentinel.txid
        self._fence.lay(SentinelRecord(sentinel, (os.urandom(8).hex(),)))


class TopicWriter(Register):
    """One producer with a transactional id, and the register that its transactions replace. Used by one thread at a time.

    After an error whose outcome is not known the producer is given up: the next one takes the id, Kafka ends the transaction
    in one way or the other, and the sentinel says in which. `mark` is the committed offset, which shows the txid in tools.
    """

    def __init__(self, options: KafkaTopicOptions, name: str, what: str, read_only: bool) -> None:
        self._options, self._name, self._what, self._read_only = options, name, what, read_only
        self._reports = Reports()
        self._admin: Any = None
        self._group: Any = None
        self._producer: Any = None
        self._in_transaction = False
        self._refused: Any = None  # why Kafka refused the first record that it refused
        self._held = _UNREAD  # what the register holds, as long as this producer has the id
        self._topic = ""  # the identity of the topic
        self.mark = 0

    def read(self) -> bytes | None:
        self._topic = self._look_up_topic()
        stored = self._held if self._producer is not None and self._held != _UNREAD else self._read_metadata()
        if self._producer is not None:
            self._held = stored
        topic, _, data = stored.partition(b" ")
        return data if topic.decode() == self._topic else None

    def swap(self, found: bytes | None, new: bytes) -> bytes | None:
        """Replace the sentinel, together with what was written since `begin`."""
        if not self._in_transaction:
            self.take()
            now = self.read()
            if now != found:
                return now
            self.begin()
        self._commit(b"%s %s" % (self._topic.encode(), new))
        return new

    @property
    def has_id(self) -> bool:
        """Whether this producer took the transactional id; another one may have taken it since."""
        return self._producer is not None

    def take(self) -> None:
        """Take the transactional id, unless this producer has it, and end a transaction that was left open."""
        if self._in_transaction:
            self.give_up()
        if self._producer is not None:
            return
        producer = self._make_client(Producer, self._producer_settings(), logger=_LOG)
        self._held = _UNREAD
        self._ask("take the transactional id", producer.init_transactions)
        self._producer = producer

    def begin(self) -> None:
        self._refused = None
        self._ask("begin a transaction", lambda _: self._producer.begin_transaction())
        self._in_transaction = True

    def write(self, records: Iterable[TopicRecord]) -> None:
        produce, topic = self._producer.produce, self._options.topic
        for key, value, partition, timestamp, headers in records:
            try:
                try:
                    produce(topic, value, key, partition, None, None, timestamp, headers)
                except BufferError:
                    self._make_room()
                    produce(topic, value, key, partition, None, None, timestamp, headers)
            except KafkaException as error:
                size = sum(map(len, filter(None, (key, value))))
                raise self._error(f"write a record of {size} bytes to partition {partition}", error) from error

    def give_up(self) -> None:
        """Abort an open transaction, so that it does not hold up readers, and close the producer."""
        producer, self._producer = self._producer, None
        if producer is not None and self._in_transaction:
            with suppress(KafkaException):
                producer.abort_transaction(_ABORT_S)
            producer.purge()
        self._in_transaction = False

    def close(self) -> None:
        self.give_up()
        group, self._group, self._admin = self._group, None, None
        if group is not None:
            group.close()

    def _commit(self, stored: bytes) -> None:
        wait_s = self._options.timeout_s
        position = TopicPartition(self._options.topic, 0, self.mark, stored.decode())
        members = self._consumer().consumer_group_metadata()
        self._in_transaction = False
        producer, self._producer = self._producer, None  # given up, unless the answer says that all went well
        try:
            _patiently(wait_s, lambda left: producer.send_offsets_to_transaction([position], members, left))
            _patiently(wait_s, producer.commit_transaction)
        except KafkaException as error:
            with suppress(KafkaException):
                if error.args[0].txn_requires_abort():
                    producer.abort_transaction(_ABORT_S)
            producer.purge()
            raise self._error("commit a transaction", error) from error
        self._producer, self._held = producer, stored

    def _make_room(self) -> None:
        """Wait until a part of the full queue has left."""
        limit, half = time.monotonic() + self._options.timeout_s, len(self._producer) // 2
        while len(self._producer) > half and self._refused is None:
            self._producer.poll(0.01)
            if time.monotonic() > limit:
                message = f"write records of {self._what}: none were taken in time ({self._reports})"
                raise StoreAwayError(message, self._what)

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None and self._refused is None:
            self._refused = error

    def _look_up_topic(self) -> str:
        if self._admin is None:
            self._admin = self._make_client(AdminClient, {"log_level": 0, "error_cb": self._reports.error})
        limit, topics = self._options.connect_timeout_s, TopicCollection([self._options.topic])

        def read_topic_id(_: float) -> str:
            (answer,) = self._admin.describe_topics(topics, request_timeout=limit).values()
            return str(answer.result(limit + 1).topic_id)

        return self._ask("find the topic", read_topic_id)

    def _read_metadata(self) -> bytes:
        """Return the metadata of the offset. The answer waits for the end of a transaction that would replace it."""
        asked, wait_s = [TopicPartition(self._options.topic, 0)], self._options.timeout_s
        try:
            limit = wait_s if self.has_id else min(_DEAD_S, wait_s)
            found = _patiently(wait_s, lambda left: self._consumer().committed(asked, min(left, limit))[0])
        except KafkaException as error:
            if self.has_id or self._read_only or error.args[0].name() != "_TIMED_OUT":
                raise self._error("read the sentinel", error) from error
            self.take()  # which ends it, because its driver seems to be dead
            return self._read_metadata()
        if found.error is not None:
            raise backend_error("read the sentinel", self._what, found.error, self._reports)
        return (found.metadata or "").encode() if found.offset >= 0 else b""

    def _consumer(self) -> Any:
        """Return the client of the group, which reads no record and is no member."""
        if self._group is None:
            settings = {
                "group.id": self._name, "enable.auto.commit": False, "log_level": 0,
                "isolation.level": "read_committed",
            }  # fmt: skip
            self._group = self._make_client(Consumer, settings)
        return self._group

    def _producer_settings(self) -> dict[str, Any]:
        return {
            "transactional.id": self._name, "socket.timeout.ms": round(min(self._options.timeout_s, 300) * 1000),
            "transaction.timeout.ms": round(self._options.transaction_ms),
            "acks": "all", "compression.type": self._options.compression,
            "partitioner": "murmur2_random",  # as Java's clients, so a key is where their records of it are
            "log_level": 3, "delivery.report.only.error": True, "error_cb": self._reports.error,
            "on_delivery": self._on_delivery,
        }  # fmt: skip

    def _make_client(self, kind: Callable[..., T], settings: dict[str, Any], **more: Any) -> T:
        given = {"bootstrap.servers": self._options.bootstrap, **settings, **self._options.config}
        try:
            return kind(given, **more)
        except KafkaException as error:
            raise ConfigError(f"{self._what}: the client refuses config: {error.args[0].str()}") from None

    def _ask(self, doing: str, call: Callable[[float], T]) -> T:
        try:
            return _patiently(self._options.timeout_s, call)
        except KafkaException as error:
            raise self._error(doing, error) from error

    def _error(self, doing: str, error: KafkaException) -> BackendError:
        reason = error.args[0] if self._refused is None else self._refused
        if self._admin is not None:
            self._admin.poll(0)  # it reports what it has seen only when asked
        return backend_error(doing, self._what, reason, self._reports)


def _patiently(wait_s: float, call: Callable[[float], T]) -> T:
    """Call, with the seconds that are left, until it succeeds, the time is over, or an error does not pass by itself."""
    limit = time.monotonic() + wait_s

    def goes_on(error: Any, *_: Any) -> bool:
        return is_passing(error.args[0]) and time.monotonic() < limit

    return Retries(0, 0.05, 1.0).run(lambda: call(max(0.1, limit - time.monotonic())), KafkaException, goes_on)


_AWAY = "are the brokers up, and are their addresses right, also those that they advertise?"
_TOPIC = "create the topic, or give the name of one that exists"
_RIGHTS = "docs/states/kafka.md lists the rights that the user needs"
_TAKEN = (
    "another producer with its transactional id has begun: a driver that replaced this one, or another state with the same "
    "prefix. Nothing of this attempt is seen"
)
_ADVICE = {
    "UNKNOWN_TOPIC_OR_PART": _TOPIC,
    "_UNKNOWN_TOPIC": _TOPIC,
    "TOPIC_EXCEPTION": _TOPIC,
    "UNKNOWN_TOPIC_ID": _TOPIC,
    "_UNKNOWN_PARTITION": "the field for the partition names one that the topic does not have",
    "MSG_SIZE_TOO_LARGE": (
        "write smaller records, or raise max.message.bytes of the topic and config={'message.max.bytes': …}"
    ),
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms in config, or raise the broker's limit",
    **dict.fromkeys(STRANGER, "check user, password and TLS in config"),
    **dict.fromkeys(("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"), _TAKEN),
}
_PERMANENT = ("_UNKNOWN_PARTITION", "MSG_SIZE_TOO_LARGE", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED")


def backend_error(doing: str, what: str, error: Any, reports: Reports) -> BackendError:
    """Return the error of Trident for one of Kafka's, a `KafkaError`, with what the client said of its connections."""
    name, message = error.name(), f"{doing} of {what}: {error.name()}: {error.str()}"
    if is_away(error):
        return StoreAwayError(f"{message} ({reports}); {_AWAY}", what)
    is_forbidden = name.endswith("AUTHORIZATION_FAILED")
    advice = _ADVICE.get(name, _RIGHTS if is_forbidden else "see the broker's log")
    return BackendError(f"{message}; {advice}", name not in _PERMANENT and not is_forbidden)
