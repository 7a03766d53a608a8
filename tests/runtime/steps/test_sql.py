"""SQL text gives what Spark gives for it, and what cannot be computed is named at the declaration."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import keep, run_all
from trident import Fields, TopologyError, TridentTopology
from trident.operations import Sum, col, sql
from trident.operations.expression_types import type_of
from trident.runtime.steps.vector_steps import evaluate

FIELDS = Fields(
    "a: int, b: bigint, x: double, s: string, t: string, n: string, p: boolean, d: date, m: decimal(10,2), u: timestamp, "
    "l: array<string>, j: string, g: string, w: struct<shop:string,euros:bigint>"
)
NOON = dt.datetime(2026, 3, 1, 12, 30, 59, 5, dt.UTC)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ltrim('  a ')", "a "),
        ("rtrim(' a  ')", " a"),
        ("trim('\\t a ')", "\t a"),
        ("trim(both 'x' from 'xxaxx')", "a"),
        ("trim('xy', 'xyaxy')", "a"),
        ("double('NaN') = double('NaN')", True),
        ("double('NaN') <=> double('NaN')", True),
        ("double('NaN') > 1", True),
        ("double('NaN') between 1 and double('NaN')", True),
        ("string(nullif(double('NaN'), 1D))", "NaN"),
        ("string(greatest(double('NaN'), 1.0D))", "NaN"),
        ("round(1.005D, 2)", 1.01),
        ("round(0.1D, 12)", 0.1),
        ("round(1e22, -18)", 1e22),
        ("round(1e300, 25)", 1e300),
        ("round(-0.3D)", 0.0),
        ("round(cast(99999999.99 as decimal(10,2)))", Decimal(100000000)),
        ("ceil(cast(99999999.99 as decimal(10,2)))", Decimal(100000000)),
        ("cast(99999999.99 as decimal(10,2)) % 1", Decimal("0.99")),
        ("-(1234567890123456789012345678901234567.5)", Decimal("-1234567890123456789012345678901234567.5")),
        ("cast(5 as decimal(34,24)) % cast(3 as decimal(34,24))", Decimal(2)),
        ("cast(timestamp '2026-03-01 12:30:59.5' as string)", "2026-03-01 12:30:59.5"),
        ("cast(1e10 as string)", "1.0E10"),
        ("cast(float('0.1') as decimal(20,10))", Decimal("0.1000000015")),
        ("cast(0.1D as decimal(20,10))", Decimal("0.1000000000")),
        ("replace('abc', '', 'q')", "abc"),
        ("replace('abc', 'b')", "ac"),
        ("regexp_replace('ab', '(a)(b)', '$2\\\\$$1')", "b$a"),
        ("0.1 + 0.2 = 0.3", True),
        ("1 / 3.0", Decimal("0.333333")),
        ("upper('straße')", "STRASSE"),
        ("if(1 = 1, 0, 6 / 0)", 0.0),
        ("1 = 2 and 6 / 0 > 1", False),
        ("coalesce(1, 6 % 0)", 1),
        ("coalesce(null, 'a')", "a"),
        ("coalesce('a', null, null)", "a"),
        ("coalesce(null, cast(1 as int)) + 1", 2),
        ("2 - +5", -3),
    ],
)
def test_a_text_means_what_spark_means(text: str, value: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"_": [1]})
    (found,) = evaluate(sql(text), batch).to_pylist()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("datetrunc('day', u)", "there is no function datetrunc here; did you mean date_trunc?"),
        ("uper(s)", "there is no function uper here; did you mean upper?"),
        ("soundex(s)", "there is no function soundex here; there are abs, cast"),
        ("a >", "'a >' is not an SQL expression"),
        ("a in (select 1)", "IN takes a list of values"),
        ("s like t", "t has to be a plain value"),
        ("substring(s, 0)", "substring begins to count at 1, got 0"),
        ("to_timestamp('2026-03-01 10:30Z')", "Spark does not read '2026-03-01 10:30Z' as a timestamp"),
        ("to_timestamp('yesterday')", "'yesterday' is not a timestamp, which is written as"),
        ("try_cast(n as timestamp)", "there is no function try_cast here"),
        ("u at time zone 'Europe/Berlin'", "Spark has no AT TIME ZONE: write from_utc_timestamp"),
        ("convert_timezone('UTC', 'Asia/Tokyo', u)", "takes the zone to convert to and a timestamp"),
        ("from_utc_timestamp(u, 'Berlin')", "the zone 'Berlin', which is unknown: give a name like 'Europe/Berlin'"),
        ("date_trunc('fortnight', u)", "fortnight is not one of year"),
        ("sum(a)", "there is no function sum here"),
        ("a as b", "names its column 'b'; give it to select as it is"),
        ("s rlike '['", "is not a regular expression"),
        ("get_json_object(j, '$.*')", "is not a plain path"),
        ("isnull(a, b)", "isnull does not take 2 arguments"),
        ("ceil(d, 1)", "there is no expression for decimals 1 at character 9, of CEIL(d, 1)"),
        ("floor(x, 1)", "there is no expression for decimals 1 at character 10"),
        ("regexp_replace(s, 'a', 'b', 2)", "there is no expression for position 2 at character 29"),
        ("a between symmetric 1 and 2", "there is no expression for symmetric True"),
        ("try_cast(a as int)", "there is no function try_cast here"),
        ("s like 'x' escape '/'", "there is no expression for s LIKE 'x' ESCAPE '/'"),
        ("if(p, a)", "takes more arguments"),
        ("abs(distinct a)", "there is no expression for DISTINCT a"),
        ("sum(a) over ()", "there is no function sum here"),
        ("'it''s'", "two texts in one at character 1: a quote in a text is"),
        (r"'a\qb'", r"Spark reads \q in the text at character 1 in its own way"),
        ("extract(second from u)", "SECOND is not one of year, quarter"),
        ("trunc(d, 'day')", "day is not one of year"),
        ("s rlike '(?=a)b'", "'(?=a)b' is not a regular expression that means the same in RE2, from character 1 on"),
        ("s rlike 'a++'", "is not a regular expression that means the same in RE2, from character 1 on"),
        ("s rlike '[a-z&&[^b]]'", "is not a regular expression that means the same in RE2, from character 1 on"),
        ("s rlike 5", "a regular expression is a text, not 5"),
        ("regexp_replace(s, 'x*', '-')", "matches an empty text, which cannot be replaced"),
        ("regexp_replace(s, 'a', '$1')", "the replacement '$1' has an unknown group"),
        ("regexp_replace(s, 'a', 5)", "a replacement is a text, not 5"),
        (r"s like 'a\\b'", "a backslash must stand before %, _ or another backslash"),
        ("round(x, 400)", "round takes -18 to 38 digits, got 400"),
        ("`soundex`(s)", "there is no function soundex here"),
        ("a; b", "there is no expression for a; b"),
        ("x > -1e400", "1e400 is beyond the range of a double"),
        ("+'5'", "there is no expression for the + without a number at character 1: leave it out"),
        ("p and -+s > 1", "there is no expression for the + without a number at character 8"),
    ],
)
def test_what_cannot_be_computed_is_named(text: str, told: str) -> None:
    with pytest.raises(TopologyError) as raised:
        sql(text)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        (lambda: sql("-'5'"), "- takes a number, but lit('5') is string"),
        (lambda: sql("-true"), "- takes a number, but lit(True) is boolean"),
        (lambda: sql("-(date '2024-02-29')"), "- takes a number, but lit(datetime.date(2024, 2, 29)) is date"),
        (lambda: sql("s + 1"), "+ takes two numbers, but col('s') is string"),
        (lambda: sql("hour(d)"), "a date has no hour"),
        (lambda: sql("year(s)"), "date_part takes a date or a timestamp"),
        (lambda: sql("abs(s)"), "abs takes a number"),
        (lambda: sql("to_timestamp(a)"), "there is no cast to timestamp"),
        (lambda: sql("a in ('x')"), "isin compares two numbers or two plain values of the same type"),
        (lambda: sql("w.shops"), "there is no field 'shops'; there are shop, euros"),
        (lambda: sql("a.b"), "field takes a struct"),
        (lambda: sql("concat(s, a)"), "concat takes strings"),
        (lambda: col("m") * col("m") * col("m") * col("m"), "would give 43 digits, more than 38"),
        (lambda: sql("greatest(p, a)"), "greatest takes values of one type"),
    ],
)
def test_mistyped_text_is_refused_where_it_is_declared(expression: Any, told: str) -> None:
    with pytest.raises(TopologyError) as raised:
        type_of(expression(), FIELDS, "s")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: col("a").isin(), "isin takes at least one value, and no null"),
        (lambda: col("a").isin(None), "isin takes at least one value, and no null"),
        (lambda: col("a").date_part("century"), "date_part takes one of year"),
        (lambda: col("s").json("user"), "json takes a path such as"),
        (lambda: col("s").regexp_extract("a(b)", 2), "has no group 2"),
        (lambda: col("s").rlike("(?<=a)b"), "is not a regular expression: .*invalid perl operator"),
        (lambda: col("s").rlike("\ud800"), "is not a regular expression"),
        (lambda: col("s").regexp_replace("(a)", r"\2"), "is not a regular expression: Invalid replacement string"),
        (lambda: col("s").substring(None, 2), "substring takes whole numbers"),  # type: ignore[arg-type]
        (lambda: col("s").cast(int), "is not a Spark type, which is written as a text"),  # type: ignore[arg-type]
        (lambda: col("x").round(2.5), "round takes a whole number"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(call: Any, told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        call()


@pytest.mark.parametrize(
    "text",
    [
        "p = p is null", "p <> a in (1)", "p = p is true", "p = x between 1 and 2", "p <=> p = p", "p = p <=> p",
        "p = a < b", "p between p and p = p", "p = s like 'a'", "not p = p is null", "p is not distinct from p = p",
        "case when p then p end = p is null", "if(p, p = a > b, p)", "p and p = p is null or p", "p is null in (true)",
    ],
)  # fmt: skip
def test_comparisons_that_spark_reads_in_another_order_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="in another order: put parentheses there"):
        sql(text)


@pytest.mark.parametrize("text", ["cast('1_0' as decimal(2,0))", "cast('abc' as decimal(10,1))"])
def test_a_literal_that_is_no_decimal_to_spark_fails_its_tuple(text: str) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    assert type_of(sql(text), FIELDS, "s").startswith("decimal(")
    with pytest.raises(pa.ArrowInvalid):
        evaluate(sql(text), batch)


def test_comparisons_that_have_one_order_are_read() -> None:
    for text in (
        "a < b = p", "p = p = p", "a = b or s like 'a' or a < b", "x between 1 and 2 and p = p", "p <=> p", "p = (p is null)",
        "p = p and p is null", "not a in (1) and a = b", "case when p then p = p end is null",
    ):  # fmt: skip
        assert type_of(sql(text), FIELDS, "s") == "boolean"


def test_streams_take_texts(engine: str) -> None:
    rows = [("oslo", 2, NOON), ("rome", 9, NOON), ("oslo", 5, NOON.replace(day=2)), ("oslo", 1, NOON)]
    topology = TridentTopology("t")
    orders = topology.new_stream("orders", FixedBatchSpout("shop: string, euros: bigint, at: timestamp", 4, *rows))
    large = orders.where("euros > 1 and shop in ('oslo')")
    seen = keep(large.select("shop", "euros * 2 AS double", "year(at) as `the year`"))
    days = large.group_by("shop", "date_trunc('day', at) AS day").persistent_aggregate(
        MemoryMapState(), "euros", Sum(), "total"
    )
    running = run_all(topology, engine)
    assert sorted(seen.rows) == [("oslo", 4, 2026), ("oslo", 10, 2026)]
    midnight = NOON.replace(hour=0, minute=0, second=0, microsecond=0)
    assert running.state(days).multi_get([("oslo", midnight), ("oslo", midnight.replace(day=2))]) == [2, 5]


def test_a_text_is_the_expression_that_it_says() -> None:
    assert repr(sql("a > 1 and s in ('x')")) == repr((col("a") > 1) & col("s").isin("x"))
    assert repr(sql("explode(l)")) == repr(col("l").explode())
