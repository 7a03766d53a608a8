"""SQL text gives what Spark gives for it, over awkward values too; what cannot be computed is named at the call."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlglot

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.sql_grammar import FIELDS, LEFT_OUT, RULES, flat_texts, moment_texts, rows, texts
from tests.harness.topology_runs import keep, run_all
from tests.test_docs import DOCS
from trident import Fields, TopologyError, TridentTopology
from trident.arrow import arrow_type, schema_of
from trident.operations import Sum, col, sql
from trident.operations.expression_types import type_of
from trident.operations.sql import RULES as OF_NODES
from trident.operations.sql import SQL_FUNCTIONS
from trident.steps.vector_steps import evaluate

TEXT_FIELDS = Fields(
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
        ("cast(float(1e-45) as string)", "1.4E-45"),
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
        ("cast(-2147483648 as float)", -2147483648.0),
        ("-3.4028234663852886e38F", -3.4028234663852886e38),
        ("cast(1152921504606846976 + 0 as double)", 2.0**60),
        ("(date '2024-02-29')::string", "2024-02-29"),
        ("9007199254740992 in (9007199254740993, 1.0D)", True),
        ("cast(12345678901234567890.5 as decimal(38,1)) in (12345678901234567890D)", True),
        ("100 in (1e2D, 7)", True),
        ("cast(true as bigint)", 1),
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
        ("x > 1e3-7", "1e3-7 is not a number; write blanks around + and -"),
        ("x > 1e", "1e is not a number"),
        ("x > .1.5D", "0.1.5 is not a number"),
        ("x > -1e400", "1e400 is beyond the range of a double"),
        ("x > -3.4028235e38F", "3.4028235e+38 is beyond the range of a float"),
        (
            "timestamp '2024-02-29 10:00'::string",
            "Spark casts the timestamp, not its text: put parentheses around it at",
        ),
        ("-- none", "'-- none' is not an SQL expression: No expression was parsed"),
        ("+'5'", "there is no expression for the + without a number at character 1: leave it out"),
        ("substring(s, 3, null)", "SUBSTRING(s, 3, NULL) is always null, because its length is"),
        ("left(s, null)", "LEFT(s, NULL) is always null, because its expression is"),
        ("regexp_replace(s, 'a', )", "an argument is missing beside the comma at character 22"),
        ("date_part(null, d)", "None is not one of year, quarter"),
        ("coalesce(, s)", "an argument is missing beside the comma at character 10"),
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
        type_of(expression(), TEXT_FIELDS, "s")
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
    assert type_of(sql(text), TEXT_FIELDS, "s").startswith("decimal(")
    with pytest.raises(pa.ArrowInvalid):
        evaluate(sql(text), batch)


def test_comparisons_that_have_one_order_are_read() -> None:
    for text in (
        "a < b = p", "p = p = p", "a = b or s like 'a' or a < b", "x between 1 and 2 and p = p", "p <=> p", "p = (p is null)",
        "p = p and p is null", "not a in (1) and a = b", "case when p then p = p end is null",
    ):  # fmt: skip
        assert type_of(sql(text), TEXT_FIELDS, "s") == "boolean"


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


if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FAILS = "fails"


def spark_values(spark: SparkSession, fields: Fields, table: pa.Table, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return for each text its value for each row, `FAILS` where Spark raises; in ANSI mode and in UTC."""
    with _settings(spark, _SETTINGS):
        columns = [_tried(spark, text).alias(f"c{at}") for at, text in enumerate(texts)]
        ddl = ", ".join(f"`{name}` {type_}" for name, type_ in zip(fields.names, fields.types, strict=True))
        found = spark.createDataFrame(table, ddl).select(*columns).toArrow()
    values = [column.to_pylist() for column in found.columns]
    return {
        text: [FAILS if one is None else one["v"] for one in column] for text, column in zip(texts, values, strict=True)
    }


_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.alwaysInlineCommonExpr": "true",  # else an operand of BETWEEN is computed outside of what may fail
}


def _tried(spark: SparkSession, text: str) -> Column:
    """Return a struct with the value of a text, null where it raises."""
    from pyspark.sql.classic.column import Column

    jvm: Any = spark._jvm
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    parsed = jvm.org.apache.spark.sql.functions.expr(
        f"named_struct('v', case when 1 = 1 then {text} end)"
    )  # may be null
    return Column(bridge.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(bridge.expression(parsed))))


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    former = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in former.items():
            spark.conf.unset(name) if before is None else spark.conf.set(name, before)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [35, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20))])
def test_each_function_and_operator_gives_what_spark_gives(spark: SparkSession, seed: int) -> None:
    texts_of_seed = list(dict.fromkeys(texts(seed, 1 if seed == 35 else 3)))
    assert different_texts(spark, texts_of_seed, 0.95, rows(seed, 25 if seed == 35 else 40)) == {}


@pytest.mark.spark
@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20))])
def test_operators_without_parentheses_are_taken_in_the_order_of_spark(spark: SparkSession, seed: int) -> None:
    assert different_texts(spark, flat_texts(seed, 150), 0.3, rows(seed, 25)) == {}


def different_texts(
    spark: SparkSession, drawn: list[str], read: float, given: list[dict[str, Any]]
) -> dict[str, tuple[dict[str, Any], Any, Any]]:
    """Return for each text that differs the first row where it does, our value and Spark's."""
    table = pa.Table.from_pylist(given, schema=schema_of(FIELDS))
    ours = {text: found for text in drawn if (found := our_values(text, FIELDS, table)) is not None}
    assert len(ours) > read * len(drawn), "few are refused when they are declared"
    theirs = spark_values(spark, FIELDS, table, list(ours))
    return {
        text: next(
            (row, one, other)
            for row, one, other in zip(given, ours[text], theirs[text], strict=True)
            if not same(one, other)
        )
        for text in ours
        if not all(map(same, ours[text], theirs[text]))
    }


