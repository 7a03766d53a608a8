"""Calls that cannot be meant so: streams that do not fit, built-ins given the wrong types, classes, names, recursion.

The calls of single streams are in `test_topology.py`, what only shows in a batch is in `run/test_bad_input.py`.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.memory import LRUMemoryMapState, MemoryMapState
from states.redis import RedisState
from trident import JoinType, Stream, TopologyError, TridentTopology
from trident.errors import ConfigError
from trident.operations import (
    ArgMax,
    Avg,
    BaseStateUpdater,
    Collect,
    Count,
    CountDistinct,
    FirstN,
    KeyedProcess,
    MapGet,
    Max,
    Min,
    MultiReducer,
    SessionWindow,
    SlidingDurationWindow,
    SnapshotGet,
    Split,
    StdDev,
    StringLength,
    Sum,
    TopN,
    TumblingCountWindow,
    TumblingDurationWindow,
    col,
    sql,
)
from trident.state import StateSpec

THREE: Any = 3
NOTHING: Any = None
FIELDS = "a: string, n: int, m: map<string,int>, l: array<int>, b: boolean, st: struct<x:int>"


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


@pytest.fixture
def stream(topology: TridentTopology) -> Stream:
    return topology.new_stream("s", FixedBatchSpout(FIELDS, 1, ["x", 1, {}, [], True, {"x": 1}]))


def by_key(s: Stream) -> Any:
    return s.group_by("a").persistent_aggregate(MemoryMapState(), Count(), "c")


def single(s: Stream) -> Any:
    return s.persistent_aggregate(MemoryMapState(), Count(), "c")


def length_of(text: str) -> int:
    return len(text)


def ping(s: Stream) -> Stream:
    return s.filter("n", bool).apply_assembly(pong)


def pong(s: Stream) -> Stream:
    return s.apply_assembly(ping)


CASES: dict[str, tuple[Callable[[TridentTopology, Stream], object], str]] = {
    # built-in aggregators
    "sum of text": (
        lambda t, s: s.aggregate("a", Sum(), "x"),
        "stream 's': Sum needs a number, but field 'a' is string",
    ),
    "sum of booleans": (lambda t, s: s.aggregate("b", Sum(), "x"), "Sum needs a number, but field 'b' is boolean"),
    "sum of a field that is not there": (
        lambda t, s: s.partition_aggregate("z", Sum(), "x"),
        "no field 'z' of stream 's'; it has ['a', 'n', 'm', ",
    ),
    "sum of nothing": (
        lambda t, s: s.aggregate(Sum(), "x"),
        "Sum takes one input field, not []; name it before the aggregator",
    ),
    "max of a map": (
        lambda t, s: s.aggregate("m", Max(), "x"),
        "stream 's': Max cannot order field 'm', which is map<string,int>",
    ),
    "min of a list, kept": (
        lambda t, s: s.persistent_aggregate(MemoryMapState(), "l", Min(), "x"),
        "Min cannot order field 'l', which is array<int>",
    ),
    "min of two fields": (lambda t, s: s.aggregate("a, n", Min(), "x"), "Min takes one input field, not ['a', 'n']"),
    "sum as text": (
        lambda t, s: s.aggregate("n", Sum(), "x: string"),
        "stream 's': Sum gives bigint, but its output field 'x' is declared string; leave the type out, or change it "
        "behind the aggregate with select or map",
    ),
    "count as text": (
        lambda t, s: s.aggregate(Count(), "x: string"),
        "Count gives bigint, but its output field 'x' is declared",
    ),
    "max as another type": (
        lambda t, s: s.aggregate("a", Max(), "x: int"),
        "Max gives string, but its output field 'x' is",
    ),
    "the least map": (
        lambda t, s: s.min_by("m"),
        "min_by cannot order 'm', which is map<string,int>; give it a comparator",
    ),
    "first by a struct": (
        lambda t, s: s.apply_assembly(FirstN(1, "st")),
        "stream 's': FirstN cannot sort by 'st', which is struct<x:int>",
    ),
    "first by what is not there": (lambda t, s: s.apply_assembly(FirstN(1, "z")), "no field 'z' of stream 's'"),
    "aggregate by function": (
        lambda t, s: s.aggregate("n", sum, "x: int"),
        "stream 's': aggregate takes ([fields,] aggregator, output fields); got",
    ),
    "aggregate by a class": (
        lambda t, s: s.aggregate(Count, "x"),
        "got <class 'trident.operations.builtin.Count'>, which is a class; give an object: Count()",
    ),
    "filter by SQL": (lambda t, s: s.filter("n > 1"), "a method 'is_keep'; where takes SQL text"),
    "half of an expression": (
        lambda t, s: s.where("n >"),
        "'n >' is not an SQL expression: Required keyword: 'expression' missing. Line 1",
    ),
    "output named like the key": (
        lambda t, s: s.group_by("a").aggregate(Count(), "a"),
        "cannot add field 'a' to stream 's': it has ['a']; choose another",
    ),
    "two outputs of one name": (
        lambda t, s: s.chained_agg().aggregate(Count(), "c").aggregate("n", Sum(), "c").chain_end(),
        "stream 's': output fields of chained aggregators must be distinct, got ['c', 'c']",
    ),
    "an empty chain": (lambda t, s: s.chained_agg().chain_end(), "stream 's': chained_agg has no aggregator; add one"),
    # built-in functions
    "split of a number": (
        lambda t, s: s.each("n", Split(), "w"),
        "stream 's': Split takes one field of type string, but got (n: int); name one, and make it text with each or select",
    ),
    "split of nothing": (lambda t, s: s.each(Split(), "w"), "Split takes one field of type string, but got ()"),
    "length of a number": (
        lambda t, s: s.each("n", StringLength(), "w"),
        "StringLength takes one field of type string, but got",
    ),
    # fields
    # several streams
    "merge of other types": (
        lambda t, s: t.merge(s.project("a"), s.project("n")),
        "cannot merge stream 's/project.2' (n: int) with stream 's/project' (a: string): they must have fields of the "
        "same names",
    ),
    "merge of other widths": (
        lambda t, s: t.merge(s, s.project("n")),
        "cannot merge stream 's/project' (n: int) with stream 's'",
    ),
    "merge of other names": (
        lambda t, s: t.merge(s.project("a"), s.select(b=col("a"))),
        "cannot merge stream 's/select' (b: string) with stream 's/project' (a: string): they must have fields of the same "
        "names, in any order. Choose fields with project",
    ),
    "merge of a field at two places": (
        lambda t, s: t.merge("x, y", s.select(a=col("a"), b=col("a")), s.select(b=col("a"), c=col("a"))),
        "cannot merge stream 's/select.2' (b: string, c: string) with stream 's/select'",
    ),
    "merge of one name with two types": (
        lambda t, s: t.merge(s.project("n", "a"), s.select(a=col("n"), n=col("n"))),
        "with stream 's/project' (n: int, a: string): 'a' is string in the one and int in the other. Change the type",
    ),
    "merge under the same names in another order": (
        lambda t, s: t.merge("a, n", s.project("n", "a"), s.project("a", "n")),
        "merge gives ['n', 'a'] in this order, and names are given by position, so ['a', 'n'] would mix them",
    ),
    "join under the same names in another order": (
        lambda t, s: t.join(s.project("a", "n"), "a", s.select("a", m=col("n")), "a", "a, m, n"),
        "join gives ['a', 'n', 'm'] in this order, and names are given by position, so ['a', 'm', 'n'] would mix them",
    ),
    "an aggregator that names its field and is given another": (
        lambda t, s: s.aggregate("n", Sum("m"), "x"),
        "stream 's': Sum is given the fields (n), and names (m) itself; leave one of them out",
    ),
    "fields in another order than the aggregator names them": (
        lambda t, s: s.aggregate({"x": ("n, a", ArgMax("a", by="n"))}),
        "ArgMax is given the fields (n, a), and names (a, n) itself",
    ),
    "a result under a name of the key": (
        lambda t, s: s.group_by("a").aggregate({"a": Max("n"), "rows": Count()}),
        "gives its key (a) and the results of its aggregates, and both have a field 'a'; give the aggregate another name",
    ),
    "a new value under a name of the key": (
        lambda t, s: (
            s.group_by("a").persistent_aggregate(MemoryMapState(), {"a": Max("n"), "rows": Count()}).new_values_stream()
        ),
        "gives its key (a) and the results of its aggregates, and both have a field 'a'; give the aggregate another name",
    ),
    "a result of a window under a name of the key": (
        lambda t, s: s.group_by("a").tumbling_window(2, {"a": Max("n"), "rows": Count()}),
        "cannot add field 'a' to stream 's'",
    ),
    "merge under other names": (
        lambda t, s: t.merge("x, y", [s.project("a")]),
        "merge gives 1 fields (a: string), but 2 output fields are named",
    ),
    "merge of nothing": (lambda t, s: t.merge(), "topology 't': merge needs at least one stream"),
    "merge with a state": (
        lambda t, s: t.merge(s, by_key(s)),
        "topology 't': merge takes streams, got TridentState('c')",
    ),
    "join of other keys": (
        lambda t, s: t.join(s, "a", s, "n", "a, b"),
        "join: the key of stream 's' (n: int) must have as many fields as that of stream 's' (a: string), of the same types",
    ),
    "join by a map": (
        lambda t, s: t.join(s, "m", s, "m", "a"),
        "stream 's': cannot join 'm', which is map<string,int>; a key is",
    ),
    "join by what is not there": (lambda t, s: t.join(s, "z", s, "a", "a"), "no field 'z' of stream 's'"),
    "join with too few names": (
        lambda t, s: t.join(s.project("a"), "a", s.project("a, n"), "a", "a"),
        "stream 's/project': join gives 2 fields (a: string, n: int), but 1 output fields are named: ['a']",
    ),
    "join with a name twice": (
        lambda t, s: t.join(s.project("a, n"), "a", s.project("a, n"), "a", "k, x, x"),
        "duplicate field 'x' in ['k', 'x', 'x']",
    ),
    "join of one stream": (
        lambda t, s: t.join([s], ["a"], "a"),
        "topology 't': join takes (stream, key fields, stream, key",
    ),
    "join of a grouped stream": (
        lambda t, s: t.join(s.group_by("a"), "a", s, "a", "a"),
        "topology 't': join takes streams, got GroupedStream('s' by ['a'])",
    ),
    "one join type for two": (
        lambda t, s: t.join(s.project("a"), "a", s.project("a"), "a", "a", [JoinType.INNER]),
        "join of 2 streams got the join type [<JoinType.INNER: 'inner'>]; give a JoinType, or one for each stream",
    ),
    "join with a DRPC function": (
        lambda t, s: t.join(s.project("a"), "a", t.new_drpc_stream("f"), "args", "a"),
        "join: cannot bring stream 'drpc:f' of DRPC function 'f' together with stream 's/project' of spout 's': a request is a "
        "batch of its own",
    ),
    "merge with a DRPC function, later": (
        lambda t, s: t.merge(s.project("a").filter("a", len), t.new_drpc_stream("f").filter("args", len)),
        "merge: cannot bring stream 'drpc:f/len' of DRPC function 'f' together with stream 's/project/len' of spout 's'",
    ),
    "reduce with a class": (
        lambda t, s: t.multi_reduce(s, s, MultiReducer, "x"),
        "stream 's': multi_reduce takes (streams, reducer, output fields)",
    ),
    # states
    "query with another key": (
        lambda t, s: s.state_query(by_key(s), "a, n", MapGet(), "x"),
        "stream 's': state 'c' has the key (a: string), but the query looks up (a: string, n: int); name as many fields, "
        "of the same types in the same order",
    ),
    "query with a key of another type": (
        lambda t, s: s.state_query(by_key(s), "n", MapGet(), "x"),
        "state 'c' has the key (a: string), but the query looks up (n: int)",
    ),
    "query of a single value by key": (
        lambda t, s: s.state_query(single(s), "a", MapGet(), "x"),
        "stream 's': MapGet looks up keys, but state 'c' is a single value; use SnapshotGet",
    ),
    "query of a map as a single value": (
        lambda t, s: s.state_query(by_key(s), SnapshotGet(), "x"),
        "stream 's': SnapshotGet reads a single value, but state 'c' has one per key (a: string); use MapGet",
    ),
    "query with a class": (
        lambda t, s: s.state_query(by_key(s), "a", MapGet, "x"),
        "a query function is an object with batch_retrieve and execute",
    ),
    "query of a stream": (
        lambda t, s: s.state_query(cast("Any", s), "a", MapGet(), "x"),
        "stream 's': state_query asks a state, as persistent_aggregate, partition_persist and new_static_state return it; got ",
    ),
    "persist with a class": (
        lambda t, s: s.partition_persist(MemoryMapState(), "a", BaseStateUpdater),
        "is not a StateUpdater: give an object with the method",
    ),
    # names
    "a stream called 3": (lambda t, s: t.new_stream(THREE, FixedBatchSpout("a", 1, ["x"])), "3 cannot name a stream"),
    "a label of 3": (lambda t, s: s.name(THREE), "3 cannot be the name of a stream, a text without '/' and ':'"),
    "a function called None": (lambda t, s: t.new_drpc_stream(NOTHING), "None cannot name a DRPC function"),
    # round and round
    "a function without a field for what it gives": (
        lambda t, s: s.each("a", Split()),
        "stream 's': each of Split does not say what its output is called. Name it after the operation: "
        "each(…, Split(), 'split')",
    ),
    "a plain function without a field": (
        lambda t, s: s.each("a", length_of),
        "each of length_of does not say what its output is called",
    ),
    "an aggregate without a field": (
        lambda t, s: s.aggregate(Count()),
        "aggregate of Count does not say what its output",
    ),
    "a state's aggregate without a field": (
        lambda t, s: s.group_by("a").persistent_aggregate(MemoryMapState(), Count()),
        "persistent_aggregate(…, Count(), 'count')",
    ),
    "a path where a state belongs": (
        lambda t, s: s.persistent_aggregate(cast("Any", "counts/"), Count(), "c"),
        "'counts/' is not a state: it only names a place. DeltaState('counts/') is a state in that folder",
    ),
    "a class where a state belongs": (
        lambda t, s: s.persistent_aggregate(cast("Any", DeltaState), Count(), "c"),
        "is not a state: it is a class; give an instance of it: DeltaState(...)",
    ),
    "a path where a spout belongs": (
        lambda t, s: t.new_stream("x", cast("Any", "books/")),
        "TextFileSpout('books/') reads the files of a folder",
    ),
    "a text for a window": (
        lambda t, s: s.tumbling_window(cast("Any", "1 minute"), Count(), "c"),
        "a window with length '1 minute': give a whole number of tuples, at least 1, or a duration: timedelta(minutes=1)",
    ),
    "one folder for two states": (
        lambda t, s: [
            s.persistent_aggregate(DeltaState.opaque(path), Count(), name)
            for name, path in (("one", "folder"), ("two", "./folder/"))
        ],
        "topology 't': states 'one' and 'two' are both kept in ",
    ),
    "a folder and its URL for two states": (
        lambda t, s: [
            s.persistent_aggregate(DeltaState.opaque(path), Count(), name)
            for name, path in (("one", "folder"), ("two", Path("folder").absolute().as_uri()))
        ],
        "topology 't': states 'one' and 'two' are both kept in ",
    ),
    "a state in the folder of another one": (
        lambda t, s: [
            s.persistent_aggregate(DeltaState.opaque(path), Count(), name)
            for name, path in (("one", "s3://bucket/states/inner/"), ("two", "s3://bucket/states/"))
        ],
        "states 'one' and 'two' are kept in s3://bucket/states and inside of it, in s3://bucket/states/inner; give each",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_that_cannot_be_meant_so_is_refused_there(case: str, topology: TridentTopology, stream: Stream) -> None:
    call, text = CASES[case]
    with pytest.raises(TopologyError, match=re.escape(text)):
        call(topology, stream)


def test_assemblies_without_end_name_the_stream(stream: Stream) -> None:
    with pytest.raises(
        TopologyError, match=r"stream 's/bool': assembly <function pong at .*> applies itself without end"
    ):
        ping(stream)


S = timedelta(seconds=1)
DAY = 86_400
WEEK = TumblingDurationWindow.of(timedelta(days=7))


def expiring(ttl_s: int) -> StateSpec:
    return RedisState.opaque("redis://nowhere", ttl_s=ttl_s, allow_short_ttl=True)


def a_stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatchSpout("k: string, at: timestamp", 1, ("a", None)))


def windowed(config: Any) -> Callable[[StateSpec], object]:
    return lambda state: a_stream().group_by("k").window(config, state, Count(), "n")


def joined(**options: Any) -> Callable[[StateSpec], object]:
    def declare(state: StateSpec) -> object:
        topology = TridentTopology("t")
        left, right = (
            topology.new_stream(name, FixedBatchSpout("k: string, at: timestamp", 1, ("a", None))) for name in "lr"
        )
        return topology.join_within(left, "k", right, "k", "k, l, r", times="at", state=state, **options)

    return declare


@pytest.mark.parametrize(
    ("declare", "needs"),
    [
        (windowed(TumblingDurationWindow.of(60 * S)), 60),
        (windowed(SlidingDurationWindow.of(60 * S, S)), 60),
        (windowed(SlidingDurationWindow.of(60.001 * S, S / 1000)), 61),
        (windowed(WEEK), 8 * DAY),
        (windowed(WEEK.by_event_time("at", S, 2 * S)), 8 * DAY + 3),
        (windowed(TumblingDurationWindow.of(60 * S).by_event_time("at", 5 * S, 7 * S)), 72),
        (windowed(SessionWindow.of(60 * S, "at", 5 * S)), 65),
        (joined(within=60 * S), 60),
        (joined(within=(S, 60 * S), delay=(50 * S, 5 * S)), 65),
        (joined(within=(-60 * S, S), delay=(5 * S, 50 * S)), 65),
        (joined(within=timedelta(days=7)), 8 * DAY),
    ],
)
def test_a_state_that_expires_before_a_window_or_join_is_complete_is_refused(
    declare: Callable[[StateSpec], object], needs: int
) -> None:
    with pytest.raises(TopologyError, match=rf"expire {needs - 1} seconds after they were written \(ttl_s\).* {needs}"):
        declare(expiring(needs - 1))
    with pytest.raises(TopologyError, match="whose values expire 1 seconds after"):
        declare(expiring(1))
    declare(expiring(needs))
    declare(RedisState.opaque("redis://nowhere"))


@pytest.mark.parametrize("ttl_s", [1, DAY, 20 * 365 * DAY])
def test_a_window_by_count_is_kept_where_nothing_expires(ttl_s: int) -> None:
    with pytest.raises(
        TopologyError, match=r"state 'n-window', whose values expire .* however long that takes: leave tt"
    ):
        windowed(TumblingCountWindow.of(3))(expiring(ttl_s))


def test_a_cache_in_front_may_expire_and_what_is_behind_it_may_not() -> None:
    declare = windowed(WEEK)
    declare(MemcachedState.cache_for(RedisState.opaque("redis://nowhere"), "nowhere", ttl_s=DAY))
    with pytest.raises(TopologyError, match="expire 86400 seconds after"):
        declare(MemcachedState.cache_for(RedisState.opaque("redis://nowhere", ttl_s=DAY), "nowhere"))


def _aggregated(made: Any, t: TridentTopology, s: Stream, odd: Any) -> object:
    return s.aggregate({"x": made(odd)})


ODD: list[Any] = [True, 1.5, b"a", ["a"], {}, object(), col("n"), timedelta.max, timedelta.min, ["a", "n"], "in"]
ODD_CALLS: dict[str, tuple[Callable[[TridentTopology, Stream, Any], object], str, tuple[Any, ...]]] = {
    **{
        made.__name__: (partial(_aggregated, made), "", ("in",))
        for made in (Sum, Min, Max, Avg, StdDev, Collect, CountDistinct)
    },
    "ArgMax by": (lambda t, s, odd: s.aggregate({"x": ArgMax("a", by=odd)}), "", ("in",)),
    "TopN by": (lambda t, s, odd: s.aggregate({"x": TopN(2, "n", by=odd)}), "", ("in",)),
    "a pair of one": (lambda t, s, odd: s.aggregate({"x": (odd,)[1:]}), "aggregate 'x' is ()", ()),
    "most": (lambda t, s, odd: Collect("n", most=odd), "most=", (True,)),
    "FirstN": (lambda t, s, odd: FirstN(odd), "n=", ()),
    "FirstN by": (lambda t, s, odd: s.apply_assembly(FirstN(2, odd)), "", ("in",)),
    "approximate": (lambda t, s, odd: CountDistinct("n", approximate=odd), "approximate=", (True,)),
    "Split": (lambda t, s, odd: Split(odd), "separator=", ("in",)),
    "LRU": (lambda t, s, odd: LRUMemoryMapState(odd), "max_size=", ()),
    "tables": (lambda t, s, odd: FixedBatchSpout.of_tables(odd), "takes Arrow tables", ()),
    "no SQL": (lambda t, s, odd: sql(odd), "is not an SQL expression", ("in",)),
    "empty SQL": (lambda t, s, odd: s.where(" "), "' ' is not an SQL expression", ()),
    "event time": (lambda t, s, odd: s.group_by("a").process(Left(), "x: int", event_time=odd), "", ()),
    "join type": (lambda t, s, odd: _joined(t, s, join_type=odd), "got the join type", ()),
    "within": (lambda t, s, odd: _joined(t, s, within=odd), "join_within got within=", ()),
    "a static state": (lambda t, s, odd: t.new_static_state(MemoryMapState(), odd), "cannot name a state", ("in",)),
}  # fmt: skip


class Left(KeyedProcess[Any]): ...


def _joined(t: TridentTopology, s: Stream, **given: Any) -> object:
    timed = s.select("a", n=col("n") + 0)
    return t.join_within(timed, "a", timed, "a", "a, n, m", **{"times": "n", "within": timedelta(1), **given})


@pytest.mark.parametrize("call", ODD_CALLS)
def test_an_odd_argument_is_refused_and_never_a_raw_error(call: str, topology: TridentTopology, stream: Stream) -> None:
    called, said, taken = ODD_CALLS[call]
    for odd in ODD:
        if not any(type(odd) is type(one) and odd == one for one in taken):
            with pytest.raises((TopologyError, ConfigError)) as refused:
                called(topology, stream, odd)
            assert said in str(refused.value)
