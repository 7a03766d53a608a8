"""Anchors, answers, timeouts, ticks, and what is refused; a bolt reads a state of a Trident topology at its snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.storm.random_trees import chain
from trident import TridentTopology
from trident.errors import FailedException, ReportedFailedException, TopologyError
from trident.storm import (
    BaseBasicBolt,
    BaseRichBolt,
    BasicOutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    Tuple,
)
from trident.storm.state_lookup import StateLookupBolt
from trident.storm.testing import MockedSpout, SteppedCluster, complete_topology


class Rich(BaseRichBolt):
    """Keeps its tuples; a test says what it does with them."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("n: bigint")
        declarer.declare_stream("any", "value")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.got: list[Tuple] = []
        self.cleaned = False

    def execute(self, tuple: Tuple) -> None:
        self.got.append(tuple)

    def cleanup(self) -> None:
        self.cleaned = True


def topology(bolt: Any, rows: int = 2, **more: Any) -> StormTopology:
    builder = TopologyBuilder()
    builder.set_spout("spout", MockedSpout("n: bigint", *[[n] for n in range(rows)]))
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    for name, each in more.items():
        builder.set_bolt(name, each).shuffle_grouping("bolt")
    return builder.create_topology()


@contextmanager
def ran(rows: int = 1, *, settings: Any = None, **more: Any) -> Iterator[tuple[SteppedCluster, Any]]:
    """Run a topology of a `Rich` until it has all tuples; give the cluster and the bolt."""
    with SteppedCluster(topology(Rich(), rows, **more), settings) as cluster:
        cluster.run()
        yield cluster, cluster.instance("bolt")


def test_an_unanswered_tuple_times_out_and_is_emitted_again() -> None:
    with SteppedCluster(topology(Rich()), message_timeout_s=10) as cluster:
        cluster.run()
        cluster.advance(9)
        cluster.run()
        assert cluster.spout("spout").failed == []
        cluster.advance(11)
        cluster.run()
        cluster.advance(10)
        cluster.run()
        assert sorted(cluster.spout("spout").failed) == [0, 1]
        assert [each["n"] for each in cluster.instance("bolt").got] == [0, 1, 0, 1]


def test_reset_timeout_keeps_a_tuple_alive() -> None:
    with ran(settings={"message_timeout_s": 10}) as (cluster, bolt):
        for _ in range(6):
            cluster.advance(10)
            bolt.collector.reset_timeout(bolt.got[0])
            cluster.run()
        assert cluster.spout("spout").failed == []
        bolt.collector.ack(bolt.got[0])
        cluster.run()
        assert cluster.spout("spout").acked == [0]


def test_fail_fails_at_once() -> None:
    with ran() as (cluster, bolt):
        bolt.collector.fail(bolt.got[0])
        cluster.run()
        assert cluster.spout("spout").failed == [0]
        assert len(bolt.got) == 2  # replayed


def test_an_unanchored_tuple_fails_nothing() -> None:
    with ran(next=Rich()) as (cluster, first):
        second = cluster.instance("next")
        first.collector.emit([1])
        first.collector.ack(first.got[0])
        cluster.run()
        assert cluster.spout("spout").acked == [0]
        assert second.got[0].roots == frozenset()
        second.collector.fail(second.got[0])
        cluster.run()
        assert cluster.spout("spout").failed == []


def test_a_tuple_with_anchors_in_two_trees_fails_both() -> None:
    with ran(2, next=Rich()) as (cluster, first):
        second = cluster.instance("next")
        first.collector.emit([1], first.got)
        for each in first.got[:]:
            first.collector.ack(each)
        cluster.run()
        assert cluster.spout("spout").acked == []
        assert second.got[0].roots == first.got[0].roots | first.got[1].roots
        second.collector.fail(second.got[0])
        cluster.run()
        assert sorted(cluster.spout("spout").failed) == [0, 1]


@pytest.mark.parametrize("what", ["ack", "fail", "reset_timeout"])
def test_answers_that_are_refused(what: str) -> None:
    with ran(next=Rich()) as (cluster, first):
        second = cluster.instance("next")
        (given,) = first.got
        with pytest.raises(TopologyError, match="component 'next'.*which another task was given"):
            getattr(second.collector, what)(given)
        with pytest.raises(TopologyError, match="'text', a str; it takes the Tuple that execute"):
            getattr(first.collector, what)("text")
        first.collector.ack(given)
        with pytest.raises(TopologyError, match="which was acked or failed before"):
            getattr(first.collector, what)(given)


