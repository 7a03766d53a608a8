"""Random topologies whose results plain Python knows: many of them beside each other in one topology, run as one.

A seed gives one; `Random.compare` names the seed, and `check([seed], "in_process")` runs that one alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow.compute as pc

from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsSpout, RowsState, keep, operation, run_all
from trident import JoinType, Stream, TridentCollector, TridentState, TridentTopology, TridentTuple
from trident.operations import (
    Aggregator,
    Count,
    FilterNull,
    FirstN,
    Function,
    GroupedMultiReducer,
    MapGet,
    MultiReducer,
    ReducerAggregator,
    SnapshotGet,
    Sum,
    arrow_function,
    coalesce,
    col,
    lit,
)
from trident.plan import make_plan
from trident.plan.plan import misplaced_states

Row = tuple[Any, ...]


def small(bound: int) -> Callable[[int | None], bool]:
    return lambda v: v is not None and v < bound


def plus(value: int) -> Callable[[Any], Row]:
    return lambda row: (row[0], None if row[1] is None else row[1] + value)


def up_to(v: int | None) -> Iterator[int]:
    yield from range(min(v or 0, 4))


def grouped_sum(batch: list[Row]) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for key, value in batch:
        sums[key] = sums.get(key, 0) + (value or 0)
    return sums


@arrow_function("twice: bigint")
def doubled(values: Any) -> Any:
    return pc.multiply(values, 2)


@arrow_function("piece: string", flat=True)
def pieces(texts: Any) -> Any:
    return pc.split_pattern(texts, "b")


Sized = operation(  # emits the length of a text that is not empty
    "Sized", Function, execute=lambda row, collector: row[0] and collector.emit([len(row[0])])
)
Latest = operation(  # the greatest value, at least 0
    "Latest", ReducerAggregator, init=lambda: 0, reduce=lambda curr, row: max(curr, row[0] or 0)
)


class Positive(Aggregator[int]):
    """Emits the tuples with a positive value, and at the end how many tuples there were."""

    output_types = ("string", "bigint")

    def init(self, batch_id: Any, collector: TridentCollector) -> int:
        return 0

    def aggregate(self, val: int, tuple: TridentTuple, collector: TridentCollector) -> int:
        if tuple[1] is not None and tuple[1] > 0:
            collector.emit(tuple.values)
        return val + 1

    def complete(self, val: int, collector: TridentCollector) -> None:
        collector.emit(["end", val])


def add(state: list[int], stream_index: int, row: TridentTuple) -> None:
    state[stream_index] += row["v"] or 0


Difference = operation(  # the sum of the first stream less that of the second
    "Difference", MultiReducer,
    init=lambda collector: [0, 0],
    execute=lambda state, index, row, collector: add(state, index, row),
    complete=lambda state, collector: collector.emit([state[0] - state[1]]),
)  # fmt: skip
GroupDifference = operation(  # as `Difference`, key by key
    "GroupDifference", GroupedMultiReducer, None,
    init=lambda collector, group: [0, 0],
    execute=lambda state, index, group, row, collector: add(state, index, row),
    complete=lambda state, group, collector: collector.emit([group[0], state[0] - state[1]]),
)  # fmt: skip


BATCHES = 2
FIELDS = "k: string, v: bigint"

Batches = list[list[Row]]


class Reference:
    """A stream as plain lists of rows, and the same stream declared; steps are applied to both."""

    def __init__(self, stream: Stream, batches: Batches) -> None:
        self.stream, self.batches = stream, batches

    def then(self, stream: Stream, change: Callable[[list[Row]], Iterable[Row]]) -> Reference:
        return Reference(stream, [list(change(batch)) for batch in self.batches])


class Random:
    """A random topology, declared as a part of `topology`: its streams, and what is kept of each of them."""

    def __init__(self, topology: TridentTopology, seed: int, new_state: Callable[[], Any] = MemoryMapState) -> None:
        self.topology, self.seed, self.rng, self.new_state = topology, seed, random.Random(seed), new_state
        self.states, self.queries = 0, 0
        self.maps: list[tuple[TridentState, list[dict[Any, int]]]] = []  # with the content before each batch
        self.totals: list[tuple[TridentState, list[int | None]]] = []
        self.steps: list[str] = []
        self.streams = [self._spout(name) for name in self.rng.choice([["one"], ["one", "two"]])]
        for _ in range(self.rng.randint(2, 7)):
            one, name = self.rng.choice(self.streams), self.rng.choice(list(STEPS))
            self.steps.append(name)
            self.streams.append(STEPS[name](self, one))
        self.kept = [keep(one.stream, self.state_name()) for one in self.streams]

    def _spout(self, name: str) -> Reference:
        keys, values = ["", "a", "bb", "é", None], [None, *range(-4, 9)]
        least = 1 if name == "one" else 0  # some spouts have nothing in a batch
        batches = [
            [(self.rng.choice(keys), self.rng.choice(values)) for _ in range(self.rng.randint(least, 9))]
            for _ in range(BATCHES)
        ]
        spout = RowsSpout(FIELDS, dict(enumerate(batches, 1)))
        stream = self.topology.new_stream(f"r{self.seed}{name}", spout).parallelism_hint(self.few())
        return Reference(stream, batches)

    def few(self) -> int:
        """How many partitions: mostly one, since each is a task of Spark's, which costs more than its rows."""
        return self.rng.choice([1, 1, 1, 1, 2, 3])

    def state_name(self) -> str:
        self.states += 1
        return f"r{self.seed}-{self.states}"

    def compare(self) -> int:
        """Compare what was kept; returns how many batches of streams that were."""
        for number, (kept, one) in enumerate(zip(self.kept, self.streams, strict=True)):
            for txid, batch in enumerate(one.batches, 1):
                found = sorted(kept.batches.get(txid, []), key=str)
                assert found == sorted(batch, key=str), (
                    f"random topology of seed {self.seed} (steps {self.steps}), stream {number}, {one.stream.node_id!r}, "
                    f"batch {txid}"
                )
        return sum(len(one.batches) for one in self.streams)


