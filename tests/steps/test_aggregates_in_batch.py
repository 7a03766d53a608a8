"""Aggregates within a batch, on both engines: the documented examples, and what is easily got wrong."""

import itertools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import CountAll, Fold, RowsSpout, RowsState, keep, run_all, start, touch
from trident import Stream, TopologyError, TridentCollector, TridentTopology, TridentTuple
from trident.operations import (
    Aggregator,
    CombinerAggregator,
    Count,
    CountAsAggregator,
    FirstN,
    Min,
    MinWithComparator,
    Split,
)
from trident.operations.assemblies import FirstRows
from trident.operations.builtin import MaxBy, MinBy
from trident.spout.interfaces import TransactionAttempt


def rows(topology: TridentTopology, fields: str, *batch: Sequence[Any], name: str = "s") -> Stream:
    """One batch of rows; `()` alone is a batch whose only row is filtered away."""
    return topology.new_stream(name, FixedBatchSpout(fields, max(1, len(batch)), *batch))


def nothing(topology: TridentTopology, fields: str = "a: string, b: int") -> Stream:
    return rows(topology, fields, ("x", 1)).filter(lambda row: False)


def in_partitions(topology: TridentTopology, fields: str, *partitions: Sequence[Sequence[Any]]) -> Stream:
    """Return a stream whose tuples are in the partitions given; `p` is the number of each."""
    batch = [(*row, number) for number, part in enumerate(partitions) for row in part]
    stream = rows(topology, f"{fields}, p: int", *batch)
    return stream.partition(lambda row, count: row["p"]).parallelism_hint(len(partitions))


class Longest(CombinerAggregator[str | None]):
    """Has no identity: nothing gives None."""

    output_types = ("string",)

    def init(self, tuple: TridentTuple) -> str | None:
        return tuple.get_string(0)

    def combine(self, val1: str | None, val2: str | None) -> str | None:
        assert val1 is not None, "nothing was combined with nothing"
        assert val2 is not None, "nothing was combined with nothing"
        return max(val1, val2, key=lambda text: (len(text), text))

    def zero(self) -> None:
        return None


class Emits(Aggregator[list[Any]]):
    """Emits the given values, or each of its tuples, or nothing."""

    output_types = ("string",)

    def __init__(self, values: Sequence[str] | None = None) -> None:
        self.values = values

    def init(self, batch_id: Any, collector: TridentCollector) -> list[Any]:
        return []

    def aggregate(self, val: list[Any], tuple: TridentTuple, collector: TridentCollector) -> list[Any]:
        if self.values is None:
            collector.emit([tuple[0]])
        return val

    def complete(self, val: list[Any], collector: TridentCollector) -> None:
        for value in self.values or ():
            collector.emit([value])


class Begins(Aggregator[None]):
    """Emits in `init` already."""

    output_types = ("string",)

    def init(self, batch_id: Any, collector: TridentCollector) -> None:
        collector.emit(["begun"])

    def aggregate(self, val: None, tuple: TridentTuple, collector: TridentCollector) -> None:
        return None

    def complete(self, val: None, collector: TridentCollector) -> None:
        return None


class Attempts(Aggregator[Any]):
    """Emits the batch id that it was given."""

    output_types = ("bigint", "bigint", "string")

    def init(self, batch_id: Any, collector: TridentCollector) -> Any:
        assert isinstance(batch_id, TransactionAttempt)
        return batch_id

    def aggregate(self, val: Any, tuple: TridentTuple, collector: TridentCollector) -> Any:
        return val

    def complete(self, val: Any, collector: TridentCollector) -> None:
        collector.emit([val.txid, val.attempt & 0xFFFFF, str(val)])


COUNTS = [Count(), CountAll(), Fold(), CountAsAggregator()]


def test_a_partition_without_tuples_counts_zero(engine: str, topology: TridentTopology) -> None:
    stream = in_partitions(topology, "a: string", [("a",), ("b",)], [], [("c",)])
    counts = [keep(stream.partition_aggregate(count, "n"), type(count).__name__) for count in COUNTS]
    run_all(topology, engine)
    assert [kept.rows for kept in counts] == [[(2,), (0,), (1,)]] * len(COUNTS)


