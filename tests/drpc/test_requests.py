"""What a DRPC stream may be part of; what requests are answered with, and that it does not matter which others are answered."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.drpc_functions import answers
from tests.harness.topology_runs import Keep, RowsState, topology_of
from trident import (
    Fields,
    JoinOutFieldsMode,
    JoinType,
    Stream,
    TopologyError,
    TridentCollector,
    TridentTopology,
    TridentTuple,
)
from trident.operations import (
    Aggregator,
    Count,
    FilterNull,
    FirstN,
    GroupedMultiReducer,
    Max,
    MultiReducer,
    ReducerAggregator,
    Split,
    Sum,
    arrow_filter,
    arrow_function,
    col,
)
from trident.plan import make_plan, make_request_plan


class Joined(ReducerAggregator[str]):
    output_types = ("string",)

    def init(self) -> str:
        return "<"

    def reduce(self, curr: str, tuple: TridentTuple) -> str:
        return f"{curr}{tuple[0]}"


class Emitting(Aggregator[list[str]]):
    """Emits every second word, and at the end how many there were."""

    output_types = ("string",)

    def init(self, batch_id: Any, collector: TridentCollector) -> list[str]:
        return []

    def aggregate(self, val: list[str], tuple: TridentTuple, collector: TridentCollector) -> list[str]:
        val.append(tuple[0])
        if len(val) % 2 == 0:
            collector.emit([tuple[0]])
        return val

    def complete(self, val: list[str], collector: TridentCollector) -> None:
        collector.emit([str(len(val))])


class Both(MultiReducer[list[str]]):
    output_types = ("string",)

    def init(self, collector: TridentCollector) -> list[str]:
        return []

    def execute(
        self, state: list[str], stream_index: int, tuple: TridentTuple, collector: TridentCollector
    ) -> list[str]:
        return [*state, f"{stream_index}{tuple[0]}"]

    def complete(self, state: list[str], collector: TridentCollector) -> None:
        collector.emit([" ".join(state)])


class ByKey(GroupedMultiReducer[int]):
    output_types = ("string", "bigint")

    def init(self, collector: TridentCollector, group: TridentTuple) -> int:
        return 0

    def execute(
        self, state: int, stream_index: int, group: TridentTuple, tuple: TridentTuple, collector: TridentCollector
    ) -> int:
        return state + 1

    def complete(self, state: int, group: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([group[0], state])


def _words_of(args: str) -> Iterator[str]:
    yield from args.split()


def _split(requests: Stream) -> Stream:
    return requests.each("args", Split(), "word").project("word")


def _lengths(requests: Stream) -> Stream:
    return _split(requests).each("word", lambda word: len(word), "n: bigint")


def _with_itself(requests: Stream, *more: Any) -> Stream:
    topology, one = topology_of(requests), _split(requests)
    other = _lengths(requests).filter("n", lambda n: n > 1)
    return topology.join(one, "word", other, "word", *more)


def _merged(requests: Stream) -> Stream:
    return topology_of(requests).merge(_split(requests), _split(requests).filter(lambda row: row[0] != "a"))


@arrow_filter
def _longer_than_one(rows: pa.RecordBatch) -> Any:
    assert "$request" not in rows.schema.names
    return pc.greater(rows.column("n"), 1)


@arrow_function("rows: bigint")
def _number_of_rows(rows: pa.RecordBatch) -> Any:
    return pa.array([rows.num_rows] * rows.num_rows, pa.int64())


SHAPES: dict[str, tuple[Callable[[Stream], Any], list[Any]]] = {
    "nothing at all": (lambda s: s, [[["bb a bb"]], [[""]], [["ccc a"]]]),
    "each": (_split, [[["bb"], ["a"], ["bb"]], [], [["ccc"], ["a"]]]),
    "a generator": (
        lambda s: s.each("args", _words_of, "w: string").project("w"),
        [[["bb"], ["a"], ["bb"]], [], [["ccc"], ["a"]]],
    ),
    "filter": (lambda s: _lengths(s).filter("n", lambda n: n > 1), [[["bb", 2], ["bb", 2]], [], [["ccc", 3]]]),
    "filter null": (lambda s: _split(s).each("word", FilterNull()), [[["bb"], ["a"], ["bb"]], [], [["ccc"], ["a"]]]),
    "map": (lambda s: s.map(lambda row: row[0].upper()), [[["BB A BB"]], [[""]], [["CCC A"]]]),
    "flat map": (
        lambda s: s.flat_map(lambda row: [(word, 1) for word in row[0].split()], "w: string, one: bigint"),
        [[["bb", 1], ["a", 1], ["bb", 1]], [], [["ccc", 1], ["a", 1]]],
    ),
    "project": (lambda s: _lengths(s).project("n"), [[[2], [1], [2]], [], [[3], [1]]]),
    "select": (
        lambda s: _split(s).select("word", twice=col("word").length() * 2).where(col("twice") > 2),
        [[["bb", 4], ["bb", 4]], [], [["ccc", 6]]],
    ),
    "explode": (
        lambda s: s.select(w=col("args").split(" ").explode()).where(col("w").length() > 0),
        [[["bb"], ["a"], ["bb"]], [], [["ccc"], ["a"]]],
    ),
    "arrow function": (
        lambda s: _split(s).each("word", arrow_function("n: int")(pc.utf8_length), "n").filter(_longer_than_one),
        [[["bb", 2]] * 2, [], [["ccc", 3]]],
    ),
    "arrow function of batches": (
        lambda s: _split(s).map(_number_of_rows),
        [[[3], [3], [3]], [], [[2], [2]]],
    ),
    "combiner": (lambda s: _lengths(s).aggregate("n", Sum(), "sum"), [[[5]], [[0]], [[4]]]),
    "count": (lambda s: _split(s).aggregate(Count(), "n"), [[[3]], [[0]], [[2]]]),
    "maximum": (lambda s: _lengths(s).aggregate("n", Max(), "most: bigint"), [[[2]], [[None]], [[3]]]),
    "reducer": (lambda s: _split(s).aggregate("word", Joined(), "all"), [[["<bbabb"]], [["<"]], [["<ccca"]]]),
    "aggregator": (
        lambda s: _split(s).aggregate("word", Emitting(), "out"),
        [[["a"], ["3"]], [["0"]], [["a"], ["2"]]],
    ),
    "aggregate of a partition": (lambda s: _split(s).partition_aggregate(Count(), "n"), [[[3]], [[0]], [[2]]]),
    "grouped": (
        lambda s: _split(s).group_by("word").aggregate(Count(), "n"),
        [[["bb", 2], ["a", 1]], [], [["ccc", 1], ["a", 1]]],
    ),
    "grouped reducer": (
        lambda s: _lengths(s).group_by("n").aggregate("word", Joined(), "all"),
        [[[2, "<bbbb"], [1, "<a"]], [], [[3, "<ccc"], [1, "<a"]]],
    ),
    "chained": (
        lambda s: _lengths(s).chained_agg().aggregate(Count(), "k").aggregate("n", Sum(), "sum").chain_end(),
        [[[3, 5]], [[0, 0]], [[2, 4]]],
    ),
    "max by": (lambda s: _lengths(s).max_by("n"), [[["bb", 2]], [], [["ccc", 3]]]),
    "min by": (lambda s: _lengths(s).min_by("n"), [[["a", 1]], [], [["a", 1]]]),
    "first n": (
        lambda s: _lengths(s).apply_assembly(FirstN(2, "n", reverse=True)),
        [[["bb", 2], ["bb", 2]], [], [["ccc", 3], ["a", 1]]],
    ),
    "shuffled": (lambda s: _split(s).shuffle().parallelism_hint(3), [[["bb"], ["a"], ["bb"]], [], [["ccc"], ["a"]]]),
    "sent elsewhere": (
        lambda s: _lengths(s).partition(lambda row, n: [0] * (row["n"] - 1)),
        [[["bb", 2], ["bb", 2]], [], [["ccc", 3], ["ccc", 3]]],
    ),
    "merge": (_merged, [[["bb"], ["a"], ["bb"], ["bb"], ["bb"]], [], [["ccc"], ["a"], ["ccc"]]]),
    "join": (lambda s: _with_itself(s, "w, n"), [[["bb", 2]] * 4, [], [["ccc", 3]]]),
    "outer join": (
        lambda s: _with_itself(s, "w, n", JoinType.mixed(JoinType.INNER, JoinType.OUTER)),
        [[["bb", 2]] * 4 + [["a", None]], [], [["ccc", 3], ["a", None]]],
    ),
    "join of all fields": (
        lambda s: _with_itself(s, "w, w2, n", JoinType.OUTER, JoinOutFieldsMode.PRESERVE),
        [[["bb", "bb", 2]] * 4 + [["a", None, None]], [], [["ccc", "ccc", 3], ["a", None, None]]],
    ),
    "multi reduce": (
        lambda s: topology_of(s).multi_reduce(_split(s), _lengths(s), Both(), "all"),
        [[["0bb 0a 0bb 1bb 1a 1bb"]], [[""]], [["0ccc 0a 1ccc 1a"]]],
    ),
    "grouped multi reduce": (
        lambda s: topology_of(s).multi_reduce(
            _split(s).group_by("word"), _lengths(s).group_by("word"), ByKey(), "w, k"
        ),
        [[["bb", 4], ["a", 2]], [], [["ccc", 2], ["a", 2]]],
    ),
}  # fmt: skip
ARGS = ["bb a bb", "", "ccc a"]


@pytest.mark.parametrize("shape", SHAPES)
def test_requests_answered_together_are_answered_as_each_alone(shape: str) -> None:
    declare, expected = SHAPES[shape]
    topology = TridentTopology("t")
    declare(topology.new_drpc_stream("f"))
    assert answers(topology, ARGS) == expected
    assert [answers(topology, [args])[0] for args in ARGS] == expected
    assert answers(topology, ["", ""]) == [expected[1], expected[1]]


def test_the_answer_is_the_last_step_that_was_declared() -> None:
    topology = TridentTopology("t")
    requests = topology.new_drpc_stream("f")
    counted = requests.each("args", Split(), "word").aggregate(Count(), "n")
    requests.map(lambda row: row[0] + "!")
    assert answers(topology, ["a b"]) == [[["a b!"]]]
    counted.each("n", lambda n: -n, "m: bigint")
    assert answers(topology, ["a b"]) == [[[2, -2]]]


def test_a_thousand_requests_are_one_batch() -> None:
    calls: list[str] = []
    topology = TridentTopology("t")
    requests = topology.new_drpc_stream("f").peek(lambda row: calls.append(row["args"]))
    requests.each("args", Split(), "word").group_by("word").aggregate(Count(), "n")
    args = [f"w{number} w{number} v{number % 7}" for number in range(1000)]
    found = [sorted(answer) for answer in answers(topology, args)]  # groups come in no order that is promised
    assert found == [[[f"v{n % 7}", 1], [f"w{n}", 2]] for n in range(1000)]
    assert calls == args


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


@pytest.fixture
def requests(topology: TridentTopology) -> Stream:
    return topology.new_drpc_stream("words")


@pytest.fixture
def lines(topology: TridentTopology) -> Stream:
    return topology.new_stream("lines", FixedBatchSpout("line: string", 2, ["the cow"]))


def test_requests_are_one_text(requests: Stream) -> None:
    assert requests.get_output_fields() == Fields("args: string")


@pytest.mark.parametrize(
    "call",
    [
        lambda topology, a, b: topology.merge(a, b),
        lambda topology, a, b: topology.merge(b, a),
        lambda topology, a, b: topology.join(a, a.fields, b, b.fields, "word"),
        lambda topology, a, b: topology.multi_reduce(a, b, MultiReducer(), "n: bigint"),
    ],
)
def test_requests_and_a_spouts_tuples_do_not_meet(
    topology: TridentTopology, requests: Stream, lines: Stream, call: Callable[..., Any]
) -> None:
    nodes = len(topology.graph().nodes)
    with pytest.raises(TopologyError) as raised:
        call(topology, requests.name("asked"), lines.name("read"))
    assert "stream 'asked' of DRPC function 'words'" in str(raised.value)
    assert "stream 'read' of spout 'lines'" in str(raised.value)
    assert len(topology.graph().nodes) == nodes


def test_requests_meet_neither_other_requests_nor_new_values_of_a_state(
    topology: TridentTopology, requests: Stream, lines: Stream
) -> None:
    other = topology.new_drpc_stream("other")
    with pytest.raises(TopologyError, match="of DRPC function 'words' together with stream 'drpc:other' of DRPC"):
        topology.merge(requests, other)
    values = lines.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "n").new_values_stream()
    with pytest.raises(TopologyError, match="of spout 'lines'"):
        topology.merge(requests, values.project("line"))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.group_by("args").persistent_aggregate(MemoryMapState(), Count(), "n"),
        lambda s: s.each("args", Split(), "word").persistent_aggregate(MemoryMapState(), Count(), "n"),
        lambda s: s.partition_persist(RowsState(), Keep()),
    ],
)
def test_requests_feed_no_state(topology: TridentTopology, requests: Stream, call: Callable[[Stream], Any]) -> None:
    with pytest.raises(TopologyError, match="cannot take the requests of DRPC function 'words'; they only read"):
        call(requests)
    assert topology.graph().states == ()


def test_a_function_is_declared_once(topology: TridentTopology, requests: Stream) -> None:
    with pytest.raises(TopologyError, match="already has a DRPC function 'words'"):
        topology.new_drpc_stream("words")


@pytest.mark.parametrize("name", ["", "a/b", "two words", 3])
def test_a_function_has_a_name_that_fits_an_address(topology: TridentTopology, name: Any) -> None:
    with pytest.raises(TopologyError, match="cannot name a DRPC function"):
        topology.new_drpc_stream(name)


def test_storms_name_leads_to_ours(topology: TridentTopology) -> None:
    with pytest.raises(AttributeError, match="new_drpc_stream"):
        topology.newDRPCStream("words")


def test_the_plan_of_the_batches_knows_nothing_of_requests(topology: TridentTopology, lines: Stream) -> None:
    counts = lines.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "n")
    before = make_plan(topology.graph())
    requests = topology.new_drpc_stream("words")
    requests.group_by("args").aggregate(Count(), "n")
    assert make_plan(topology.graph()) == before
    assert counts.state_name in before.states


def test_a_topology_of_functions_only_has_no_batches(topology: TridentTopology, requests: Stream) -> None:
    with pytest.raises(TopologyError, match=r"DRPC functions only \(words\).*LocalDRPC"):
        topology.start(engine="in_process")


def test_a_function_that_is_not_there_is_refused(topology: TridentTopology, requests: Stream) -> None:
    with pytest.raises(TopologyError, match=r"has no DRPC function 'wrds'; it has \['words'\]"):
        make_request_plan(topology.graph(), "wrds")
