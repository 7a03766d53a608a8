"""Each function and operator of SQL text gives what Spark gives for it, over awkward values; what differs is in the docs."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlglot

from tests.harness.spark_values import FAILS, spark_values
from tests.harness.sql_grammar import FIELDS, LEFT_OUT, RULES, flat_texts, moment_texts, rows, texts
from tests.test_docs import DOCS
from trident import Fields, TopologyError
from trident.arrow import arrow_type, schema_of
from trident.operations import sql
from trident.operations.expression_types import type_of
from trident.operations.sql import RULES as OF_NODES
from trident.operations.sql import SQL_FUNCTIONS
from trident.runtime.steps.vector_steps import evaluate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_each_function_and_operator_gives_what_spark_gives(spark: SparkSession) -> None:
    assert different(spark, seed=35, each=1, count=25) == {}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(20))
def test_many_texts_give_what_spark_gives(spark: SparkSession, seed: int) -> None:
    assert different(spark, seed, each=3, count=40) == {}


@pytest.mark.spark
@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20))])
def test_operators_without_parentheses_are_taken_in_the_order_of_spark(spark: SparkSession, seed: int) -> None:
    assert different_texts(spark, flat_texts(seed, 150), 0.3, rows(seed, 25)) == {}


def different(spark: SparkSession, seed: int, each: int, count: int) -> dict[str, tuple[dict[str, Any], Any, Any]]:
    """Return for each text that differs the first row where it does, our value and Spark's."""
    drawn = list(dict.fromkeys(texts(seed, each)))
    return different_texts(spark, drawn, 0.95, rows(seed, count))


def different_texts(
    spark: SparkSession, drawn: list[str], read: float, given: list[dict[str, Any]]
) -> dict[str, tuple[dict[str, Any], Any, Any]]:
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
    """Return how the table shows a value."""
    assert values is not None
    (value,) = values
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
