"""What Spark makes of SQL texts, in one query: a value, or that it fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident import Fields

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FAILS = "fails"


def spark_values(spark: SparkSession, fields: Fields, table: pa.Table, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return for each text its value for each row, `FAILS` where Spark raises; in ANSI mode and in UTC."""
    with _settings(spark, _SETTINGS):
        columns = [_tried(spark, text).alias(f"c{at}") for at, text in enumerate(texts)]
        found = spark.createDataFrame(table, _ddl(fields)).select(*columns).toArrow()
    values = [column.to_pylist() for column in found.columns]
    return {
        text: [FAILS if one is None else one["v"] for one in column] for text, column in zip(texts, values, strict=True)
    }


def _ddl(fields: Fields) -> str:
    return ", ".join(f"`{name}` {type_}" for name, type_ in zip(fields.names, fields.types, strict=True))


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