def check(seeds: Iterable[int], engine: str, **conf: Any) -> list[Random]:
    """Run the random topologies of some seeds as one topology, and compare."""
    topology = TridentTopology("random")
    cases = [Random(topology, seed) for seed in seeds]
    run_all(topology, engine, parallelism=1, **conf)
    for case in cases:
        case.compare()
    return cases


def with_states(first: int, count: int) -> list[int]:
    """Return so many seeds, from `first` on, whose topologies have several states, or queries of one."""
    found: list[int] = []
    while len(found) < count:
        case = Random(TridentTopology("random"), first)
        if len(case.maps) + len(case.totals) > 1 or case.queries:
            found.append(first)
        first += 1
    return found


def check_in_executors(seeds: Iterable[int], new_state: Callable[[], Any], log_dir: str, pending: int) -> int:
    """Run them with every state in executors that can be there, and compare; return how many these are."""
    topology = TridentTopology("random")
    cases = [Random(topology, seed, new_state) for seed in seeds]
    states = {state.state_name: state for case in cases for state, _ in [*case.maps, *case.totals]}
    there = states.keys() - misplaced_states(make_plan(topology.graph()), states.keys()).keys()
    for name in there:
        states[name].placement("executors")
    running = run_all(topology, "spark", parallelism=1, log_dir=log_dir, max_spout_pending=pending)
    assert {name for name, placed in running.placements.items() if placed.where == "executors"} == there
    for case in cases:
        case.compare()
    return len(there)


def _renamed(stream: Stream, key: str, value: str) -> Stream:
    return stream.select(k=col(key), v=col(value))


def filter_(case: Random, one: Reference) -> Reference:
    bound = case.rng.randint(-3, 6)
    return one.then(one.stream.filter("v", small(bound)), lambda batch: [row for row in batch if small(bound)(row[1])])


