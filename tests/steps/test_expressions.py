"""Expressions give what the obvious Python gives, and what is mistyped is refused at the call."""

import datetime
import json
import operator
import pickle
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import counted, keep, run_all, start
from trident import BatchFailedError, Fields, Stream, TopologyError, TridentTopology
from trident.arrow import arrow_type, schema_of
from trident.operations import Count, Expression, coalesce, col, if_else, lit
from trident.operations.expression_types import type_of
from trident.plan import make_plan
from trident.steps.vector_steps import evaluate

FIELDS = Fields(
    "a: int, b: bigint, x: double, y: float, s: string, t: string, p: boolean, q: boolean, d: date, m: decimal(10,2), "
    "u: timestamp, v: timestamp_ntz, r: binary, l: array<string>"
)
DAY = datetime.date(2026, 3, 1)
NOON = datetime.datetime(2026, 3, 1, 12, 30, 0, 5)
ROWS: list[dict[str, Any]] = [
    {"a": 7, "b": 40, "x": 2.5, "y": 0.5, "s": "Hello wörld", "t": "wör", "p": True, "q": False, "d": DAY,
     "m": Decimal("1.25"), "u": NOON.replace(tzinfo=datetime.UTC), "v": NOON, "r": b"a", "l": ["a"]},
    {"a": -3, "b": -3, "x": -3.0, "y": 1.0, "s": " 🐍 a  b ", "t": "", "p": False, "q": False, "d": DAY,
     "m": Decimal("-2.00"), "u": NOON.replace(tzinfo=datetime.UTC), "v": NOON, "r": b"", "l": []},
    {"a": 0, "b": 1, "x": 0.0, "y": -1.0, "s": "", "t": "x", "p": True, "q": True, "d": DAY,
     "m": Decimal("0.00"), "u": NOON.replace(tzinfo=datetime.UTC), "v": NOON, "r": b"b", "l": ["b", "c"]},
    dict.fromkeys(FIELDS.names),
]  # fmt: skip


def computed(expression: Expression, rows: list[dict[str, Any]] = ROWS) -> list[Any]:
    """Compute over rows; the type is that which was told when it was declared."""
    batch = pa.RecordBatch.from_pylist(rows, schema=schema_of(FIELDS))
    array = evaluate(expression, batch)
    assert array.type == arrow_type(type_of(expression, FIELDS, "s"))
    values: list[Any] = array.to_pylist()
    return values


def nulls(function: Callable[..., Any]) -> Callable[..., Any]:
    """As the function, and None where any argument is None."""
    return lambda *values: None if None in values else function(*values)


def either(left: bool | None, right: bool | None) -> bool | None:
    return True if left or right else None if None in (left, right) else False


def both(left: bool | None, right: bool | None) -> bool | None:
    return False if False in (left, right) else None if None in (left, right) else True