def test_a_stream_without_a_part_of_the_batch_is_one_empty_partition(engine: str, topology: TridentTopology) -> None:
    first = topology.new_stream("a", RowsSpout("x: string", {1: [("a",)]}))
    second = topology.new_stream("b", RowsSpout("x: string", {2: [("b",)]}))
    counts = keep(first.partition_aggregate(Count(), "n")), keep(second.partition_aggregate(Count(), "n"), "second")
    all_of_it = keep(second.aggregate(Count(), "n"), "all")
    run_all(topology, engine)
    assert [kept.batches for kept in counts] == [{1: [(1,)], 2: [(0,)]}, {1: [(0,)], 2: [(1,)]}]
    assert all_of_it.batches == {1: [(0,)], 2: [(1,)]}


def test_an_empty_batch_counts_zero_once_and_no_group(engine: str, topology: TridentTopology) -> None:
    empty = nothing(topology).shuffle().parallelism_hint(3)
    whole = [keep(empty.aggregate(count, "n"), type(count).__name__) for count in COUNTS]
    groups = [keep(empty.group_by("a").aggregate(count, "n"), f"{type(count).__name__}_groups") for count in COUNTS]
    run_all(topology, engine)
    assert [kept.rows for kept in whole] == [[(0,)]] * len(COUNTS)
    assert [kept.rows for kept in groups] == [[]] * len(COUNTS)


def test_a_combiner_without_an_identity(engine: str, topology: TridentTopology) -> None:
    stream = in_partitions(topology, "a: string", [], [("ab",)], [], [("abc",), ("x",)])
    kept = keep(stream.aggregate("a", Longest(), "longest"))
    none = keep(stream.filter(lambda row: False).aggregate("a", Longest(), "longest"), "none")
    least = keep(stream.filter(lambda row: False).aggregate("a", Min(), "least"), "least")
    run_all(topology, engine)
    assert (kept.rows, none.rows, least.rows) == ([("abc",)], [(None,)], [(None,)])


def test_what_is_emitted_in_init_has_the_key_of_its_group(engine: str, topology: TridentTopology) -> None:
    kept = keep(rows(topology, "a: string", ("x",), ("y",), ("x",)).group_by("a").aggregate(Begins(), "b"))
    run_all(topology, engine)
    assert sorted(kept.rows) == [("x", "begun"), ("y", "begun")]


def test_an_aggregator_is_told_the_attempt_also_behind_a_state(
    engine: str, topology: TridentTopology, tmp_path: Path
) -> None:
    def fails_once(a: str) -> str:
        if touch(str(tmp_path)) == 0:
            raise RuntimeError("once")
        return a

    stream = rows(topology, "a: string", ("x",)).each("a", fails_once, "b")
    counts = stream.group_by("a").persistent_aggregate(MemoryMapState(), Count(), "count")
    before = keep(stream.aggregate(Attempts(), "txid, attempt, text"))
    behind = keep(counts.new_values_stream().aggregate(Attempts(), "txid, attempt, text"), "behind")
    run_all(topology, engine, max_batch_attempts=3)
    assert before.rows == behind.rows
    ((txid, attempt, text),) = before.rows
    assert (txid, attempt, text) == (1, 1, text.partition(",")[0] + ", retry 1)")


CHAINS: dict[str, tuple[list[Any], list[tuple[Any, ...]]]] = {
    "the last varies fastest": (
        [Emits("pq"), Emits("123")], [("p", "1"), ("p", "2"), ("p", "3"), ("q", "1"), ("q", "2"), ("q", "3")],
    ),
    "a silent one": ([Count(), Emits("")], []),
    "a silent one first": ([Emits(""), Count(), Fold()], []),
    "one alone": ([Emits("xy")], [("x",), ("y",)]),
    "tuples times values": ([Emits(), Fold(), Emits("z")], [("a", 2, "z"), ("b", 2, "z")]),
}  # fmt: skip


def test_a_chain_gives_every_combination(engine: str, topology: TridentTopology) -> None:
    stream, found = rows(topology, "a: string", ("a",), ("b",)), dict[str, RowsState]()
    for case, (members, _) in CHAINS.items():
        chain = stream.chained_agg()
        for number, member in enumerate(members):
            chain = chain.aggregate("a", member, f"out{number}")
        found[case] = keep(chain.chain_end(), f"kept{len(found)}")
    run_all(topology, engine)
    assert {case: kept.rows for case, kept in found.items()} == {
        case: expected for case, (_, expected) in CHAINS.items()
    }


