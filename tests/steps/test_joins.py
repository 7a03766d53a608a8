"""Merges, joins and reducers of several streams, on both engines."""

import itertools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, keep, run_all, touch
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
from trident.arrow import table_of
from trident.errors import InexactPairingError
from trident.graph import JoinNode
from trident.operations import Count, GroupedMultiReducer, MultiReducer, Sum
from trident.spout.interfaces import SpoutType
from trident.steps.in_batch import join

INNER, OUTER = JoinType.INNER, JoinType.OUTER
COMPACT, PRESERVE = JoinOutFieldsMode.COMPACT, JoinOutFieldsMode.PRESERVE


def rows(topology: TridentTopology, name: str, fields: str, *batch: Sequence[Any]) -> Stream:
    return topology.new_stream(name, FixedBatchSpout(fields, max(1, len(batch)), *batch))


def by_text(found: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return sorted(found, key=str)


@pytest.mark.parametrize("names", [None, "place, n, product"])
def test_a_merge_of_the_same_names_in_another_order_mixes_no_fields(
    engine: str, topology: TridentTopology, names: str | None
) -> None:
    first = rows(topology, "first", "shop: string, n: int, item: string", ("oslo", 1, "nut"))
    second = rows(topology, "second", "item: string, shop: string, n: int", ("bolt", "rome", 2), ("nut", "oslo", 3))
    merged = topology.merge(first, second) if names is None else topology.merge(names, first, second)
    shop, n, item = merged.fields.names
    all_rows, cut = keep(merged), keep(merged.project(item), "cut")
    sums = keep(merged.group_by(shop).aggregate(n, Sum(), "sum"), "sums")
    total = merged.group_by(shop, item).persistent_aggregate(MemoryMapState(), n, Sum(), "total")
    done = run_all(topology, engine)
    assert by_text(all_rows.rows) == [("oslo", 1, "nut"), ("oslo", 3, "nut"), ("rome", 2, "bolt")]
    assert by_text(cut.rows) == [("bolt",), ("nut",), ("nut",)]
    assert by_text(sums.rows) == [("oslo", 4), ("rome", 2)]
    assert done.state(total).multi_get([("oslo", "nut"), ("rome", "bolt"), ("nut", "oslo")]) == [4, 2, None]


def test_a_join_of_three_streams_by_two_fields(engine: str, topology: TridentTopology) -> None:
    streams = [
        rows(topology, "a", "k: string, n: int, a: string", ("x", 1, "a1"), ("x", 1, "a2"), ("y", 1, "a3")),
        rows(topology, "b", "n: int, k: string, b: string", (1, "x", "b1"), (2, "x", "b2")),
        rows(topology, "c", "c: string, k: string, n: int", ("c1", "x", 1), ("c2", "x", 1), ("c3", "y", 1)),
    ]
    keys = ["k, n", ["k", "n"], ["k", "n"]]
    inner = keep(topology.join(streams, keys, "k, n, a, b, c"))
    mixed = keep(topology.join(streams, keys, "k, n, a, b, c", JoinType.mixed(INNER, OUTER, INNER)), "mixed")
    run_all(topology, engine)
    expected = [("x", 1, a, "b1", c) for a in ("a1", "a2") for c in ("c1", "c2")]
    assert by_text(inner.rows) == by_text(expected)
    assert by_text(mixed.rows) == by_text([*expected, ("y", 1, "a3", None, "c3")])


KEYS: dict[str, tuple[str, list[Any], int]] = {
    "floats": ("double", [0.0, -0.0, math.nan, math.nan, None], 2 * 2 + 2 * 2 + 1),
    "unicode": ("string", ["é", "e\u0301", "日本", ""], 4),
    "binary": ("binary", [b"\0", b"", b"\0"], 5),
    "decimals": ("decimal(9,2)", [Decimal("1.50"), Decimal("0.00"), Decimal("1.5")], 5),
    "booleans": ("boolean", [True, False, None], 3),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_of_every_type_match(case: str, topology: TridentTopology) -> None:
    type_, keys, pairs = KEYS[case]
    stream = rows(topology, "s", f"k: {type_}, n: int", *((key, n) for n, key in enumerate(keys)))
    kept = keep(topology.join(stream, "k", stream, "k", "k, n, m").parallelism_hint(4))
    run_all(topology, "in_process")
    assert len(kept.rows) == pairs
    assert {(n, m) for _, n, m in kept.rows} >= {(n, n) for n in range(len(keys))}


SIDES = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3)), max_size=5)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(SIDES, min_size=2, max_size=4), st.data(), st.booleans(), st.booleans())
def test_a_join_is_what_its_definition_says(
    sides: list[list[tuple[Any, int]]], data: st.DataObject, preserve: bool, nulls: bool
) -> None:
    outer = tuple(data.draw(st.booleans()) for _ in sides)
    inputs = tuple(Fields(f"k{at}: string, v{at}: bigint") for at in range(len(sides)))
    keys = tuple(Fields(f"k{at}: string") for at in range(len(sides)))
    out = ", ".join(f"k{at}: string, v{at}: bigint" for at in range(len(sides)))
    if not preserve:
        out = "k: string, " + ", ".join(f"v{at}: bigint" for at in range(len(sides)))
    node = JoinNode("j", (), Fields(out), inputs, keys, outer, preserve, nulls)
    found = join(node, [table_of(fields, side) for fields, side in zip(inputs, sides, strict=True)])
    rows_found = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    assert by_text(rows_found) == by_text(list(_joined(sides, outer, preserve, nulls)))


