"""Partitions of a batch, on both engines: who is where, how many there are, and what becomes of errors there."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from spouts import FixedBatchSpout
from tests.harness.topology_runs import keep, operation, run_all, touch
from trident import BatchFailedError, Stream, TopologyError, TridentTopology, TridentTuple
from trident.arrow import table_of
from trident.engine.fragment_runs import TaskOutput, merge_outputs
from trident.engine.routing import RowFrame, apply_exchange
from trident.operations import Aggregator, Count, Equals, Filter, FilterNull, FirstN, Negate, Sum
from trident.plan import make_plan
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import Failure, TupleErrors
from trident.steps.key_columns import partition_of
from trident.steps.rows import StepRun


def numbers(topology: TridentTopology, count: int, parts: int = 2) -> Stream:
    batch = [(n, f"w{n % 5}") for n in range(count)]
    return topology.new_stream("s", FixedBatchSpout("n: int, w: string", max(1, count), *batch)).parallelism_hint(parts)


Here = operation(  # what a partition has, as one text
    "Here", Aggregator, "string",
    init=lambda batch_id, collector: [],
    aggregate=lambda val, row, collector: [*val, ",".join(map(str, row))],
    complete=lambda val, collector: collector.emit([" ".join(val)]),
)  # fmt: skip


def here(stream: Stream, fields: str, partitions: int) -> Stream:
    """Return, partition by partition, the values of some fields."""
    return stream.partition_aggregate(fields, Here(), "here").parallelism_hint(partitions)


@pytest.mark.parametrize("turn", [list, reversed])
def test_rows_are_in_the_order_of_the_places_that_they_come_from(turn: Any, topology: TridentTopology) -> None:
    keep(numbers(topology, 1).partition_by("w"))
    (exchange,) = make_plan(topology.graph()).exchanges.values()
    fields = exchange.inputs[0]
    frames = [
        RowFrame(exchange.node.id, 0, 0, ("s", part, at), table_of(fields, [(12 * part + at, "w")]))
        for part in range(2)
        for at in range(12)
    ]
    run = StepRun(TransactionAttempt(1, 1), TupleErrors(), lambda name: None)
    rows = apply_exchange(exchange, turn(frames), run)
    assert rows.column("n").to_pylist() == list(range(24))


@pytest.mark.sample(1)
def test_where_tuples_go(engine: str, topology: TridentTopology) -> None:
    stream = numbers(topology, 8).partition(lambda row, count: np.int64(row["n"] // 4)).parallelism_hint(2)
    repartitioned: dict[str, tuple[Stream, int]] = {
        "shuffle": (stream.shuffle(), 3),
        "local_or_shuffle": (stream.local_or_shuffle(), 3),
        "partition_by": (stream.partition_by("w"), 3),
        "broadcast": (stream.broadcast(), 3),
        "global": (stream.global_(), 3),
        "batch_global": (stream.batch_global(), 1),
        "identity": (stream.identity_partition(), 2),
        "twice": (stream.shuffle().partition_by("w"), 3),
        "to one or two": (stream.partition(lambda row, count: (0, np.int32(count - 1)) if row["n"] < 2 else 1), 3),
        "to none": (stream.partition(lambda row, count: [] if row["n"] else 2), 3),
    }
    kept = {
        case: keep(here(one, "n", hint), f"kept{at}") for at, (case, (one, hint)) in enumerate(repartitioned.items())
    }
    run_all(topology, engine)
    found = {case: [text for (text,) in state.rows] for case, state in kept.items()}
    hashed: list[list[str]] = [[], [], []]
    for n in range(8):
        hashed[partition_of((f"w{n % 5}",), 3)].append(str(n))
    by_hash = [" ".join(part) for part in hashed]
    everything = "0 1 2 3 4 5 6 7"
    assert found == {
        "shuffle": ["0 3 6", "1 4 7", "2 5"],
        "local_or_shuffle": ["0 3 6", "1 4 7", "2 5"],
        "partition_by": by_hash,
        "broadcast": [everything] * 3,
        "global": [everything],
        "batch_global": [everything],
        "identity": ["0 1 2 3", "4 5 6 7"],
        "twice": found["twice"],  # in an order of its own
        "to one or two": ["0 1", "2 3 4 5 6 7", "0 1"],
        "to none": ["", "", "0"],
    }
    assert [sorted(text.split()) for text in found["twice"]] == [sorted(part) for part in hashed]


def test_the_largest_hint_up_to_the_next_repartition_counts(engine: str, topology: TridentTopology) -> None:
    stream = numbers(topology, 4).shuffle().filter(lambda row: True).parallelism_hint(4).map(lambda row: row)
    four = keep(stream.parallelism_hint(2).partition_aggregate(Count(), "count"))
    two = keep(stream.shuffle().parallelism_hint(2).partition_aggregate(Count(), "count"), "two")
    run_all(topology, engine)
    assert [len(four.rows), len(two.rows)] == [4, 2]
    assert [sum(n for (n,) in kept.rows) for kept in (four, two)] == [4, 4]


def test_only_the_columns_that_are_read_travel(topology: TridentTopology) -> None:
    keep(numbers(topology, 2).shuffle().partition_by("w").project("n").shuffle().aggregate(Count(), "count"))
    plan = make_plan(topology.graph())
    arriving = [str(exchange.inputs[0]) for exchange in plan.exchanges.values()]
    assert arriving == ["n: int, w: string", "n: int, w: string", "n: int", "count: bigint"]


def test_a_replay_sees_the_same_tuples_in_their_order(engine: str, topology: TridentTopology, tmp_path: Path) -> None:
    seen = str(tmp_path)

    def fails_once(text: str) -> str:
        path = Path(seen, f"seen-{zlib.crc32(text.encode())}")
        with path.open("a") as file:
            file.write("x")
        if text.startswith("0") and touch(seen) == 0:
            raise RuntimeError("once")
        return text

    kept = keep(
        here(numbers(topology, 30, 4).shuffle(), "n, w", 3).each("here", fails_once, "checked").project("checked")
    )
    running = run_all(topology, engine, max_batch_attempts=2)
    assert running.status["failures"] == 1
    assert len(kept.rows) == 3
    first = next(text for (text,) in kept.rows if text.startswith("0"))
    assert Path(seen, f"seen-{zlib.crc32(first.encode())}").read_text() == "xx"


class Bad(Filter):
    """Behind an exchange."""

    def is_keep(self, tuple: TridentTuple) -> bool:
        raise LookupError("no such thing")


FAILING: dict[str, tuple[Callable[[Stream], Stream], int, str]] = {
    "a function that is out of range": (
        lambda s: s.partition(lambda row, count: count).parallelism_hint(2), 1,
        r"in step 's/partition' on tuple \[n=0, w='w0'\]: the function of partition returned 2 for 2 partitions; it must",
    ),
    "a function that says no number": (
        lambda s: s.partition(lambda row, count: "1"), 1, "the function of partition returned '1'",
    ),
    "a function that raises": (
        lambda s: s.partition(lambda row, count: 1 // row["n"]), 1,
        r"in step 's/partition' on tuple \[n=0, w='w0'\]: ZeroDivisionError",
    ),
    "a step behind an exchange": (
        lambda s: s.shuffle().filter("w", Bad()), 1, r"in step 's/shuffle/Bad' on tuple \[w='w\d'\]: LookupError",
    ),
    "a step behind two exchanges": (
        lambda s: s.shuffle().global_().filter("w", Bad()), 1, r"in step 's/shuffle/global/Bad' on tuple \[w='w\d'\]",
    ),
}  # fmt: skip


@pytest.mark.sample(1)
def test_what_fails_names_step_and_tuple(engine: str) -> None:
    for declare, attempts, text in FAILING.values():
        topology = TridentTopology("t")
        keep(declare(numbers(topology, 4)))
        with pytest.raises(BatchFailedError, match=text) as caught:
            run_all(topology, engine, max_batch_attempts=2)
        assert (caught.value.txid, caught.value.attempts) == (1, attempts)


def test_in_process_nothing_runs_behind_a_part_that_failed(topology: TridentTopology) -> None:
    seen: list[int] = []
    fails = numbers(topology, 4).filter("n", lambda n: 1 // (3 - n) > -1)
    passes = topology.new_stream("other", FixedBatchSpout("n: int, w: string", 1, (9, "x")))
    topology.merge(passes, fails).aggregate(Count(), "count").peek(lambda row: seen.append(row["count"]))
    with pytest.raises(BatchFailedError, match="in step 's/filter'"):
        run_all(topology, "in_process", max_batch_attempts=1)
    assert seen == []


def test_of_several_failures_the_one_that_came_first_in_the_plan_is_named() -> None:
    def failed(step: str, level: int) -> TaskOutput:
        return TaskOutput(failure=Failure(step, None, "cause"), level=level)

    outputs = [failed("behind", 2), TaskOutput(rows={"spout": 3}), failed("first", 1), failed("second", 1)]
    merged = merge_outputs(outputs)
    assert merged.failure is not None
    assert (merged.failure.step, merged.tuples) == ("first", 0)


def test_a_tuple_is_put_aside_behind_an_exchange(engine: str, topology: TridentTopology, tmp_path: Path) -> None:
    stream = numbers(topology, 6).partition(lambda row, count: 6 // row["n"] % count).parallelism_hint(3)
    kept = keep(stream.filter("n", lambda n: 6 // (n - 1) > -99).project("n"))
    run_all(topology, engine, on_poison="dead_letter", dead_letter_dir=str(tmp_path), max_batch_attempts=1)
    letters = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(kept.rows) == [(2,), (3,), (4,), (5,)]
    assert [step for step in ("s/partition", "s/partition/filter") if f'"{step}"' in letters] == [
        "s/partition",
        "s/partition/filter",
    ]


class Shouted:
    def apply(self, input: Stream) -> Stream:
        return input.each("w", lambda w: str(w).upper(), "loud: string").project("loud")


def test_an_assembly_is_steps_under_a_name(engine: str, topology: TridentTopology) -> None:
    stream = numbers(topology, 3)
    kept = keep(stream.apply_assembly(Shouted()))
    plain = keep(stream.apply_assembly(lambda one: one.project("n")), "plain")
    run_all(topology, engine)
    assert (kept.rows, plain.rows) == ([("W0",), ("W1",), ("W2",)], [(0,), (1,), (2,)])


def test_a_grouped_stream_stays_grouped_over_each(engine: str, topology: TridentTopology) -> None:
    grouped = numbers(topology, 10).group_by("w").each("n", lambda n: n * 10, "m: int").each("n", lambda n: n > 1)
    assert grouped.get_group_fields().names == ("w",)
    kept = keep(grouped.aggregate("m", Sum(), "sum"))
    run_all(topology, engine)
    assert sorted(kept.rows) == [("w0", 50), ("w1", 60), ("w2", 90), ("w3", 110), ("w4", 130)]


class Lives(Filter):
    """Counts prepare and cleanup."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare(self, conf: Any, context: Any) -> None:
        self.calls.append("prepare")

    def cleanup(self) -> None:
        self.calls.append("cleanup")

    def is_keep(self, tuple: TridentTuple) -> bool:
        return bool(tuple[0] == 1)