def where(case: Random, one: Reference) -> Reference:
    bound = case.rng.randint(-3, 6)
    kept = one.stream.where(col("v") > bound).each("v", FilterNull())  # where drops nulls already
    return one.then(kept, lambda batch: [row for row in batch if row[1] is not None and row[1] > bound])


def map_(case: Random, one: Reference) -> Reference:
    value = case.rng.randint(-3, 6)
    return one.then(one.stream.map(plus(value)), lambda batch: [plus(value)(row) for row in batch])


def each_generator(case: Random, one: Reference) -> Reference:
    emitted = one.stream.each("v", up_to, "w: bigint").project("k", "w")
    return one.then(_renamed(emitted, "k", "w"), lambda batch: [(k, w) for k, v in batch for w in up_to(v)])


def each_object(case: Random, one: Reference) -> Reference:
    emitted = one.stream.each("k", Sized(), "size")
    return one.then(_renamed(emitted, "k", "size"), lambda batch: [(k, len(k)) for k, _ in batch if k])


def each_arrow(case: Random, one: Reference) -> Reference:
    emitted = one.stream.each("v", doubled)
    return one.then(_renamed(emitted, "k", "twice"), lambda batch: [(k, v and v * 2) for k, v in batch])


def each_arrow_flat(case: Random, one: Reference) -> Reference:
    emitted = one.stream.each("k", pieces)
    return one.then(
        _renamed(emitted, "piece", "v"), lambda batch: [(p, v) for k, v in batch if k is not None for p in k.split("b")]
    )


def select(case: Random, one: Reference) -> Reference:
    selected = one.stream.select("k", v=coalesce(col("v"), lit(7)) * 3)
    return one.then(selected, lambda batch: [(k, (7 if v is None else v) * 3) for k, v in batch])


def flat_map(case: Random, one: Reference) -> Reference:
    return one.then(
        one.stream.flat_map(lambda row: [row.values] * len(row[0] or "")),
        lambda batch: [row for row in batch for _ in row[0] or ""],
    )


def repartition(case: Random, one: Reference) -> Reference:
    ways = ["shuffle", "global_", "batch_global", "local_or_shuffle", "identity_partition"]
    return one.then(getattr(one.stream, case.rng.choice(ways))(), list)


def partition_by(case: Random, one: Reference) -> Reference:
    return one.then(one.stream.partition_by("k").parallelism_hint(case.few()), list)


def own_partitions(case: Random, one: Reference) -> Reference:
    hint = case.few()
    sent = one.stream.partition(lambda row, count: len(row[0] or "") % count).parallelism_hint(hint)
    counts = sent.partition_aggregate(Count(), "n").each(lambda: "p", "p: string")

    def change(batch: list[Row]) -> list[Row]:
        return [("p", sum(len(k or "") % hint == partition for k, _ in batch)) for partition in range(hint)]

    return one.then(_renamed(counts, "p", "n"), change)


def broadcast(case: Random, one: Reference) -> Reference:
    hint = case.few()
    counts = one.stream.broadcast().parallelism_hint(hint).partition_aggregate("v", Sum(), "s")
    named = counts.each(lambda: "all", "p: string")
    return one.then(_renamed(named, "p", "s"), lambda batch: [("all", sum(v or 0 for _, v in batch))] * hint)


def grouped_partitions(case: Random, one: Reference) -> Reference:
    sent = one.stream.partition_by("k").parallelism_hint(case.few())
    sums = sent.group_by("k").partition_aggregate("v", Sum(), "s").to_stream()
    return one.then(_renamed(sums, "k", "s"), lambda batch: grouped_sum(batch).items())


def grouped(case: Random, one: Reference) -> Reference:
    summed = one.stream.group_by("k").aggregate("v", Sum(), "s").parallelism_hint(case.few())
    return one.then(_renamed(summed, "k", "s"), lambda batch: grouped_sum(batch).items())


