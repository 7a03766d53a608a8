"""A stream that is written to a topic: each batch once, by one writer, whenever its driver dies; errors say what to do."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from spouts import FixedBatchSpout
from states.kafka import KafkaTopicOptions, KafkaTopicState, ToTopic, topic_sink
from states.kafka.topic_sink import TopicRecord, TopicSink, TopicWriter
from tests.harness import topology_runs
from tests.harness.forked import die, exit_code_of
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Topics
from tests.harness.store_commits import Log
from tests.harness.topology_runs import Keep, RowsState, run_all, start
from trident import TridentTopology
from trident.errors import (
    BackendError,
    BatchFailedError,
    CommitOrderError,
    ConfigError,
    FencedError,
    InexactPairingError,
    StaleTransactionError,
    StateMismatchError,
    StatePlaceError,
    UnsupportedOperation,
)
from trident.spout.interfaces import SpoutType, TransactionAttempt
from trident.state import StateConf
from trident.state.txid import Sentinel

pytestmark = pytest.mark.server
TXID = 3
POINTS = ("began", "half written", "before the sentinel", "before Kafka's commit", "after Kafka's commit", "recorded")
BATCH, ROWS = 4, 20


def topology(bootstrap: str, topic: str, **options: Any) -> TridentTopology:
    declared = TridentTopology("numbers")
    spout = FixedBatchSpout("key: string, value: string", BATCH, *[(str(n % 3), str(n)) for n in range(ROWS)])
    sink = KafkaTopicState.transactional(bootstrap, topic, **options)
    declared.new_stream("numbers", spout).partition_persist(sink, ["key", "value"], ToTopic())
    return declared


class Fuse:
    """Kills this process where it is told to.

    `point` says where in a batch: after the transaction began, with half of the records in Kafka, before or after Kafka's
    commit of the transaction, after the record in the log.
    """

    def __init__(self, point: str, txid: int) -> None:
        self.point, self.txid, self.now = point, txid, 0

    def reach(self, point: str) -> None:
        if (point, self.now) == (self.point, self.txid):
            die()

    def observe(self, step: str, attempt: TransactionAttempt) -> None:
        self.now = attempt.txid if step == "recorded" else self.now
        self.reach(step)

    def arm(self) -> None:
        """Have the sink's producer come by the points."""
        fuse, begin = self, topic_sink.TopicSink.begin_commit

        def begin_commit(sink: Any, txid: int) -> None:
            fuse.now = int(txid)
            begin(sink, txid)
            fuse.reach("began")

        class FusedProducer(Producer):
            made = 0

            def produce(self, *args: Any, **named: Any) -> None:
                super().produce(*args, **named)
                self.made += 1
                if self.made % (BATCH // 2) == 0 and fuse.point == "half written":
                    self.flush()  # so that Kafka has them
                    fuse.reach("half written")

            def send_offsets_to_transaction(self, *args: Any) -> None:
                self.flush()
                fuse.reach("before the sentinel")
                super().send_offsets_to_transaction(*args)

            def commit_transaction(self, *args: Any) -> None:
                fuse.reach("before Kafka's commit")
                super().commit_transaction(*args)
                fuse.reach("after Kafka's commit")

        topic_sink.TopicSink.begin_commit = begin_commit  # type: ignore[method-assign, assignment]
        topic_sink.Producer = FusedProducer  # type: ignore[attr-defined]


def write_until(point: str, bootstrap: str, topic: str, log_dir: str) -> None:
    """Write numbers to a topic, and die at a point of a batch."""
    fuse = Fuse(point, TXID)
    fuse.arm()
    with topology_runs.start(topology(bootstrap, topic), "in_process", fuse.observe, log_dir=log_dir) as running:
        running.process_all_available()


@pytest.fixture
def topic(kafka_topics: Topics) -> str:
    return kafka_topics.create()


def values(topics: Topics, topic: str, committed: bool = True) -> list[int]:
    return [int(one.value or b"") for one in topics.read(topic, committed)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("point", POINTS)
def test_each_record_is_seen_once_and_in_order(point: str, kafka_topics: Topics, topic: str, tmp_path: Path) -> None:
    log_dir = str(tmp_path / "log")
    assert exit_code_of(write_until, point, kafka_topics.bootstrap, topic, log_dir) == -signal.SIGKILL
    written = TXID * BATCH if point in ("after Kafka's commit", "recorded") else (TXID - 1) * BATCH
    assert values(kafka_topics, topic) == list(range(written))
    run_all(topology(kafka_topics.bootstrap, topic), "in_process", log_dir=log_dir)
    assert values(kafka_topics, topic) == list(range(ROWS))
    aborted = {"half written": BATCH // 2, "before the sentinel": BATCH, "before Kafka's commit": BATCH}.get(point, 0)
    assert len(values(kafka_topics, topic, committed=False)) == ROWS + aborted


def entry(value: bytes) -> TopicRecord:
    return None, value, -1, 0, None


class Home:
    """A topic, and sinks that write to it, all closed at the end."""

    def __init__(self, topics: Topics) -> None:
        self.topics, self.topic, self._opened = topics, topics.create(), list[TopicSink]()

    def sink(self, state: str = "", read_only: bool = False, **options: Any) -> TopicSink:
        given = {"bootstrap": self.topics.bootstrap, "topic": self.topic, **options}
        sink = TopicSink(KafkaTopicOptions(**given), StateConf("sinks", state or self.topic, read_only=read_only))
        self._opened.append(sink)
        return sink

    def values(self, committed: bool = True) -> list[bytes | None]:
        return [one.value for one in self.topics.read(self.topic, committed)]

    def close(self) -> None:
        for sink in self._opened:
            sink.close()


@pytest.fixture
def home(kafka_topics: Topics) -> Iterator[Home]:
    home = Home(kafka_topics)
    yield home
    home.close()


def write(sink: TopicSink, log: Log, number: int, attempt: int, *values: bytes, record: bool = True) -> None:
    txid = log.txid(number, attempt)
    sink.begin_commit(txid)
    sink.write(entry(value) for value in values)
    sink.commit(txid)
    if record:
        log.record(txid)


@pytest.mark.sample(1)
def test_a_topology_writes_each_record_once_over_restarts(
    engine: str, kafka_topics: Topics, topic: str, tmp_path: Path
) -> None:
    for _ in range(2):
        run_all(topology(kafka_topics.bootstrap, topic), engine, log_dir=str(tmp_path))
    found = kafka_topics.read(topic)
    assert [(one.key, one.value) for one in found] == [(b"%d" % (n % 3), b"%d" % n) for n in range(ROWS)]


class FailingOnce(RowsState):
    """Fails the commit of its second batch, once."""

    left = 1

    def commit(self, txid: int) -> None:
        if int(txid) == 2 and self.left:
            self.left = 0
            raise BackendError("lost")
        super().commit(txid)


def test_a_batch_whose_next_state_fails_is_replayed_and_written_once(
    kafka_topics: Topics, topic: str, tmp_path: Path
) -> None:
    behind = FailingOnce()
    declared = TridentTopology("two")
    numbers = declared.new_stream("numbers", FixedBatchSpout("value: string", 2, *[(str(n),) for n in range(8)]))
    numbers.partition_persist(
        KafkaTopicState.transactional(kafka_topics.bootstrap, topic), ToTopic(), state_name="sink"
    )
    numbers.partition_persist(behind, ["value"], Keep(), "kept: string", state_name="behind")
    run_all(declared, "in_process", log_dir=str(tmp_path))
    assert behind.calls.count("begin 2") == 2
    assert [one.value for one in kafka_topics.read(topic)] == [b"%d" % n for n in range(8)]
    assert len(kafka_topics.read(topic, committed=False)) == 8


def test_an_opaque_spout_is_refused_unless_inexact_is_allowed(
    kafka_topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_topics.create()
    declared = topology(kafka_topics.bootstrap, topic)
    monkeypatch.setattr(FixedBatchSpout, "spout_type", SpoutType.OPAQUE)
    with pytest.raises(InexactPairingError, match=r"pairing \(opaque spout, transactional state\) is not exact"):
        start(declared, "in_process", log_dir=str(tmp_path))
    run_all(declared, "in_process", log_dir=str(tmp_path), allow_inexact=True)
    assert len(kafka_topics.read(topic)) == ROWS


def test_a_topic_that_was_made_again_is_refused_until_it_is_adopted(
    kafka_topics: Topics, topic: str, tmp_path: Path
) -> None:
    declared, log_dir = topology(kafka_topics.bootstrap, topic), str(tmp_path)
    run_all(declared, "in_process", log_dir=log_dir)
    kafka_topics.recreate(topic)
    with pytest.raises(StateMismatchError, match="the store has no commit at all"):
        start(declared, "in_process", log_dir=log_dir)
    with pytest.raises(UnsupportedOperation, match="other programs may have read its records"):
        start(declared, "in_process", log_dir=log_dir, state_recovery="discard_totals")
    run_all(declared, "in_process", log_dir=log_dir, state_recovery="keep_totals_even_if_wrong")
    assert kafka_topics.read(topic) == []


def test_another_log_does_not_write_where_a_topology_has_written(
    kafka_topics: Topics, topic: str, tmp_path: Path
) -> None:
    run_all(topology(kafka_topics.bootstrap, topic), "in_process", log_dir=str(tmp_path / "one"))
    with pytest.raises(StateMismatchError, match="the log expects no commit of incarnation"):
        start(topology(kafka_topics.bootstrap, topic), "in_process", log_dir=str(tmp_path / "two"))


def test_a_topic_that_is_not_there_ends_the_start(kafka_topics: Topics, tmp_path: Path) -> None:
    declared = topology(kafka_topics.bootstrap, "absent", connect_timeout_s=1)
    said = "find the topic of .* in topic 'absent' .*: UNKNOWN_TOPIC_OR_PART: .*; create the topic"
    with pytest.raises(BackendError, match=said):
        start(declared, "in_process", log_dir=str(tmp_path), store_wait_s=0.1)


def test_a_record_that_is_too_large_is_named(kafka_topics: Topics, tmp_path: Path) -> None:
    topic = kafka_topics.create(max_message_bytes=1000)
    declared = TridentTopology("large")
    spout = FixedBatchSpout("key: string, value: string", 1, ("k", "v" * 5000))
    declared.new_stream("large", spout).partition_persist(
        KafkaTopicState.transactional(kafka_topics.bootstrap, topic, compression="none"), ToTopic()
    )
    running = start(declared, "in_process", log_dir=str(tmp_path), max_batch_attempts=2)
    with pytest.raises(BatchFailedError, match="MSG_SIZE_TOO_LARGE.*write smaller records, or raise max.message.bytes"):
        running.process_all_available()
    assert kafka_topics.read(topic) == []


def test_a_replay_of_a_batch_that_is_there_writes_nothing_and_takes_its_place(home: Home) -> None:
    log = Log()
    write(home.sink(), log, 1, 0, b"a", b"b")
    write(home.sink(), log, 2, 0, b"c", record=False)  # its driver died before the record
    write(home.sink(), log, 2, 1, b"c")
    write(home.sink(), log, 3, 1, b"d")
    assert home.values() == [b"a", b"b", b"c", b"d"]
    assert home.sink().read_sentinel() == Sentinel("inc", 3, 1)


def test_a_batch_of_more_records_than_the_client_holds_is_written_in_order(home: Home) -> None:
    values = [b"%d" % n for n in range(2000)]
    write(home.sink(config={"queue.buffering.max.messages": 100}), Log(), 1, 0, *values)
    assert home.values() == values


def test_what_a_failed_attempt_wrote_is_invisible(home: Home) -> None:
    log, sink = Log(), home.sink()
    sink.begin_commit(log.txid(1))
    sink.write([entry(b"aborted")])
    sink._writer._producer.flush()
    write(sink, log, 1, 1, b"a")
    sink.begin_commit(log.txid(2, 1))
    sink.write([entry(b"aborted")])
    sink._writer._producer.flush()
    sink.close()
    assert home.values() == [b"a"]
    assert home.values(committed=False) == [b"aborted", b"a", b"aborted"]


@pytest.mark.long
def test_an_open_transaction_holds_readers_up_to_the_next_begin_commit_at_most(home: Home) -> None:
    log, dead = Log(), home.sink()
    dead.begin_commit(log.txid(1))
    dead.write([entry(b"aborted")])
    dead._writer._producer.flush()
    home.topics.transaction(home.topic, [b"of another program"])
    assert home.values() == []
    home.sink().begin_commit(log.txid(1, 1))
    assert home.values() == [b"of another program"]


@pytest.mark.parametrize("slept", ["before begin_commit", "before the update", "before the commit"])
def test_a_driver_that_was_replaced_writes_nothing(slept: str, home: Home) -> None:
    log, zombie, successor = Log(), home.sink(), home.sink()
    write(zombie, log, 1, 0, b"a")
    txid = log.txid(2, 0)
    if slept != "before begin_commit":
        zombie.begin_commit(txid)
    if slept == "before the commit":
        zombie.write([entry(b"zombie")])
        zombie._writer._producer.flush()
    write(successor, log, 2, 5, b"b")
    if slept == "before begin_commit":
        zombie.begin_commit(txid)
    if slept != "before the commit":
        zombie.write([entry(b"zombie")])
    with pytest.raises(BackendError, match="another producer with its transactional id has begun"):
        zombie.commit(txid)
    with pytest.raises(FencedError):
        zombie.begin_commit(txid)
    write(successor, log, 3, 5, b"c")
    assert home.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_made", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_commit_whose_answer_is_lost_is_made_once(is_made: bool, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(Producer):
        left = 1

        def commit_transaction(self, *args: Any) -> None:
            if is_made or not Losing.left:
                super().commit_transaction(*args)
            if Losing.left:
                Losing.left = 0
                raise KafkaException(KafkaError(KafkaError._TRANSPORT, "answer lost"))

    monkeypatch.setattr(topic_sink, "Producer", Losing)
    log, sink = Log(), home.sink()
    with pytest.raises(BackendError, match="commit a transaction of .*: _TRANSPORT: answer lost"):
        write(sink, log, 1, 0, b"a", record=False)
    assert home.values() == [b"a"] * is_made
    write(sink, log, 1, 1, b"a")
    write(sink, log, 2, 1, b"b")
    assert home.values() == [b"a", b"b"]


@pytest.mark.parametrize("how", ["pause", pytest.param("kill", marks=pytest.mark.soak)])
def test_a_broker_that_hangs_or_dies_in_a_commit_leaves_an_exact_replay(
    how: str, home: Home, kafka_server: KafkaCluster
) -> None:
    log, sink = Log(), home.sink(timeout_s=2)
    write(sink, log, 1, 0, b"a")
    txid = log.txid(2)
    sink.begin_commit(txid)
    sink.write([entry(b"b")])
    if how == "kill":
        sink._writer._producer.flush()
    getattr(kafka_server.brokers[0], how)()
    try:
        said = "commit a transaction of .*_TIMED_OUT.*are the brokers up" * (how == "pause")
        with pytest.raises(BackendError, match=said):
            sink.commit(txid)
    finally:
        kafka_server.brokers[0].resume() if how == "pause" else kafka_server.restart()
    write(home.sink(), log, 2, 1, b"b")
    assert home.values() == [b"a", b"b"]


def test_a_sentinel_above_the_batch_is_an_error(home: Home) -> None:
    sink = home.sink()
    for number in (1, 2):
        sink.begin_commit(number)
        sink.write([entry(b"%d" % number)])
        sink.commit(number)
    with pytest.raises(StaleTransactionError, match="batch 1 is behind batch 2 stored for 'the topic'"):
        home.sink().begin_commit(1)
    assert home.values() == [b"1", b"2"]


def test_a_topic_that_was_made_again_between_two_commits_is_found(home: Home) -> None:
    log, sink = Log(), home.sink()
    write(sink, log, 1, 0, b"a")
    home.topics.recreate(home.topic)
    with pytest.raises(StateMismatchError, match="the store has no commit at all"):
        sink.begin_commit(log.txid(2))


def test_two_states_of_one_prefix_are_found(home: Home) -> None:
    log = Log()
    write(home.sink("one", prefix=home.topic), log, 1, 0, b"a")
    with pytest.raises(StatePlaceError, match="'sinks/two' wants to keep its values belongs to 'sinks/one'"):
        home.sink("two", prefix=home.topic).begin_commit(log.txid(2))


def test_calls_out_of_order_and_of_readers_are_refused(home: Home) -> None:
    sink, reader = home.sink(), home.sink(read_only=True)
    with pytest.raises(CommitOrderError, match="was written outside begin_commit and commit"):
        sink.write([entry(b"a")])
    with pytest.raises(CommitOrderError, match=r"commit\(1\) without its begin_commit"):
        sink.commit(1)
    with pytest.raises(UnsupportedOperation, match="was opened to be read only"):
        reader.begin_commit(1)
    with pytest.raises(UnsupportedOperation, match="was opened to be read only"):
        reader.move_sentinel(Sentinel("inc", 1, 1), force=True)
    write(sink, Log(), 1, 0, b"a")
    assert reader.read_sentinel() == Sentinel("inc", 1, 0)


def test_a_sink_that_is_closed_leaves_neither_threads_nor_connections(home: Home) -> None:
    process = psutil.Process()
    threads, connections = process.num_threads(), len(process.net_connections())
    sink, log = home.sink(), Log()
    write(sink, log, 1, 0, b"a")
    sink.begin_commit(log.txid(2))
    sink.write([entry(b"b")])
    assert process.num_threads() > threads
    sink.close()
    assert (process.num_threads(), len(process.net_connections())) == (threads, connections)


def test_a_sentinel_is_laid_without_records_and_not_over_another_one(home: Home) -> None:
    one, two = home.sink(), home.sink()
    assert (one.read_sentinel(), two.read_sentinel()) == (None, None)
    one.move_sentinel(Sentinel("inc", 5, 1), force=True)
    assert (two.read_sentinel(), home.values()) == (Sentinel("inc", 5, 1, one.place), [])
    two.move_sentinel(Sentinel("inc", 3, 2), force=True)
    with pytest.raises(BackendError):
        one.move_sentinel(Sentinel("inc", 6, 1), force=True)
    assert home.sink().read_sentinel() == Sentinel("inc", 3, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bootstrap": "kafka://a"}, "bootstrap='kafka://a' of a Kafka state: give brokers as host:port"),
        ({"topic": ""}, "topic='' of a Kafka state: give the name of a topic"),
        ({"prefix": ""}, "prefix='' of a Kafka state: give a text, or None"),
        ({"compression": "zip"}, "compression='zip' of a Kafka state: give 'none', 'gzip'"),
        ({"config": {"transactional.id": "x"}}, r"config\['transactional.id'\] .* is set by the state.*: give prefix="),
        (
            {"timeout_s": 60, "config": {"transaction.timeout.ms": 10_000}},
            r"config\['transaction.timeout.ms'\]=10000 of a Kafka state is less than timeout_s=60: .* to 60000 milliseconds",
        ),
        (
            {"config": {"transaction.timeout.ms": "a minute"}},
            r"config\['transaction.timeout.ms'\]='a minute' of a Kafka state: give milliseconds",
        ),
        ({"config": {"acks": 1}}, r"config\['acks'\] of a Kafka state is set by the state.*: leave it out"),
    ],
)
def test_wrong_options_are_refused_where_they_are_given(given: dict[str, Any], message: str) -> None:
    for make in (KafkaTopicOptions, KafkaTopicState.transactional):
        with pytest.raises(ConfigError, match=message):
            make(**{"bootstrap": "a:1", "topic": "t", **given})


def test_a_state_without_a_topic_is_refused() -> None:
    said = r"give the name of a topic: KafkaTopicState.transactional\(bootstrap, topic\)"
    with pytest.raises(ConfigError, match=said):
        KafkaTopicState.transactional("a:1")


@pytest.mark.parametrize(
    ("given", "lasts_ms"),
    [({}, 60_000), ({"timeout_s": 5}, 60_000), ({"timeout_s": 90}, 90_000), ({"timeout_s": 1000}, 900_000)],
)
def test_a_transaction_lasts_as_long_as_its_commit_may_take(given: dict[str, Any], lasts_ms: int) -> None:
    options = KafkaTopicOptions("127.0.0.1:1", "t", **given)
    writer = TopicWriter(options, "n", "the state", read_only=False)
    assert options.transaction_ms == lasts_ms
    writer._make_client(Producer, writer._producer_settings())  # the client refuses settings that do not go together


def test_a_setting_that_the_client_does_not_know_is_named(home: Home) -> None:
    sink = home.sink(config={"nonsense": "hush"})
    said = "the client refuses config: No such configuration property: .nonsense."
    with pytest.raises(ConfigError, match=said) as found:
        sink.begin_commit(1)
    assert "hush" not in str(found.value)