def test_equals_and_negate(topology: TridentTopology) -> None:
    batch: Sequence[Sequence[Any]] = [(1, 1), (1, 2), (None, None), (None, 1), (2, 2)]
    stream = topology.new_stream("s", FixedBatchSpout("a: int, b: bigint", 9, *batch))
    equal, other = keep(stream.filter(["a", "b"], Equals())), keep(stream.filter(["a", "b"], Negate(Equals())), "other")
    lives = Lives()
    filled = keep(stream.each("a", Negate(FilterNull())).each("b", Negate(lives)), "filled")
    run_all(topology, "in_process")
    assert equal.rows == [(1, 1), (None, None), (2, 2)]
    assert other.rows == [(1, 2), (None, 1)]
    assert filled.rows == [(None, None)]
    assert lives.calls == ["prepare", "cleanup"]


@pytest.mark.parametrize("inner", [Equals, len, None])
def test_negate_takes_a_filter(inner: Any) -> None:
    with pytest.raises(TypeError, match="Negate takes a filter, an object with is_keep; got"):
        Negate(inner)


def itself(stream: Stream) -> Stream:
    return stream.apply_assembly(itself)


WRONG: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "an unknown field": (lambda s: s.partition_by("x"), "no field 'x' of stream 's'"),
    "no field": (lambda s: s.partition_by(), "partition_by needs at least one field"),
    "an array": (
        lambda s: s.each("w", lambda w: [w], "l: array<string>").partition_by("l"),
        "cannot partition by 'l', which is array<string>",
    ),
    "no function": (lambda s: s.partition(cast("Any", 3)), "partition takes a function of a tuple .*; got 3"),
    "a class": (lambda s: s.partition(cast("Any", FirstN)), "partition takes a function"),
    "a stream without fields": (lambda s: s.project([]).shuffle(), "has no fields, so there is nothing to redistribute"),
    "an assembly that returns nothing": (lambda s: s.apply_assembly(lambda one: None), "returned None; it must return"),
    "an assembly of another topology": (
        lambda s: s.apply_assembly(lambda one: numbers(TridentTopology("u"), 1)), "must return a stream of this topology",
    ),
    "an assembly of itself": (lambda s: s.apply_assembly(itself), "applies itself without end"),
    "what is not an assembly": (lambda s: s.apply_assembly(3), "3 is not an assembly"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused(case: str, topology: TridentTopology) -> None:
    declare, text = WRONG[case]
    with pytest.raises(TopologyError, match=text):
        declare(numbers(topology, 1, 1))


def test_an_identity_partition_cannot_change_the_number(topology: TridentTopology) -> None:
    keep(numbers(topology, 4, 2).identity_partition().parallelism_hint(3).partition_aggregate(Count(), "n2"))
    with pytest.raises(TopologyError, match="there are 2 before, and parallelism_hint asks for 3 after"):
        topology.start(engine="in_process")