def test_the_extremes_of_each_partition_by_a_comparator(engine: str, topology: TridentTopology) -> None:
    stream = in_partitions(topology, "device: int, count: int", [(123, 2), (113, 54), (23, 28)], [(64, 18), (19, 174)])
    greatest = keep(stream.min_by("count", lambda a, b: b - a).project("device", "count"))
    least = keep(stream.max_by("count", lambda a, b: b - a).project("device", "count"), "least")
    run_all(topology, engine)
    assert (greatest.rows, least.rows) == ([(113, 54), (19, 174)], [(123, 2), (64, 18)])


EXTREMES: dict[str, tuple[str, list[Any], list[Any], list[Any]]] = {
    "ties: the last": ("v: int", [1, 2, 1, 2], [2], [3]),
    "nulls are skipped": ("v: int", [None, 5, None, 4, None], [3], [1]),
    "nothing but nulls": ("v: int", [None, None], [], []),
    "no tuples": ("v: int", [], [], []),
    "NaN is the greatest": ("v: double", [math.nan, 1.0, math.nan, 2.0, None], [1], [2]),
    "all NaN": ("v: double", [math.nan, None, math.nan], [2], [2]),
    "zeros are equal": ("v: double", [0.0, -0.0, 0.0], [2], [2]),
    "text": ("v: string", ["é", "z", "", "日本", "é"], [2], [3]),
    "booleans": ("v: boolean", [True, False, True, False], [3], [2]),
    "binary": ("v: binary", [b"b", b"", b"\xff"], [1], [2]),
    "decimals": ("v: decimal(5,2)", [Decimal("1.10"), Decimal("-2.00")], [1], [0]),
}


@pytest.mark.parametrize("case", EXTREMES)
@pytest.mark.parametrize("grouped", [False, True], ids=["kernel", "row by row"])
def test_the_extremes_of_every_type(case: str, grouped: bool, topology: TridentTopology) -> None:
    fields, values, least, greatest = EXTREMES[case]
    stream = rows(topology, f"n: int, {fields}", *(enumerate(values) if values else [(0, None)])).global_()
    if not values:
        stream = stream.filter(lambda row: False)
    if grouped:  # a key that all have: the same aggregators, without their kernels
        keyed = stream.each("n", lambda n: "k", "k: string").group_by("k")
        found = [
            keyed.partition_aggregate(["n", "v"], kind("v"), f"n2: int, v2: {stream.fields.types[1]}").to_stream()
            for kind in (MinBy, MaxBy)
        ]
    else:
        found = [stream.min_by("v"), stream.max_by("v")]
    kept = [keep(one.project(one.fields.names[-2]), f"kept{at}") for at, one in enumerate(found)]
    run_all(topology, "in_process")
    assert [[n for (n,) in one.rows] for one in kept] == [least, greatest]


FIRST: dict[str, tuple[FirstN, list[Any]]] = {
    "the smallest, in order": (FirstN(3, "v"), [-1, 1, 2]),
    "the largest, in order": (FirstN(3, "v", reverse=True), [9, 7, 2]),
    "more than there are": (FirstN(99, "v"), [-1, 1, 2, 2, 7, 9, None]),
    "as many as Arrow counts": (FirstN((1 << 63) - 1, "v"), [-1, 1, 2, 2, 7, 9, None]),
    "more than there are, reversed": (FirstN(99, "v", True), [9, 7, 2, 2, 1, -1, None]),
    "none": (FirstN(0, "v"), []),
    "none, unsorted": (FirstN(0), []),
    "unsorted: all": (FirstN((1 << 63) - 1), [2, 9, None, 7, -1, 2, 1]),
    "unsorted: the first that come": (FirstN(4), [2, 9, None, 7]),
}


def test_the_first_n(engine: str, topology: TridentTopology) -> None:
    stream = in_partitions(topology, "v: int", [(2,), (9,), (None,)], [], [(7,), (-1,)], [(2,), (1,)])
    found = {
        case: keep(stream.apply_assembly(assembly).project("v"), f"kept{at}")
        for at, (case, (assembly, _)) in enumerate(FIRST.items())
    }
    run_all(topology, engine)
    assert {case: [v for (v,) in kept.rows] for case, kept in found.items()} == {
        case: expected for case, (_, expected) in FIRST.items()
    }