def counted(case: Random, one: Reference) -> Reference:
    counts = one.stream.group_by("v").aggregate(Count(), "n").map(lambda row: (str(row[0]), row[1]), FIELDS)
    return one.then(
        counts, lambda batch: [(str(v), sum(row[1] == v for row in batch)) for v in {row[1] for row in batch}]
    )


def chained(case: Random, one: Reference) -> Reference:
    whole = one.stream.chained_agg().aggregate("v", Sum(), "s").aggregate(Count(), "n").chain_end()
    return one.then(
        whole.map(lambda row: (str(row["n"]), row["s"]), FIELDS),
        lambda batch: [(str(len(batch)), sum(v or 0 for _, v in batch))],
    )


def least(case: Random, one: Reference) -> Reference:
    found = one.stream.global_().min_by("v").map(lambda row: ("least", row["v"]), FIELDS)
    return one.then(found, lambda batch: [("least", v) for v in sorted(v for _, v in batch if v is not None)[:1]])


def first(case: Random, one: Reference) -> Reference:
    n = case.rng.randint(0, 3)
    found = one.stream.apply_assembly(FirstN(n, "v", reverse=True)).map(lambda row: ("first", row["v"]), FIELDS)

    def change(batch: list[Row]) -> list[Row]:
        values = [v for _, v in batch]
        numbers = sorted((v for v in values if v is not None), reverse=True)
        return [("first", v) for v in [*numbers, *(v for v in values if v is None)][:n]]

    return one.then(found, change)


def reduced(case: Random, one: Reference) -> Reference:
    latest = one.stream.group_by("k").aggregate("v", Latest(), "most")
    return one.then(
        _renamed(latest, "k", "most"),
        lambda batch: [(k, max([v or 0 for key, v in batch if key == k] + [0])) for k in {k for k, _ in batch}],
    )


def aggregated(case: Random, one: Reference) -> Reference:
    positive = one.stream.aggregate(["k", "v"], Positive(), "p, w")

    def change(batch: list[Row]) -> list[Row]:
        return [*((k, v) for k, v in batch if v is not None and v > 0), ("end", len(batch))]

    return one.then(_renamed(positive, "p", "w"), change)


def _both(one: Reference, two: Reference) -> list[tuple[list[Row], list[Row]]]:
    return list(zip(one.batches, two.batches, strict=True))


def merge(case: Random, one: Reference) -> Reference:
    two = case.rng.choice(case.streams)
    return Reference(case.topology.merge(one.stream, two.stream), [a + b for a, b in _both(one, two)])


def merge_and_count(case: Random, one: Reference) -> Reference:
    two = case.rng.choice(case.streams)
    counts = case.topology.merge(one.stream, two.stream).aggregate(Count(), "n")  # of rows whose fields nothing reads
    counted = counts.map(lambda row: ("n", row[0]), FIELDS)
    return Reference(counted, [[("n", len(a) + len(b))] for a, b in _both(one, two)])


def join(case: Random, one: Reference) -> Reference:
    two, outer = case.rng.choice(case.streams), case.rng.random() < 0.5
    types = JoinType.mixed(JoinType.OUTER, JoinType.INNER) if outer else JoinType.INNER
    sums = one.stream.group_by("k").aggregate("v", Sum(), "s")
    joined = case.topology.join(sums, "k", two.stream, "k", "k, a, b", types)
    added = joined.parallelism_hint(case.few()).select("k", v=coalesce(col("a"), lit(0)) + coalesce(col("b"), lit(0)))

    def change(a: list[Row], b: list[Row]) -> list[Row]:
        totals = grouped_sum(a)
        return [(k, totals.get(k, 0) + (v or 0)) for k, v in b if outer or k in totals]

    return Reference(added, [change(a, b) for a, b in _both(one, two)])