OBVIOUS: list[tuple[Expression, str, Callable[..., Any], str]] = [
    (col("a") + col("b"), "a b", nulls(operator.add), "bigint"),
    (col("a") + 2, "a", nulls(lambda a: a + 2), "bigint"),
    (2 + col("x"), "x", nulls(lambda x: 2 + x), "double"),
    (col("a") - col("x"), "a x", nulls(operator.sub), "double"),
    (1 - col("a"), "a", nulls(lambda a: 1 - a), "bigint"),
    (col("a") * col("y"), "a y", nulls(operator.mul), "double"),
    (3 * col("a"), "a", nulls(lambda a: 3 * a), "bigint"),
    (col("a") / col("b"), "a b", nulls(operator.truediv), "double"),
    (1 / (col("y") + 3), "y", nulls(lambda y: 1 / (y + 3)), "double"),
    (-col("a"), "a", nulls(operator.neg), "bigint"),
    (-col("y"), "y", nulls(operator.neg), "double"),
    (col("a") + col("b") * 2, "a b", nulls(lambda a, b: a + b * 2), "bigint"),
    (col("a") == col("b"), "a b", nulls(operator.eq), "boolean"),
    (col("s") != "", "s", nulls(lambda s: s != ""), "boolean"),
    (col("a") < col("x"), "a x", nulls(operator.lt), "boolean"),
    (col("s") <= col("t"), "s t", nulls(operator.le), "boolean"),
    (col("m") > Decimal("0.5"), "m", nulls(lambda m: m > Decimal("0.5")), "boolean"),
    (col("d") >= datetime.date(2026, 1, 1), "d", nulls(lambda d: d >= datetime.date(2026, 1, 1)), "boolean"),
    (col("v") == NOON, "v", nulls(lambda v: v == NOON), "boolean"),
    (col("r") == b"a", "r", nulls(lambda r: r == b"a"), "boolean"),
    (col("p") == col("q"), "p q", nulls(operator.eq), "boolean"),
    (col("p") & col("q"), "p q", both, "boolean"),
    (col("p") & (col("a") > 3), "p a", lambda p, a: both(p, None if a is None else a > 3), "boolean"),
    (True & col("q"), "q", lambda q: both(True, q), "boolean"),
    (col("p") | col("q"), "p q", either, "boolean"),
    (True | col("q"), "q", lambda q: True, "boolean"),
    (~col("p"), "p", nulls(operator.not_), "boolean"),
    (col("s").is_null(), "s", lambda s: s is None, "boolean"),
    (col("s").is_not_null(), "s", lambda s: s is not None, "boolean"),
    (col("s").upper(), "s", nulls(str.upper), "string"),
    (col("s").lower(), "s", nulls(str.lower), "string"),
    (col("s").trim(), "s", nulls(str.strip), "string"),
    (col("s").length(), "s", nulls(len), "bigint"),
    (col("s").contains("l"), "s", nulls(lambda s: "l" in s), "boolean"),
    (col("s").starts_with("Hel"), "s", nulls(lambda s: s.startswith("Hel")), "boolean"),
    (col("s").ends_with(" "), "s", nulls(lambda s: s.endswith(" ")), "boolean"),
    (col("s").substring(1), "s", nulls(lambda s: s[1:]), "string"),
    (col("s").substring(1, 3), "s", nulls(lambda s: s[1:4]), "string"),
    (col("s").substring(0, 0), "s", nulls(lambda s: ""), "string"),
    (col("s").substring(1, sys.maxsize), "s", nulls(lambda s: s[1:]), "string"),
    (col("s").split(" "), "s", nulls(lambda s: s.split(" ")), "array<string>"),
    (coalesce(col("a"), col("b"), 5), "a b", lambda a, b: a if a is not None else b if b is not None else 5, "bigint"),
    (coalesce(col("a"), col("a")), "a", lambda a: a, "int"),
    (coalesce(None, col("s"), None), "s", lambda s: s, "string"),
    (if_else(col("p"), col("y"), col("y")), "y", lambda y: y, "float"),
    (coalesce(col("s"), "none"), "s", lambda s: "none" if s is None else s, "string"),
    (if_else(col("p"), col("a"), col("x")), "p a x", lambda p, a, x: a if p else x, "double"),
    (if_else(col("a") > 1, "big", "small"), "a", lambda a: "big" if a is not None and a > 1 else "small", "string"),
    (col("a").cast("string"), "a", nulls(str), "string"),
    (col("a").cast("double"), "a", nulls(float), "double"),
    (col("x").cast("float"), "x", nulls(float), "float"),
    (col("a").cast("boolean"), "a", nulls(bool), "boolean"),
    (col("p").cast("int"), "p", nulls(int), "int"),
    (col("a").cast("decimal(10,2)"), "a", nulls(Decimal), "decimal(10,2)"),
    (col("m").cast("string"), "m", nulls(str), "string"),
    (col("u").cast("date"), "u", nulls(lambda u: u.date()), "date"),
    (col("d").cast("timestamp_ntz"), "d", nulls(lambda d: datetime.datetime(d.year, d.month, d.day)), "timestamp_ntz"),
    (col("d").cast("string"), "d", nulls(str), "string"),
    (col("a").cast("string").cast("bigint"), "a", nulls(int), "bigint"),
    (lit(None).cast("string"), "a", lambda a: None, "string"),
    (lit(5), "a", lambda a: 5, "bigint"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "names", "obvious", "type_"), OBVIOUS, ids=lambda one: None if callable(one) else repr(one)[:60]
)
def test_an_expression_is_the_obvious_python(
    expression: Expression, names: str, obvious: Callable[..., Any], type_: str
) -> None:
    assert type_of(expression, FIELDS, "s") == type_
    assert computed(expression) == [obvious(*(row[name] for name in names.split())) for row in ROWS]
    assert computed(pickle.loads(pickle.dumps(expression))) == computed(expression)


NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-9, 9))


@given(NUMBERS, NUMBERS, st.sampled_from([operator.add, operator.sub, operator.mul]))
def test_whole_numbers_are_exact_or_fail(left: int, right: int, apply: Callable[[Any, Any], Any]) -> None:
    row = {**ROWS[3], "b": left}
    wanted = apply(left, right)
    if -(1 << 63) <= wanted < 1 << 63:
        assert computed(apply(col("b"), right), [row]) == [wanted]
    else:
        with pytest.raises(pa.ArrowInvalid, match="overflow"):
            computed(apply(col("b"), right), [row])


@given(st.text(st.characters(max_codepoint=0x24F, exclude_characters="ßŉǰİıſ")), st.integers(0, 5), st.integers(0, 5))
def test_texts_are_those_of_python(text: str, start: int, length: int) -> None:
    row = {**ROWS[3], "s": text}
    assert computed(col("s").substring(start, length), [row]) == [text[start : start + length]]
    assert computed(col("s").length(), [row]) == [len(text)]
    assert computed(col("s").split("a"), [row]) == [text.split("a")]
    assert computed(col("s").contains("a"), [row]) == ["a" in text]


@pytest.mark.parametrize(
    ("expression", "row", "error"),
    [
        (col("a") / col("b"), {"a": 1, "b": 0}, "divide by zero"),
        (col("x") / 0, {"x": 1.5}, "divide by zero"),
        (col("s").cast("decimal(38,0)"), {"s": "9" * 41}, "a number has more digits than decimal"),
        (col("s").cast("decimal(38,38)"), {"s": "99999"}, "a number has more digits than decimal"),
        (col("s").cast("decimal(9,0)"), {"s": "0." + "1" * 39}, "a number has more digits than decimal"),
        (-col("b"), {"b": -(1 << 63)}, "overflow"),
        (col("x").cast("int"), {"x": 1.5}, "truncated"),
        (col("b").cast("int"), {"b": 1 << 40}, "not in range"),
        (col("b").cast("double"), {"b": (1 << 53) + 1}, "Casting 9007199254740993 from int64 to double would lose"),
        (col("s").cast("int"), {"s": "many"}, "Failed to parse"),
    ],
    ids=repr,
)
def test_what_has_no_result_fails(expression: Expression, row: dict[str, Any], error: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=error):
        computed(expression, [{**ROWS[3], **row}])


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ((col("a") + 1) * -col("b"), "((col('a') + lit(1)) * -col('b'))"),
        (~(col("s") == "x") & col("p"), "(~(col('s') == lit('x')) & col('p'))"),
        (col("s").upper().substring(1), "col('s').upper().substring(1)"),
        (col("s").cast("long"), "col('s').cast('bigint')"),
        (coalesce(col("a"), 1), "coalesce(col('a'), lit(1))"),
        (if_else(col("p"), 1, 2), "if_else(col('p'), lit(1), lit(2))"),
        (col("s").is_null() | col("s").contains("x"), "(col('s').is_null() | col('s').contains('x'))"),
    ],
)
def test_an_expression_shows_how_it_was_written(expression: Expression, shown: str) -> None:
    assert repr(expression) == shown


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="has no truth value before there are tuples; write &, | and ~ for and, or"):
        bool(col("a") > 1)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: col("s") + 1, "cannot compute (col('s') + lit(1)): + takes two numbers, but "
     "col('s') is string and lit(1) is bigint"),
    (lambda: col("m") * col("d"), "* takes two numbers, but col('m') is decimal(10,2)"),
    (lambda: -col("s"), "- takes a number, but col('s') is string"),
    (lambda: col("s") == 1, "== compares two numbers or two plain values of the same type, but col('s') is string"),
    (lambda: col("l") == col("l"), "== compares two numbers or two plain values of the same type"),
    (lambda: col("u") > NOON, "but col('u') is timestamp and"),
    (lambda: col("a") == lit(None), "but col('a') is int and lit(None) is void"),
    (lambda: col("p") & col("a"), "& takes booleans, each comparison in parentheses, but col('p') is boolean and "),
    (lambda: ~col("a"), "~ takes booleans"),
    (lambda: col("a").upper(), "upper takes a string, but col('a') is int"),
    (lambda: col("r").length(), "length takes a string, but col('r') is binary"),
    (lambda: col("l").cast("int"), "there is no cast to int, but col('l') is array<string>"),
    (lambda: col("p").cast("timestamp"), "there is no cast to timestamp, but col('p') is boolean"),
    (lambda: col("s").cast("number"), "'number' is not a Spark type"),
    (lambda: coalesce(col("a"), "x"), "coalesce takes values of one type, or numbers"),
    (lambda: coalesce(), "coalesce needs at least one value"),
    (lambda: if_else(col("a"), 1, 2), "if_else takes a boolean first, but col('a') is int"),
    (lambda: if_else(col("p"), 1, "x"), "if_else takes values of one type, or numbers"),
    (lambda: col("l").explode().upper(), "explode must be a whole column of select, not a part of another"),
    (lambda: col("nowhere") + 1, "no field 'nowhere' of stream 'in'; it has ['a', 'b'"),
    (lambda: lit([1]), "a literal is a plain value such as a text or a number, not list"),
    (lambda: lit(pd.NaT), "a literal is a plain value such as a text or a number, not NaTType"),
    (lambda: lit(1 << 63), "a whole number has 64 bits"),
    (lambda: lit(Decimal("1e50")), "a decimal has at most 38 digits"),
    (lambda: lit(None), "one=lit(None) has no type; give it one with cast"),
    (lambda: col("a").explode(), "explode takes an array, but col('a') is int"),
    (lambda: col(1), "col takes the name of a field, got 1"),  # type: ignore[arg-type]
    (lambda: col("s").contains(1), "contains takes a text, got 1"),  # type: ignore[arg-type]
    (lambda: col("s").split(""), "split needs a separator of at least one character"),
    (lambda: col("s").substring(-1), "substring takes whole numbers of at least 0, got -1"),
]  # fmt: skip