class OwnFirst(FirstRows):
    """The same, without its kernel."""


def test_of_equal_ones_the_first_that_came_stand_before(topology: TridentTopology) -> None:
    stream = rows(topology, "v: double, n: int", *((v, n) for n, v in enumerate([1.0, math.nan, 0.0, None, -0.0, 1.0])))
    found = {
        (kind, reverse, n): keep(
            stream.partition_aggregate(["v", "n"], kind(n, "v", reverse), "v: double, n: int"), f"kept{at}"
        )
        for at, (kind, reverse, n) in enumerate(itertools.product([FirstRows, OwnFirst], [False, True], [9, 3]))
    }
    run_all(topology, "in_process")
    for (_, reverse, n), kept in found.items():
        assert [number for _, number in kept.rows] == ([1, 0, 5, 2, 4, 3] if reverse else [2, 4, 0, 5, 1, 3])[:n]


def test_a_state_without_new_values_counts_zero(engine: str, topology: TridentTopology) -> None:
    counts = nothing(topology).group_by("a").persistent_aggregate(MemoryMapState(), Count(), "n")
    kept = keep(counts.new_values_stream().partition_aggregate(Count(), "zero"))
    run_all(topology, engine)
    assert kept.rows == [(0,)]


class Refuses(Aggregator[int]):
    """Counts tuples; raises on `poison` after it has emitted."""

    output_types = ("string",)

    def init(self, batch_id: Any, collector: TridentCollector) -> int:
        return 0

    def aggregate(self, val: int, tuple: TridentTuple, collector: TridentCollector) -> int:
        collector.emit([tuple[0]])
        if tuple[0] == "poison":
            raise ValueError("cannot digest")
        return val + 1

    def complete(self, val: int, collector: TridentCollector) -> None:
        collector.emit([str(val)])


def test_a_tuple_that_an_aggregator_cannot_take_is_put_aside(
    engine: str, topology: TridentTopology, tmp_path: Path
) -> None:
    stream = rows(topology, "a: string", ("x",), ("poison",), ("y",)).shuffle()
    kept = keep(stream.chained_agg().aggregate("a", Refuses(), "n").aggregate(Fold(), "m").chain_end())
    conf: dict[str, Any] = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path), "max_batch_attempts": 2}
    with start(topology, engine, **conf) as running:
        running.process_all_available()
        dead = (running.last_progress or {}).get("numDeadLetters")
    assert sorted(kept.rows) == [("2", 2), ("x", 2), ("y", 2)]
    letters = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "poison" in letters
    assert "cannot digest" in letters
    assert dead == 1


WRONG: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "a class": (lambda s: s.aggregate(Count, "n"), "aggregate takes .*; got <class"),
    "no aggregator": (lambda s: s.partition_aggregate("b", Split(), "n"), "partition_aggregate takes .* expected an object"),
    "an unknown type": (lambda s: s.aggregate("a", type("A", (Aggregator,), {})(), "x"), "the type of field 'x' that A emits"),
    "a chain of both kinds": (
        lambda s: s.chained_agg().aggregate(Count(), "n").partition_aggregate(Count(), "m"),
        "a chain is made of aggregate calls or of partition_aggregate calls, not of both",
    ),
    "an unknown field of min_by": (lambda s: s.min_by("x"), "no field 'x' of stream 's'"),
    "two fields of max_by": (lambda s: s.max_by(cast("str", ["a", "b"])), "max_by takes the name of one field"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_aggregate_is_refused_at_the_call(case: str, topology: TridentTopology) -> None:
    declare, text = WRONG[case]
    with pytest.raises(TopologyError, match=text):
        declare(rows(topology, "a: string, b: int", ("x", 1)))


@pytest.mark.parametrize("n", [-1, 1.5, True, "3"])
def test_a_number_of_tuples_is_a_whole_number(n: Any) -> None:
    with pytest.raises(ValueError, match="n=.* of FirstN: give a whole number of at least 0"):
        FirstN(n)


def test_a_comparator_is_a_function() -> None:
    with pytest.raises(TypeError, match="MinWithComparator takes a function of two values"):
        MinWithComparator("count")  # type: ignore[arg-type]