def our_values(text: str, fields: Fields, table: pa.Table) -> list[Any] | None:
    """Return the value for each row, `FAILS` if there is none; None if the text is refused."""
    try:
        expression = sql(text)
        type_ = arrow_type(type_of(expression, fields, "s"))
    except TopologyError:
        return None
    (batch,) = table.combine_chunks().to_batches()
    values: list[Any] = []
    for rows_ in [batch, *(batch.slice(at, 1) for at in range(batch.num_rows))]:
        try:
            array = evaluate(expression, rows_)
        except pa.ArrowInvalid:
            values.append(FAILS)
            continue
        assert array.type == type_, text
        values += array.to_pylist()
        if len(array) == batch.num_rows:
            return values
    return values[1:]


def same(one: Any, other: Any) -> bool:
    """Whether two values are one: NaN is itself, and a boolean is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str) and _POWER.fullmatch(one) and _POWER.fullmatch(other):
        return math.isclose(float(one), float(other), rel_tol=1e-7)  # Java before 19 writes some with a digit too many
    return bool(one == other) or (one != one and other != other)


_POWER = re.compile(r"-?\d\.\d+E-?\d+")


CASTS = [*(f"cast(s as {type_})" for type_ in ("timestamp", "timestamp_ntz", "date")), "to_timestamp(s)", "to_date(s)"]
READ = [
    "2024-01-05",
    "2024-01-05 10:30",
    "2024-01-05T10:30:59.5",
    "2024-01-05 10:30:59.12+02:00",
    " 1582-10-15 00:00:00Z\n",
]


@pytest.mark.spark
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20))])
def test_a_text_is_the_moment_that_spark_reads_or_fails(spark: SparkSession, seed: int) -> None:
    table = pa.table({"s": [*READ, *moment_texts(seed, 400), None]})
    theirs = spark_values(spark, Fields("s: string"), table, CASTS)
    for text in CASTS:
        ours = our_values(text, Fields("s: string"), table)
        assert ours is not None
        pairs = zip(table["s"].to_pylist(), ours, theirs[text], strict=True)
        assert [each for each in pairs if each[1] != FAILS and not same(*each[1:])] == []
        if "timestamp" in text and "ntz" not in text:
            assert FAILS not in ours[: len(READ)]


PATTERNS = {  # texts that they read, and texts that only look so
    "yyyy-MM-dd": (["2024-01-05"], ["24-01-05", "2024-1-5", "2024-01-05 ", "2024-02-30", "2024-01-5"]),
    "d.M.yyyy": (["5.1.2024", "05.01.2024"], ["5.1.24", "5.1.2024x"]),
    "yyyyMMdd": (["20240105"], ["2024112", "240105", "202401050"]),
    "dd MMM yyyy": (["05 Jan 2024", "05 JAN 2024"], ["5 Jan 2024", "5 June 2024", "05 January 2024", "05  Jan 2024"]),
    "yyyy-MM-dd HH:mm:ss": (
        ["2024-01-05 06:07:08"],
        ["2024-01-05 6:07:08", "2024-01-05  06:07:08", "2024-01-05T06:07:08"],
    ),
    "yyyy-MM-dd h:mm a": (["2024-01-05 6:07 PM", "2024-01-05 12:07 am"], ["2024-01-05 13:07 PM", "2024-01-05 6:7 PM"]),
    "MM/dd/yyyy": (["01/05/2024"], ["1/05/2024", "01/5/2024", "\t01/05/2024"]),
}


@pytest.mark.spark
def test_a_pattern_reads_what_spark_reads(spark: SparkSession) -> None:
    fields, table = (
        Fields("s: string"),
        pa.table({"s": [*(one for texts in PATTERNS.values() for one in chain(*texts))]}),
    )
    calls = [f"{call}(s, '{pattern}')" for pattern in PATTERNS for call in ("to_date", "to_timestamp")]
    theirs = spark_values(spark, fields, table, calls)
    assert {call: our_values(call, fields, table) for call in calls} == theirs


def test_each_function_and_operator_has_a_generator() -> None:
    written = " ".join(rule for _, rule in RULES)
    named = {name for name in SQL_FUNCTIONS if f"{name}(" in written}
    assert {*SQL_FUNCTIONS} - named == {*LEFT_OUT}
    nodes = {type(node).__name__ for text in texts(6, 2) for node in sqlglot.parse_one(text, read="spark").walk()}
    assert {*OF_NODES} - nodes == {"Explode", "StrToTime"}


DIFFERENCES = re.findall(
    r"^\| `([^`]+)` \| `?([^`|]+?)`? \| `?([^`|]+?)`? \|",
    (DOCS / "streams.md").read_text().partition("### Where Spark")[2],
    re.M,
)


@pytest.mark.spark
def test_what_differs_on_purpose_is_in_the_table(spark: SparkSession) -> None:
    table = pa.table({"one": pa.array([1], pa.int32())})
    fields = Fields("one: int")
    found = spark_values(spark, fields, table, [text for text, _, _ in DIFFERENCES])
    ours = [(text, shown(our_values(text, fields, table)), shown(found[text])) for text, _, _ in DIFFERENCES]
    assert ours == DIFFERENCES


def shown(values: list[Any] | None) -> str:
    assert values is not None
    (value,) = values
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
