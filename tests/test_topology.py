"""The fluent surface: what a call adds, and every text with which it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import topology_of
from trident import Fields, GroupedStream, Stream, TopologyError, TridentState, TridentTopology
from trident.errors import InexactPairingError, TridentError
from trident.operations import (
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Count,
    FilterNull,
    Function,
    MapGet,
    Max,
    Min,
    ReducerAggregator,
    SnapshotGet,
    Split,
    Sum,
)
from trident.state import StateSpec


def declared() -> tuple[TridentTopology, Stream]:
    topology = TridentTopology("t")
    spout = FixedBatchSpout(
        "line: string, n: int, d: decimal(9,2), tags: array<string>, f: float", 1, ["a", 1, 2, [], 0.5]
    )
    return topology, topology.new_stream("lines", spout)


@pytest.fixture
def stream() -> Stream:
    return declared()[1]


def counts(stream: Stream) -> TridentState:
    return (
        stream.each("line", Split(), "word").group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    )


class Untyped(Function):
    """Emits something."""


class Two(Function):
    output_types = ("string", "bigint")


class Locate(BaseQueryFunction[Any, Any]):
    output_types = ("string",)


class Update(BaseStateUpdater[Any]):
    output_types = ("string",)


class Longest(CombinerAggregator[str]):
    def combine(self, val1: str, val2: str) -> str:
        return max(val1, val2, key=len)


class Concat(ReducerAggregator[str]):
    def reduce(self, curr: str, tuple: Any) -> str:
        return curr + str(tuple[0])


class NoSpout:
    pass


class Shapeless:
    def open(self, conf: Any) -> None: ...
    def emit_batch(self, batch_id: int, collector: Any) -> None: ...
    def ack(self, batch_id: int) -> None: ...
    def close(self) -> None: ...

    def get_output_fields(self) -> Fields:
        return Fields("a: int, b")


STREAM: dict[str, tuple[Callable[[Stream], object], str]] = {
    "unknown input": (
        lambda s: s.each("word", Split(), "w"),
        r"no field 'word' of stream 'lines'; it has \['line', 'n', 'd', 'tags', 'f'\]",
    ),
    "unknown input of a later step": (
        lambda s: s.each("line", Split(), "word").name("words").filter("wird", FilterNull()),
        "no field 'wird' of stream 'words'; it has .*'word'",
    ),
    "taken output": (
        lambda s: s.each("line", Split(), "n"),
        r"cannot add field 'n' to stream 'lines': it has \['line', .*choose another name",
    ),
    "unknown type": (
        lambda s: s.each("line", lambda line: line, "copy"),
        "stream 'lines': the type of field 'copy' that <lambda> emits is not known. Write it in the field list "
        r"\('copy: string'\), give the function a return type hint, or the operation an attribute output_types",
    ),
    "unknown type of an operation": (
        lambda s: s.each("line", Untyped(), "copy"),
        "the type of field 'copy' that Untyped emits is not known",
    ),
    "another number of outputs": (
        lambda s: s.each("line", Two(), "word"),
        r"stream 'lines': Two emits 2 values \(string, bigint\), but 1 output fields are named: \['word'\]",
    ),
    "each with one argument": (
        lambda s: s.each(FilterNull()),
        r"each takes \(fields, function, output fields\), \(function, output fields\) or \(fields, filter\); got 1 arg",
    ),
    "each with a class": (lambda s: s.each("line", Split, "word"), r"got the class Split; give an object: Split\(\)"),
    "each with no function": (
        lambda s: s.each("line", 7, "word: string"),
        r"stream 'lines' got 7 \(int\); expected a function or an object with a method 'execute'",
    ),
    "filter with no predicate": (lambda s: s.filter("line", 7), "an object with a method 'is_keep'"),
    "filter with three arguments": (
        lambda s: s.filter("a", "b", "c"),
        r"filter takes \(predicate\) or \(fields, predicate\)",
    ),
    "peek with no consumer": (lambda s: s.peek(None), "an object with a method 'accept'"),
    "map with no function": (lambda s: s.map(3), "an object with a method 'execute'"),
    "map of unknown type": (lambda s: s.map(lambda row: row, "x"), "the type of field 'x' that <lambda> emits"),
    "project of an unknown field": (lambda s: s.project("x"), "no field 'x' of stream 'lines'"),
    "group by nothing": (lambda s: s.group_by(), "group_by needs at least one field"),
    "group by a list": (
        lambda s: s.group_by("tags"),
        "stream 'lines': cannot group by 'tags', which is array<string>; a key is made of plain values",
    ),
    "aggregate with a class": (
        lambda s: s.persistent_aggregate(MemoryMapState(), Count, "n"),
        r"got <class .*Count'>, which is a class; give an object: Count\(\)",
    ),
    "aggregate with a function": (
        lambda s: s.persistent_aggregate(MemoryMapState(), Split(), "n"),
        r"expected an object with combine \(CombinerAggregator\) or reduce \(ReducerAggregator\)",
    ),
    "aggregate of nothing": (
        lambda s: s.persistent_aggregate(MemoryMapState()),
        r"expected \(\[fields,\] operation\[, output fields\]\), got \(\)",
    ),
    "aggregate with two outputs": (
        lambda s: s.persistent_aggregate(MemoryMapState(), Count(), "a, b"),
        r"an aggregate has one output field, not \['a', 'b'\]",
    ),
    "combiner of two fields": (
        lambda s: s.persistent_aggregate(MemoryMapState(), "n, d", Count(), "a"),
        r"a combiner takes one field, got \['n', 'd'\]",
    ),
    "aggregate of unknown type": (
        lambda s: s.persistent_aggregate(MemoryMapState(), "line", CombinerAggregator(), "a"),
        "the type of field 'a' that CombinerAggregator emits is not known",
    ),
    "output named like the key": (
        lambda s: s.group_by("n").persistent_aggregate(MemoryMapState(), Count(), "n"),
        "cannot add field 'n' to stream 'lines'",
    ),
    "no state": (lambda s: s.persistent_aggregate(7, Count(), "n1"), "7 is not a state: give one of a store"),  # type: ignore[arg-type]
    "state name twice": (
        lambda s: (counts(s), counts(s)),
        "topology 't' already has a state 'count'; give this one a name of its own: state_name=...",
    ),
    "unfit state name": (
        lambda s: s.persistent_aggregate(MemoryMapState(), Count(), "n1", state_name="a b"),
        "'a b' cannot name a state; use letters, digits, '_', '.' and '-'",
    ),
    "empty name of an aggregate's state": (
        lambda s: s.name("n").persistent_aggregate(MemoryMapState(), Count(), "n1", state_name=""),
        "'' cannot name a state",
    ),
    "empty name of an updater's state": (
        lambda s: s.partition_persist(MemoryMapState(), "line", Update(), state_name=""),
        "'' cannot name a state",
    ),
    "empty name of a window's state": (
        lambda s: s.tumbling_window(3, Count(), "n1", state_name=""),
        "'' cannot name a state",
    ),
    "persist with no updater": (
        lambda s: s.partition_persist(MemoryMapState(), "line", Split()),
        "is not a StateUpdater: give an object with the method update_state",
    ),
    "query without output": (
        lambda s: s.state_query(counts(s), "line", MapGet()),
        r"state_query takes \(state, \[fields,\] query function, output fields\); got .*MapGet",
    ),
    "query with no query function": (
        lambda s: s.state_query(counts(s), "line", Split(), "x"),
        "a query function is an object with batch_retrieve and execute",
    ),
    "query of another topology": (
        lambda s: s.state_query(counts(declared()[1]), "line", MapGet(), "x"),
        "stream 'lines' queries state 'count' of another topology",
    ),
    "query of a taken name": (lambda s: s.state_query(counts(s), "line", MapGet(), "n"), "cannot add field 'n'"),
    "query of unknown type": (
        lambda s: s.state_query(topology_of(s).new_static_state(MemoryMapState()), "line", MapGet(), "x"),
        "the type of field 'x' that MapGet emits is not known",
    ),
    "no parallelism": (
        lambda s: s.parallelism_hint(0),
        r"parallelism_hint\(0\): expected a whole number from 1 to 1,000,000",
    ),
    "more parallelism than there can be": (lambda s: s.parallelism_hint(1 << 70), r"parallelism_hint\(1180591620"),
    "half a parallelism": (lambda s: counts(s).parallelism_hint(1.5), r"parallelism_hint\(1.5\)"),  # type: ignore[arg-type]
    "a true parallelism": (lambda s: s.parallelism_hint(True), r"parallelism_hint\(True\)"),
    "new values of a static state": (
        lambda s: topology_of(s).new_static_state(MemoryMapState(), "towns").new_values_stream(),
        "state 'towns' is static: nothing updates it, so it has no new values",
    ),
    "new values of a silent updater": (
        lambda s: s.partition_persist(MemoryMapState(), "line", Update()).new_values_stream(),
        "state 'lines-persist' gives no new values: name the updater's output fields in partition_persist",
    ),
}


@pytest.mark.parametrize("case", STREAM)
def test_a_wrong_call_is_refused_where_it_is_made(case: str, stream: Stream) -> None:
    call, text = STREAM[case]
    with pytest.raises(TopologyError, match=text):
        call(stream)


TOPOLOGY: dict[str, tuple[Callable[[], object], str]] = {
    "name": (lambda: TridentTopology("a b"), "'a b' cannot name a topology; use letters, digits, '_', '.' and '-'"),
    "this folder": (lambda: TridentTopology("."), "'.' cannot name a topology"),
    "the folder above": (lambda: TridentTopology(".."), "'..' cannot name a topology"),
    "empty name": (lambda: TridentTopology(""), "'' cannot name a topology"),
    "stream name": (
        lambda: TridentTopology("t").new_stream("a/b", FixedBatchSpout("a", 1, ["x"])),
        "'a/b' cannot name a stream",
    ),
    "no spout": (
        lambda: TridentTopology("t").new_stream("a", NoSpout()),  # type: ignore[arg-type]
        "stream 'a' got NoSpout, which is not a spout. It has none of the methods of ITridentSpout, IBatchSpout or IRichSpout",
    ),
    "spout without types": (
        lambda: TridentTopology("t").new_stream("a", Shapeless()),
        "stream 'a': the spout does not say the type of its field 'b'",
    ),
    "stream name twice": (
        lambda: declared()[0].new_stream("lines", FixedBatchSpout("a", 1, ["x"])),
        "topology 't' already has a stream 'lines'; every stream needs its own name",
    ),
    "static state": (
        lambda: TridentTopology("t").new_static_state(None),  # type: ignore[arg-type]
        "None is not a state",
    ),
    "state of the graph": (
        lambda: topology_of(counts(declared()[1])).graph().state("cuont"),
        r"topology 't' has no state 'cuont'; it has \['count'\]",
    ),
}


@pytest.mark.parametrize("case", TOPOLOGY)
def test_a_wrong_topology_is_refused(case: str) -> None:
    call, text = TOPOLOGY[case]
    with pytest.raises(TopologyError, match=text):
        call()


def test_a_node_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="lines/x"):
        declared()[0].graph().node("lines/x")


def length(line: str) -> int:
    return len(line)


def letters(line: str) -> Iterator[tuple[str, int]]:
    yield from ((letter, at) for at, letter in enumerate(line))


def unresolved(line: str) -> NotThere:  # type: ignore[name-defined]  # noqa: F821  known to nobody
    return line


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (lambda s: s.each("line", Split(), "word").project("word"), "word: string"),
        (lambda s: s.each("line", length, "x").project("x"), "x: bigint"),
        (lambda s: s.each("line", letters, "letter, at").project("letter, at"), "letter: string, at: bigint"),
        (lambda s: s.each("line", letters, "letter, at: int").project("at"), "at: int"),
        (lambda s: s.each(lambda: 1, "one: int").project("one", "n"), "one: int, n: int"),
        (lambda s: s.each(["line", "n"], FilterNull()).project(["n"]), "n: int"),
        (lambda s: s.project("n", "line").filter(lambda row: True), "n: int, line: string"),
        (lambda s: s.project("line").map(str.upper), "line: string"),
        (lambda s: s.map(lambda row: (1, 2), "a: int, b: int"), "a: int, b: int"),
        (lambda s: s.flat_map(lambda row: [1], "a: int"), "a: int"),
        (lambda s: s.flat_map(letters, "a, b"), "a: string, b: bigint"),
        (lambda s: s.project("n").peek(print), "n: int"),
        (lambda s: counts(s).new_values_stream(), "word: string, count: bigint"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "n", Sum(), "x").new_values_stream(), "x: bigint"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "f", Sum(), "x").new_values_stream(), "x: double"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "d", Sum(), "x").new_values_stream(), "x: decimal(38,2)"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "d", Min(), "x").new_values_stream(), "x: decimal(9,2)"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "line", Max(), "x").new_values_stream(), "x: string"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "line", Longest(), "x").new_values_stream(), "x: string"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "line", Concat(), "x").new_values_stream(), "x: string"),
        (lambda s: s.persistent_aggregate(MemoryMapState(), "n", Sum(), "x: int").new_values_stream(), "x: int"),
        (lambda s: s.partition_persist(MemoryMapState(), Update(), "x").new_values_stream(), "x: string"),
        (lambda s: s.project("line").state_query(counts(s), "line", MapGet(), "c"), "line: string, c: bigint"),
        (
            lambda s: s.project("n").state_query(
                s.persistent_aggregate(MemoryMapState(), Count(), "c"), SnapshotGet(), "all"
            ),
            "n: int, all: bigint",
        ),
        (
            lambda s: s.project("n").state_query(topology_of(s).new_static_state(MemoryMapState()), "n", Locate(), "x"),
            "n: int, x: string",
        ),
        (
            lambda s: s.project("line").group_by("line").state_query(counts(s), "line", MapGet(), "c"),
            "line: string, c: bigint",
        ),
    ],
)
def test_the_fields_of_what_a_call_gives(call: Callable[[Stream], Stream], fields: str, stream: Stream) -> None:
    assert call(stream).get_output_fields() == Fields(fields)


@pytest.mark.parametrize("function", [unresolved, functools.partial(length), str.upper])
def test_a_hint_that_says_nothing_leaves_the_type_unknown(function: Any, stream: Stream) -> None:
    with pytest.raises(TopologyError, match="the type of field 'x' that .* emits is not known"):
        stream.each("line", function, "x")


def test_a_group_by_knows_its_key_and_its_stream(stream: Stream) -> None:
    grouped = stream.group_by("line", "n").name("pairs")
    assert grouped.get_group_fields() == Fields("line: string, n: int")
    assert grouped.get_output_fields() == stream.fields
    assert grouped.to_stream().get_name() == "pairs"
    assert grouped.persistent_aggregate(MemoryMapState(), Count(), "c").state_name == "pairs"


def test_ids_depend_on_the_parent_alone(stream: Stream) -> None:
    topology = topology_of(stream)
    first, second = stream.each("line", Split(), "word"), stream.each("line", Split(), "word")
    labelled = stream.name("shout").map(lambda row: row)
    assert [s.node_id for s in (first, second, labelled)] == ["lines/Split", "lines/Split.2", "lines/shout"]
    assert first.filter("word", FilterNull()).node_id == "lines/Split/FilterNull"
    assert [node.id for node in topology.graph().children("lines")] == ["lines/Split", "lines/Split.2", "lines/shout"]


def test_names_and_ids_do_not_depend_on_what_else_is_declared() -> None:
    def of_lines(before: int) -> tuple[list[str], str]:
        topology, stream = declared()
        for number in range(before):
            other = topology.new_stream(f"other{number}", FixedBatchSpout("line: string, n: int", 1, ["a", 1]))
            words = other.each("line", Split(), "word").group_by("word")
            words.persistent_aggregate(MemoryMapState(), Count(), "c", state_name=f"count{number}")
            topology.new_static_state(MemoryMapState(), f"static-of-other{number}")
        twins = [stream.each("line", Split(), "word"), stream.each("line", Split(), "word")]
        joined = topology.join(*(part for twin in twins for part in (twin.project("n"), "n")), "n")
        steps = [*twins, joined, *(twin.group_by("word").aggregate(Count(), "c") for twin in twins)]
        return [step.node_id for step in steps], topology.new_static_state(MemoryMapState()).state_name

    expected = ["lines/Split", "lines/Split.2", "lines/Split/project/join", "lines/Split/Count", "lines/Split.2/Count"]
    assert of_lines(before=0) == of_lines(before=3) == (expected, "static0")


@pytest.mark.parametrize("label", ["", "a/b", "a:part"])
def test_a_label_that_could_be_another_steps_id_is_refused(label: str, stream: Stream) -> None:
    with pytest.raises(TopologyError, match="cannot be the name of a stream"):
        stream.name(label)


def test_the_largest_hint_counts(stream: Stream) -> None:
    stream.parallelism_hint(2).parallelism_hint(4).parallelism_hint(3)
    counts(stream).parallelism_hint(5)
    topology_of(stream).new_static_state(MemoryMapState(), "towns").parallelism_hint(6)
    assert topology_of(stream).graph().hints == {"lines": 4, "lines/Split/Count@count": 5, "towns": 6}


def test_handles_say_what_they_are(stream: Stream) -> None:
    state = counts(stream)
    static = topology_of(stream).new_static_state(StateSpec(MemoryMapState(), 2))
    assert repr(stream.project("n")) == "Stream('lines/project': n: int)"
    assert repr(stream.group_by("n")) == "GroupedStream('lines' by ['n'])"
    assert repr(state) == "TridentState('count')"
    assert static.state_name == "static0"
    assert repr(topology_of(stream)) == "TridentTopology('t': 4 steps, states ['count', 'static0'])"


@pytest.mark.parametrize(
    ("handle", "spelled", "here"),
    [
        (TridentTopology, "newStream", "new_stream"), (TridentTopology, "newStaticState", "new_static_state"),
        (TridentTopology, "build", "start"), (Stream, "persistentAggregate", "persistent_aggregate"),
        (Stream, "partitionPersist", "partition_persist"), (Stream, "stateQuery", "state_query"),
        (Stream, "groupBy", "group_by"), (Stream, "flatMap", "flat_map"), (Stream, "getOutputFields", "get_output_fields"),
        (Stream, "parallelismHint", "parallelism_hint"), (GroupedStream, "toStream", "to_stream"),
        (TridentState, "newValuesStream", "new_values_stream"),
    ],
)  # fmt: skip
def test_storms_spelling_names_ours(handle: type[Any], spelled: str, here: str) -> None:
    topology, stream = declared()
    made = {
        TridentTopology: topology,
        Stream: stream,
        GroupedStream: stream.group_by("n"),
        TridentState: counts(stream),
    }
    with pytest.raises(
        AttributeError, match=f"'{handle.__name__}' has no attribute '{spelled}'; it is called '{here}' here"
    ):
        getattr(made[handle], spelled)


def test_an_attribute_that_is_nowhere_is_no_attribute(stream: Stream) -> None:
    with pytest.raises(AttributeError, match="'Stream' has no attribute 'shuffleTwice'$"):
        stream.shuffleTwice  # noqa: B018  the look-up itself is refused
    with pytest.raises(AttributeError, match="'Stream' has no attribute 'shuffle_twice'$"):
        stream.shuffle_twice  # noqa: B018  as above
    with pytest.raises(AttributeError, match="no attribute 'union'; it is a method of the topology: topology.merge$"):
        stream.union  # noqa: B018  as above


class Rows(Shapeless):
    """An IBatchSpout that promises nothing."""

    def get_output_fields(self) -> Fields:
        return Fields("line: string")


@pytest.mark.parametrize(
    ("spout", "state", "text"),
    [
        (
            Rows(), MemoryMapState.opaque(),
            "stream 'lines' has a non-transactional spout and feeds state 'c', which is opaque: the pairing "
            r"\(non-transactional spout, opaque state\) is not exact after a replay. No state is .*allow_inexact=True",
        ),
        (Rows(), MemoryMapState.transactional(), r"\(non-transactional spout, transactional state\) is not exact"),
        (
            FixedBatchSpout("line", 1, ["a"]), MemoryMapState.non_transactional(),
            r"\(transactional spout, non-transactional state\) is not exact",
        ),
    ],
)  # fmt: skip
def test_an_inexact_pairing_is_refused(spout: Any, state: StateSpec, text: str) -> None:
    topology = TridentTopology("t")
    topology.new_stream("lines", spout).filter(lambda row: True).persistent_aggregate(state, Count(), "c")
    with pytest.raises(InexactPairingError, match=text):
        topology.start(engine="in_process")


def test_an_inexact_pairing_runs_where_it_is_allowed() -> None:
    topology = TridentTopology("t")
    state = topology.new_stream("lines", FixedBatchSpout("line", 1, ["a"], ["b"])).persistent_aggregate(
        MemoryMapState.non_transactional(), Count(), "c"
    )
    with topology.start(engine="in_process", allow_inexact=True) as running:
        running.process_all_available()
        assert running.state(state).get() == 2


class Bare:
    """A state that is none, or nearly."""

    def __init__(self, *methods: str) -> None:
        for name in methods:
            setattr(self, name, print)

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Bare:
        return self


@pytest.mark.parametrize(
    ("declare", "methods", "text"),
    [
        (lambda s, f: s.partition_persist(f, Update()), ["commit"], r"state 'lines-persist' \(Bare\) has no method "
         "'begin_commit': it is no State"),
        (lambda s, f: s.group_by("n").persistent_aggregate(f, Count(), "c"), ["begin_commit", "commit", "update"],
         "has no method 'multi_update': a grouped persistent_aggregate needs a MapState"),
        (lambda s, f: s.persistent_aggregate(f, Count(), "c"), ["begin_commit", "commit", "multi_update"],
         "has no method 'update': an ungrouped persistent_aggregate needs a Snapshottable; wrap the map in Snapshottab"),
    ],
)  # fmt: skip
def test_a_state_that_lacks_what_is_done_with_it_is_refused(declare: Any, methods: list[str], text: str) -> None:
    topology, stream = declared()
    declare(stream, Bare(*methods))
    with pytest.raises(TopologyError, match=text):
        topology.start(engine="in_process")


def test_a_state_that_the_topology_does_not_have_cannot_be_read() -> None:
    topology, stream = declared()
    counts(stream)
    with (
        topology.start(engine="in_process") as running,
        pytest.raises(TridentError, match=r"topology 't' has no state 'cuont'; it has \['count'\]"),
    ):
        running.state("cuont")