def test_emits_that_are_refused() -> None:
    with ran(next=Rich()) as (_, bolt):
        (given,) = bolt.got
        emit = bolt.collector.emit
        for values, more, text in (
            ([1, 2], {}, "stream 'default' of component 'bolt'.*emitted 2 values for its 1 fields \\['n'\\]"),
            (["one"], {}, "field 'n' is declared as bigint but got 'one', a str"),
            ([True], {}, "field 'n' is declared as bigint but got True"),
            ([object()], {"stream_id": "any"}, "the value of field 'value' cannot be sent to another worker"),
            ([1], {"stream_id": "other"}, "emits to stream 'other', which it does not declare; it declares"),
            ([1], {"anchors": [1]}, "anchor to 1, a int; it takes the Tuple"),
            ([1], {"anchors": "text"}, "anchor to 't', a str"),
        ):
            with pytest.raises(TopologyError, match=text):
                emit(values, **more)
        emit([None], given)
        emit([[1, {"a": (2,)}]], stream_id="any")
        bolt.collector.ack(given)
        with pytest.raises(TopologyError, match="anchor to .* which was acked or failed before"):
            emit([1], given)
    assert bolt.cleaned
    with pytest.raises(TopologyError, match="component 'bolt'.*emits after cleanup"):
        emit([1])


@pytest.mark.parametrize("values", ["a", b"a", {"n": 1}, None, 5])
def test_values_that_are_no_list_are_refused(values: Any) -> None:
    with ran() as (_, bolt), pytest.raises(TopologyError, match="emit a list with one value for each field"):
        bolt.collector.emit(values)


def test_anchors_may_be_an_iterator_and_are_refused_before_anything_is_drawn() -> None:
    with ran(2, next=Rich(), other=Rich()) as (cluster, bolt):
        first, second = bolt.got
        edge = first.edge
        with pytest.raises(TopologyError, match="anchor to 5, a int"):
            bolt.collector.emit([1], [first, 5])
        with pytest.raises(TopologyError, match="anchor to 5, a int"):
            bolt.collector.emit([1], 5)
        assert first.edge == edge
        bolt.collector.emit([1], iter([first, second]))
        cluster.run()
        for name in ("next", "other"):
            assert cluster.instance(name).got[0].roots == first.roots | second.roots


class Header(Rich):
    """Goes on with another function after its first tuple."""

    def execute(self, tuple: Tuple) -> None:
        self.header = tuple["n"]
        self.execute = self.row  # type: ignore[method-assign]
        self.collector.ack(tuple)

    def row(self, tuple: Tuple) -> None:
        self.got.append(tuple)
        self.collector.ack(tuple)


def test_a_bolt_may_change_how_it_executes_while_it_runs() -> None:
    with SteppedCluster(topology(Header(), 3), max_spout_pending=1) as cluster:
        cluster.run()
        bolt = cluster.instance("bolt")
        assert (bolt.header, [each["n"] for each in bolt.got]) == (0, [1, 2])


class Basic(BaseBasicBolt):
    """Fails odd numbers once, and reports the number 3."""

    def __init__(self) -> None:
        self.failed: set[int] = set()

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        n = tuple["n"]
        if n % 2 and n not in self.failed:
            self.failed.add(n)
            raise (ReportedFailedException if n == 3 else FailedException)(f"not yet {n}")


def test_failed_exception_out_of_a_basic_bolt_fails_its_tuple() -> None:
    with SteppedCluster(topology(Basic(), 4)) as cluster:
        cluster.run()
        assert sorted(cluster.spout("spout").failed) == [1, 3]
        assert sorted(cluster.spout("spout").acked) == [0, 1, 2, 3]
        (reported,) = cluster.errors
        assert (reported.component, reported.task) == ("bolt", cluster.layout.tasks["bolt"][0])
        assert "not yet 3" in reported.text