def _joined(sides: list[list[tuple[Any, int]]], outer: tuple[bool, ...], preserve: bool, nulls: bool) -> Any:
    for key in {k for side in sides for k, _ in side if k is not None or nulls}:
        yield from _combined(key, [[row for row in side if row[0] == key] for side in sides], outer, preserve)
    for at, side in enumerate(sides):
        for row in side:
            if row[0] is None and not nulls:
                yield from _combined(None, [[row] if at == own else [] for own in range(len(sides))], outer, preserve)


def _combined(key: Any, sides: list[list[tuple[Any, int]]], outer: tuple[bool, ...], preserve: bool) -> Any:
    missing: list[Any] = [(None, None)]
    filled = [side or (missing if may else []) for side, may in zip(sides, outer, strict=True)]
    for chosen in itertools.product(*filled):
        yield tuple(itertools.chain(*chosen)) if preserve else (key, *(value for _, value in chosen))


class Together(MultiReducer[list[str]]):
    """Says how many tuples came from where; emits at every turn."""

    output_types = ("string",)

    def init(self, collector: TridentCollector) -> list[str]:
        collector.emit(["begin"])
        return []

    def execute(self, state: list[str], stream_index: int, input: TridentTuple, collector: TridentCollector) -> None:
        state.append(f"{stream_index}{input[0]}")

    def complete(self, state: list[str], collector: TridentCollector) -> None:
        collector.emit([" ".join(sorted(state))])