def reduce_two(case: Random, one: Reference) -> Reference:
    two = case.rng.choice(case.streams)
    reduced = case.topology.multi_reduce(one.stream, two.stream, Difference(), "d")
    named = reduced.each(lambda: "d", "k: string")
    sums = [[("d", sum(v or 0 for _, v in a) - sum(v or 0 for _, v in b))] for a, b in _both(one, two)]
    return Reference(_renamed(named, "k", "d"), sums)


def reduce_two_grouped(case: Random, one: Reference) -> Reference:
    two = case.rng.choice(case.streams)
    groups = [one.stream.group_by("k"), two.stream.group_by("k")]
    reduced = case.topology.multi_reduce(*groups, GroupDifference(), FIELDS)

    def change(a: list[Row], b: list[Row]) -> list[Row]:
        plus_, minus = grouped_sum(a), grouped_sum(b)
        return [(k, plus_.get(k, 0) - minus.get(k, 0)) for k in {*plus_, *minus}]

    hinted = reduced.parallelism_hint(case.few())
    return Reference(hinted, [change(a, b) for a, b in _both(one, two)])


def persist(case: Random, one: Reference) -> Reference:
    name = case.state_name()
    grouped = one.stream.group_by("k")
    state = grouped.persistent_aggregate(case.new_state(), "v", Sum(), "s", state_name=name)
    state.parallelism_hint(case.few())
    totals: dict[Any, int] = {}
    befores, batches = [], []
    for batch in one.batches:
        befores.append(dict(totals))
        for k, s in grouped_sum(batch).items():
            totals[k] = totals.get(k, 0) + s
        batches.append([(k, totals[k]) for k in {k for k, _ in batch}])
    case.maps.append((state, befores))
    return Reference(_renamed(state.new_values_stream(), "k", "s"), batches)


def persist_whole(case: Random, one: Reference) -> Reference:
    state = one.stream.persistent_aggregate(case.new_state(), Count(), "n", state_name=case.state_name())
    total, befores, batches = 0, [], []
    before: int | None = None
    for batch in one.batches:
        befores.append(before)
        before = total = total + len(batch)
        batches.append([("n", total)])
    case.totals.append((state, befores))
    return Reference(state.new_values_stream().map(lambda row: ("n", row[0]), FIELDS), batches)


def persist_rows(case: Random, one: Reference) -> Reference:
    state = one.stream.partition_persist(
        RowsState(), ["k", "v"], Keep(), "a: string, b: bigint", state_name=case.state_name()
    )
    return one.then(_renamed(state.new_values_stream(), "a", "b"), list)


def query(case: Random, one: Reference) -> Reference:
    if not case.maps:
        return one.then(one.stream.project("k", "v"), list)
    case.queries += 1
    state, befores = case.rng.choice(case.maps)
    found = one.stream.state_query(state, "k", MapGet(), "before")
    batches = [[(k, before.get(k)) for k, _ in batch] for batch, before in zip(one.batches, befores, strict=True)]
    return Reference(_renamed(found, "k", "before"), batches)


def query_whole(case: Random, one: Reference) -> Reference:
    if not case.totals:
        return one.then(one.stream.project("k", "v"), list)
    case.queries += 1
    state, befores = case.rng.choice(case.totals)
    found = one.stream.state_query(state, SnapshotGet(), "before")
    batches = [[(k, before) for k, _ in batch] for batch, before in zip(one.batches, befores, strict=True)]
    return Reference(_renamed(found, "k", "before"), batches)


STEPS: dict[str, Callable[[Random, Reference], Reference]] = {
    step.__name__: step
    for step in (
        filter_, where, map_, each_generator, each_object, each_arrow, each_arrow_flat, select, flat_map,
        repartition, partition_by, own_partitions, broadcast, grouped_partitions,
        grouped, counted, chained, least, first, reduced, aggregated,
        merge, merge_and_count, join, reduce_two, reduce_two_grouped,
        persist, persist_whole, persist_rows, query, query_whole,
    )
}  # fmt: skip