class Raising(BaseBasicBolt):
    """Ends the worker: the task has a fresh instance afterwards."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        raise ValueError("no")


def test_another_exception_is_reported_with_its_tuple() -> None:
    with SteppedCluster(topology(Raising(), 1)) as cluster:
        before = cluster.instance("bolt")
        cluster.run()
        assert cluster.instance("bolt") is not before
        assert "execute Tuple(n=0; from spout, task 1, stream 'default'): ValueError('no')" in cluster.errors[0].text


class Ticks(Rich):
    """Counts ticks."""

    def execute(self, tuple: Tuple) -> None:
        if tuple.is_tick:
            super().execute(tuple)
        self.collector.ack(tuple)


def test_ticks_come_in_their_interval() -> None:
    with SteppedCluster(topology(Ticks(), 1), tick_tuple_freq_s=5) as cluster:
        for _ in range(4):
            cluster.run()
            cluster.advance(2.5)
        cluster.run()
        assert len(cluster.instance("bolt").got) == 2


@pytest.mark.parametrize("rows", [3, 0], ids=["tuples", "ticks only"])
def test_a_bolt_that_never_answers_is_named_unless_only_of_ticks(caplog: pytest.LogCaptureFixture, rows: int) -> None:
    with SteppedCluster(topology(Rich(), rows), message_timeout_s=10, tick_tuple_freq_s=1) as cluster:
        for _ in range(30):
            cluster.advance(1)
            cluster.run()
        assert len(cluster.instance("bolt").got) >= 30
    said = "bolt bolt (task 2) holds 3 tuples and has answered none for 10 s"
    assert said in caplog.text if rows else caplog.text == ""


def test_max_spout_pending_bounds_what_a_silent_bolt_holds() -> None:
    with ran(100, settings={"max_spout_pending": 7}) as (cluster, bolt):
        assert (cluster.pending, len(bolt.got)) == (7, 7)


class NotesAcks(MockedSpout):
    """Notes how many of its messages were acknowledged before, and within, each call."""

    def __init__(self, rows: int) -> None:
        super().__init__("n: bigint", *[[n] for n in range(rows)])
        self.before: list[int] = []
        self.within: list[int] = []

    def next_tuple(self) -> None:
        self.before.append(len(self.acked))
        super().next_tuple()
        self.within.append(len(self.acked))


@pytest.mark.parametrize(
    ("with_bolt", "settings", "within"),
    [
        pytest.param(True, {"acker_executors": 0}, [1, 2, 3, 4, 5], id="within its emit, without ackers"),
        pytest.param(False, {}, [0, 1, 2, 3, 4], id="before the spout is asked again, if it goes to no bolt"),
    ],
)
def test_a_message_without_acker_is_acked_at_once(with_bolt: bool, settings: dict[str, Any], within: list[int]) -> None:
    bolts = {"bolt": Rich()} if with_bolt else {}
    with SteppedCluster(chain(spout=NotesAcks(5), **bolts), max_spout_pending=1, **settings) as cluster:
        cluster.step()
        assert cluster.spout("spout").acked == [0, 1, 2, 3, 4]
        assert cluster.instance("spout").within[:5] == within
        assert cluster.instance("spout").before[:5] == [0, 1, 2, 3, 4]


class FailsInAck(MockedSpout):
    def ack(self, msg_id: Any) -> None:
        raise ValueError("no ack")


def test_an_ack_that_raises_within_an_emit_is_told_as_an_ack() -> None:
    with SteppedCluster(chain(spout=FailsInAck("n: bigint", [1])), acker_executors=0) as cluster:
        cluster.step()
        (error,) = cluster.errors
    assert error.text.endswith("task 1: ack: ValueError('no ack')\n")


PROGRAM = """
from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Split

topology = TridentTopology("words")
counts = (
    topology.new_stream("lines", FixedBatchSpout("line", 1, ["the cow"], ["the moon"]))
    .each("line", Split(), "word")
    .group_by("word")
    .persistent_aggregate(DeltaState.opaque({table!r}), Count(), "count")
)
"""


class Sink(BaseBasicBolt):
    """The end."""

    def execute(self, *given: Any) -> None: ...


def lookups(bolt: StateLookupBolt) -> StormTopology:
    return chain(words=MockedSpout("word: string"), lookup=bolt, sink=Sink())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(PROGRAM.format(table=str(tmp_path / "table")), encoding="utf-8")
    return path


def test_a_bolt_looks_up_what_is_committed(program: Path, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(program.read_text(encoding="utf-8"), str(program), "exec"), namespace)
    log = str(tmp_path / "log")
    with namespace["topology"].start(engine="in_process", log_dir=log) as running:
        running.process_all_available()
    bolt = StateLookupBolt(
        f"{program}:topology",
        "count",
        fields="word: string",
        key="word",
        value="count: bigint",
        txid="batch",
        log_dir=log,
    )
    done = complete_topology(lookups(bolt), {"words": [["the"], ["cow"], ["man"]]})
    assert done.errors == ()
    assert sorted(done.tuples("lookup")) == [("cow", 1, 2), ("man", None, 2), ("the", 2, 2)]
    assert done.acked["words"] == [0, 1, 2]


def test_a_topology_that_is_not_there_is_an_error_of_the_worker(tmp_path: Path) -> None:
    bolt = StateLookupBolt(f"{tmp_path}/none.py:topology", "count", fields="word", key="word", value="count")
    with pytest.raises(Exception, match="prepare") as caught:
        complete_topology(lookups(bolt), {"words": [["the"]]})
    assert "none.py" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("topology", "key", "value", "text"),
    [
        ("module:topology", "wort", "count", "no field 'wort' of stream 'that StateLookupBolt reads'"),
        ("module:topology", "word", "a, b", "must be one field"),
        ("module:topology", "word", "word", "cannot add field 'word'"),
        (TridentTopology("lines"), "word", "n", "give the topology as text, 'module:topology'"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(topology: Any, key: str, value: str, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        StateLookupBolt(topology, "count", fields="word", key=key, value=value)