class Balance(GroupedMultiReducer[int]):
    """What came in minus what went out, by key."""

    output_types = ("string", "bigint")

    def init(self, collector: TridentCollector, group: TridentTuple) -> int:
        return 0

    def execute(
        self, state: int, stream_index: int, group: TridentTuple, input: TridentTuple, collector: TridentCollector
    ) -> int:
        return state + int(input["amount"]) * (1 if stream_index == 0 else -1)

    def complete(self, state: int, group: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([group[0], state])


def test_several_streams_are_reduced_together(engine: str, topology: TridentTopology) -> None:
    first = topology.new_stream("a", RowsSpout("x: string, n: int", {1: [("a", 1), ("b", 2)], 2: [("c", 3)]}))
    second = topology.new_stream("b", RowsSpout("y: string", {1: [("z",)]}))
    whole = keep(topology.multi_reduce(first, second, Together(), "text"))
    some = keep(topology.multi_reduce(["n"], first, "y", second, Together(), "text"), "some")
    lists = keep(topology.multi_reduce([["n"], ["y"]], [first, second], Together(), "text"), "lists")
    none = first.filter(lambda row: False)
    empty = keep(topology.multi_reduce([none, none], Together(), "text"), "empty")
    run_all(topology, engine)
    assert whole.batches == {1: [("begin",), ("0a 0b 1z",)], 2: [("begin",), ("0c",)]}
    assert some.batches == lists.batches == {1: [("begin",), ("01 02 1z",)], 2: [("begin",), ("03",)]}
    assert empty.batches == {1: [("begin",), ("",)], 2: [("begin",), ("",)]}


class Picky(MultiReducer[int]):
    """Counts by returning a new value; emits each tuple, then raises on `poison`."""

    output_types = ("string",)

    def init(self, collector: TridentCollector) -> int:
        return 0

    def execute(self, state: int, stream_index: int, input: TridentTuple, collector: TridentCollector) -> int:
        collector.emit([input[0]])
        if input[0] == "poison":
            raise ValueError("cannot digest")
        return state + 1

    def complete(self, state: int, collector: TridentCollector) -> None:
        collector.emit([str(state)])


def test_a_tuple_that_a_reducer_cannot_take_is_put_aside(topology: TridentTopology, tmp_path: Path) -> None:
    stream = rows(topology, "s", "x: string", ("a",), ("poison",), ("b",))
    kept = keep(topology.multi_reduce(stream, stream, Picky(), "text"))
    run_all(topology, "in_process", on_poison="dead_letter", dead_letter_dir=str(tmp_path), max_batch_attempts=1)
    assert kept.rows == [("a",), ("b",), ("a",), ("b",), ("4",)]
    letters = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert letters.count('"ValueError: cannot digest"') == 2


class Fails(Together):
    def __init__(self, folder: Path, where: str) -> None:
        self.folder, self.where = str(folder), where

    def _fail(self, where: str) -> None:
        if where == self.where and touch(self.folder) == 0:
            raise RuntimeError(f"once in {where}")

    def init(self, collector: TridentCollector) -> list[str]:
        self._fail("init")
        return super().init(collector)

    def execute(self, state: list[str], stream_index: int, input: TridentTuple, collector: TridentCollector) -> None:
        super().execute(state, stream_index, input, collector)
        self._fail("execute")

    def complete(self, state: list[str], collector: TridentCollector) -> None:
        self._fail("complete")
        super().complete(state, collector)


@pytest.mark.parametrize("where", ["init", "execute", "complete"])
def test_a_reducer_that_fails_once_is_run_again(where: str, topology: TridentTopology, tmp_path: Path) -> None:
    stream = rows(topology, "s", "x: string", ("a",), ("b",))
    kept = keep(topology.multi_reduce(stream, Fails(tmp_path, where), "text"))
    running = run_all(topology, "in_process", max_batch_attempts=2)
    assert kept.rows == [("begin",), ("0a 0b",)]
    assert running.status["lastFailure"] == f"RuntimeError: once in {where}"


def other() -> Stream:
    return rows(TridentTopology("other"), "s", "a: string, n: int")


WRONG: dict[str, tuple[Callable[[TridentTopology, Stream, Stream], Any], str]] = {
    "merge of an empty list": (lambda t, s, u: t.merge([]), "topology 't': merge needs at least one stream"),
    "merge with another topology": (
        lambda t, s, u: t.merge(s, other()), r"topology 't': merge got stream 's' of another topology \('other'\)",
    ),
    "merge to another type": (lambda t, s, u: t.merge("x: int, n", s, s), "merge gives string for field 'x', which is "),
    "a join of one stream": (lambda t, s, u: t.join(s, "a", "x, y"), "topology 't': join takes .* of two streams or more"),
    "a join without output fields": (lambda t, s, u: t.join(s, "a", u, "b"), "join takes"),
    "a join with another topology": (lambda t, s, u: t.join(s, "a", other(), "a", "x, y, z"), "of another topology"),
    "no reducer": (lambda t, s, u: t.multi_reduce(s, u, Count(), "x"), "multi_reduce takes"),
    "too few arguments": (lambda t, s, u: t.multi_reduce(s, Together()), "multi_reduce takes"),
    "input fields of one stream only": (
        lambda t, s, u: t.multi_reduce("a", s, u, Together(), "x"), "got input fields for 1 streams, but 2 streams",
    ),
    "no input fields": (
        lambda t, s, u: t.multi_reduce([[], ["b"]], [s, u], Together(), "x"), "at least one input field of each stream",
    ),
    "groups and no groups": (lambda t, s, u: t.multi_reduce(s, u.group_by("b"), Together(), "x"), "all grouped"),
    "a reducer of groups without groups": (
        lambda t, s, u: t.multi_reduce(s, u, Balance(), "x, y"), "not grouped takes a MultiReducer, got a Balance",
    ),
    "groups without a reducer of groups": (
        lambda t, s, u: t.multi_reduce(s.group_by("a"), u.group_by("b"), Together(), "x"), "takes a GroupedMultiReducer",
    ),
    "groups by other types": (
        lambda t, s, u: t.multi_reduce(s.group_by("n"), u.group_by("n"), Balance(), "x, y"), "multi_reduce: the key of stream",
    ),
    "output fields that a reducer does not have": (
        lambda t, s, u: t.multi_reduce(s, u, Together(), "x, y"), "Together emits 1 values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_come_together_is_refused_at_the_call(case: str, topology: TridentTopology) -> None:
    declare, text = WRONG[case]
    first, second = rows(topology, "s", "a: string, n: int"), rows(topology, "u", "b: string, n: bigint")
    with pytest.raises(TopologyError, match=text):
        declare(topology, first, second)


def test_a_state_must_be_exact_with_every_stream_of_a_join(topology: TridentTopology) -> None:
    weak = RowsSpout("k: string, v: int", {1: [("a", 2)]}, SpoutType.NON_TRANSACTIONAL)
    streams = [rows(topology, "a", "k: string, v: int", ("a", 1)), topology.new_stream("b", weak)]
    joined = topology.join(streams, ["k", "k"], "k, a, b")
    joined.group_by("k").persistent_aggregate(MemoryMapState(), "a", Sum(), "sum")
    with pytest.raises(InexactPairingError, match="'b'"):
        run_all(topology, "in_process")
