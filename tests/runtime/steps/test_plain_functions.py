"""A plain function in `each` gives what the same function gives emission by emission, its failures included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from tests.harness.topology_runs import keep, run_all
from trident import Fields, TopologyError, TridentCollector, TridentTopology, TridentTuple
from trident.graph import EachNode
from trident.operations.adapters import PlainFunction
from trident.planner import Step
from trident.runtime.steps.applying import apply_step
from trident.runtime.steps.failures import Bounds, StepFailed, TupleErrors
from trident.runtime.steps.rows import as_values

INPUTS = Fields("n: int")
WORD, PAIR = Fields("word: string"), Fields("word: string, times: int")
BAD = ValueError("bad")  # in a script: raise it

EMITTED = st.sampled_from(["a", "", None, 7, ("a",), ("a", 1), ("b", None), ("b", "x"), (), ["a"], BAD])
SCRIPTS = st.lists(st.lists(EMITTED | st.just("a") | st.just(("a", 1)), max_size=3), max_size=5)


class OneByOne:
    """The same function, whose emissions a collector takes one by one."""

    def __init__(self, function: PlainFunction) -> None:
        self.function = function

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        emitted = self.function(tuple)
        for values in emitted if self.function.yields else (emitted,):
            collector.emit(as_values(values))


def each(function: Any, rows: int, outputs: Fields, keep: tuple[str, ...], capture: bool) -> Any:
    """What comes of it: the rows, or the failure; and what was put left_out."""
    node = EachNode("e", ("s",), INPUTS.concat(outputs), INPUTS, function, outputs)
    on_error = TupleErrors(capture)
    try:
        table = apply_step(
            Step("e", ("s",), node, keep), pa.table({"n": pa.array(range(rows), pa.int32())}), on_error, repr
        )
    except StepFailed as error:
        failure = error.failure
        return (failure.step, failure.row, failure.cause, failure.retry), None
    left_out = [(one.row, one.cause) for one in on_error.captured]
    return (table.num_rows, table.schema, table.to_pylist()), left_out


def acting(script: list[list[Any]], yields: bool) -> Any:
    def generator(n: int) -> Iterator[Any]:
        for one in script[n]:
            if one is BAD:
                raise BAD
            yield one

    def function(n: int) -> Any:
        if BAD in script[n]:
            raise BAD
        return script[n][0] if script[n] else None

    return generator if yields else function


@given(SCRIPTS, st.booleans(), st.booleans(), st.sampled_from([WORD, PAIR]), st.booleans(), st.integers(0, 3))
def test_a_plain_function_gives_what_it_gives_one_by_one(
    script: list[list[Any]], yields: bool, spread: bool, outputs: Fields, capture: bool, kept: int
) -> None:
    act = acting(script, yields)
    keep = tuple(("n", *outputs.names)[:kept])
    if spread:
        plain = PlainFunction(act, spread=True)
    elif yields:

        def whole_rows(row: TridentTuple) -> Iterator[Any]:
            yield from act(row["n"])

        plain = PlainFunction(whole_rows, spread=False)
    else:
        plain = PlainFunction(lambda row: act(row["n"]), spread=False)
    quick = each(plain, len(script), outputs, keep, capture)
    assert quick == each(OneByOne(plain), len(script), outputs, keep, capture)


def test_what_was_emitted_before_an_exception_is_to_blame_first() -> None:
    plain = PlainFunction(acting([["a"], [("a", 1)], [BAD]], yields=True), spread=True)
    (step, row, cause, retry), _ = each(plain, 3, WORD, ("word",), capture=False)
    assert (step, row, retry) == ("e", "[n=1]", False)
    assert "emitted 2 values ('a', 1) for the 1 output field" in cause


def test_a_tuple_that_raises_leaves_nothing_of_itself_behind() -> None:
    plain = PlainFunction(acting([["a"], ["b", "c", BAD], ["d"]], yields=True), spread=True)
    (count, _, rows), left_out = each(plain, 3, WORD, ("n", "word"), capture=True)
    assert (count, rows) == (2, [{"n": 0, "word": "a"}, {"n": 2, "word": "d"}])
    assert [row for row, _ in left_out] == ["[n=1]"]


@pytest.mark.parametrize("yields", [True, False])
def test_a_function_without_inputs_is_called_once_a_row(yields: bool) -> None:
    def words() -> Iterator[str]:
        yield "a"
        yield "b"

    node = EachNode("e", ("s",), WORD, Fields(), PlainFunction(words if yields else lambda: "a", spread=True), WORD)
    table = apply_step(Step("e", ("s",), node, ("word",)), pa.table({"n": [1, 2]}), TupleErrors(), repr)
    assert table.column("word").to_pylist() == (["a", "b"] * 2 if yields else ["a"] * 2)


def test_no_more_is_taken_of_a_generator_than_the_step_may_give() -> None:
    taken = []

    def endless(n: int) -> Iterator[str]:
        while True:
            taken.append(n)
            yield "a"

    node = EachNode("e", ("s",), INPUTS.concat(WORD), INPUTS, PlainFunction(endless, spread=True), WORD)
    on_error = TupleErrors(bounds=Bounds(per_tuple=1_000_000, per_step=100))
    with pytest.raises(StepFailed, match="the step makes 101 rows or more of the 1 of one partition"):
        apply_step(Step("e", ("s",), node, ("word",)), pa.table({"n": pa.array([0], pa.int32())}), on_error, repr)
    assert len(taken) == 101


@pytest.mark.parametrize("hint", [Iterator, Iterable, list], ids=str)
def test_a_hint_may_leave_open_what_is_in_the_collection(hint: Any) -> None:
    def words(line: str) -> Any:
        yield from line.split()

    words.__annotations__["return"] = hint
    topology = TridentTopology("hints")
    stream = topology.new_stream("s", FixedBatchSpout("line: string", 1, ("the cow",)))
    rows = keep(stream.each("line", words, "word: string").project("word"))
    run_all(topology, "in_process")
    assert rows.rows == [("the",), ("cow",)]
    with pytest.raises(TopologyError, match="word"):
        stream.each("line", words, "word")