def stream_of(topology: TridentTopology, fields: Fields = FIELDS, *rows: Any) -> Stream:
    return topology.new_stream("in", FixedBatchSpout(str(fields), 10, *rows))


@pytest.mark.parametrize(("make", "error"), WRONG, ids=[error[:50] for _, error in WRONG])
def test_a_mistyped_expression_is_refused_at_the_call(make: Callable[[], Any], error: str) -> None:
    stream = stream_of(TridentTopology("t"))
    with pytest.raises(TopologyError) as raised:
        stream.select(one=make())
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.select(), "select needs at least one field"),
        (lambda s: s.select("a", a=col("b")), "select names field 'a' twice"),
        (lambda s: s.select("a", "*"), "select names field 'a' twice"),
        (lambda s: s.select(col("a")), "got col('a') without one"),
        (lambda s: s.select(n=1), "n=1 is not an expression; use col(name) for a field, lit(value) for a value"),
        (lambda s: s.select("z"), "no field 'z' of stream 'in'"),
        (lambda s: s.select(x=col("l").explode(), y=col("l").explode()), "select explodes one column, not ['x', 'y']"),
        (lambda s: s.where(col("a")), "where takes a boolean, but col('a') is int"),
        (lambda s: s.where(lambda row: True), "where takes an expression such as col('n') > 3"),
        (lambda s: s.where(col("z") > 1), "no field 'z' of stream 'in'"),
        (lambda s: s.each("a", col("a") > 1), "got the expression (col('a') > lit(1)); select and where take"),
    ],
)
def test_a_wrong_call_is_refused(call: Callable[[Stream], Any], error: str) -> None:
    with pytest.raises(TopologyError) as raised:
        call(stream_of(TridentTopology("t")))
    assert error in str(raised.value)


def test_select_and_where_work_on_batches(engine: str) -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology, Fields("line: string, n: int"), ("a b", 1), (None, 2), ("c", 3), ("", 4))
    computed_ = keep(stream.select("n", up=col("line").upper(), more=col("n") + 1).where(col("more") < 5), "select")
    words = keep(stream.select("n", word=col("line").split(" ").explode()).filter(col("word") != ""), "words")
    kept = keep(stream.select("*", one=lit(1)).where(col("line").is_not_null()), "all")
    run_all(topology, engine)
    assert computed_.rows == [(1, "A B", 2), (2, None, 3), (3, "C", 4)]
    assert words.rows == [(1, "a"), (1, "b"), (3, "c")]
    assert kept.rows == [("a b", 1, 1), ("c", 3, 1), ("", 4, 1)]


def test_only_the_columns_that_are_read_live() -> None:
    topology = TridentTopology("t")
    fields = Fields("line: string, n: int, other: string")
    stream = stream_of(topology, fields, ("a b", 1, "x"), ("b", 5, "y"))
    selected = stream.project("line", "n", "other").select("other", "n", word=col("line").split(" ").explode())
    selected.where(col("n") < 3).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    steps = {step.id: step.keep for step in make_plan(topology.graph()).fragments["in"].steps}
    assert steps["in/project"] == ("line", "n")
    assert steps["in/project/select"] == ("n", "word")
    with start(topology, "in_process") as running:
        running.process_all_available()
        assert running.state("count").multi_get(["a", "b"]) == [1, 1]


def test_an_exploded_column_that_nobody_reads_still_says_how_many_rows_there_are() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology, Fields("line: string, n: int"), ("a b d", 1), ("c", 2), (None, 3))
    counts = stream.select("n", word=col("line").split(" ").explode()).persistent_aggregate(
        MemoryMapState(), Count(), "count"
    )
    with start(topology, "in_process") as running:
        running.process_all_available()
        assert running.state(counts).get() == 4


def test_counting_a_select_that_nobody_reads() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology, Fields("line: string, n: int"), ("a b", 1), ("c", 2))
    counts = stream.select(one=lit(1), n=col("n") + 1).persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, "in_process") as running:
        running.process_all_available()
        assert running.state(counts).get() == 2


def test_a_tuple_without_a_result_is_named_and_goes_to_the_dead_letters(tmp_path: Path) -> None:
    rows = [("1", 1), ("x", 2), ("3", 3), ("4", 0)]
    topology = TridentTopology("t")
    stream = stream_of(topology, Fields("s: string, n: int"), *rows)
    kept = keep(stream.select("n", value=col("s").cast("int")).where(6 / col("n") > 1))
    with pytest.raises(BatchFailedError) as raised, start(topology, "in_process", max_batch_attempts=1) as running:
        running.process_all_available()
    assert "in/select" in str(raised.value)
    assert "[n=2, s='x']" in str(raised.value)

    run_all(topology, "in_process", max_batch_attempts=1, on_poison="dead_letter", dead_letter_dir=str(tmp_path))
    assert kept.rows == [(1, 1), (3, 3)]
    letters = [json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text().splitlines()]
    assert counted((one["step"], one["tuple"]) for one in letters) == {
        ("in/select", "[n=2, s='x']"): 1,
        ("in/select/where", "[n=0]"): 1,
    }
