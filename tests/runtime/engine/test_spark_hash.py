"""The numbers that Spark's `repartition` sends to each partition are those that we take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trident.runtime.engine.dataframe_runner import numbers_for, partition_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("partitions", [1, 2, 7, 64])
def test_there_is_a_number_for_each_partition(partitions: int) -> None:
    numbers = numbers_for(partitions)
    assert [partition_of(number, partitions) for number in numbers] == list(range(partitions))


@pytest.mark.parametrize("partitions", [2, 5])
def test_spark_sends_each_number_where_we_think(partitions: int, spark: SparkSession) -> None:
    from pyspark.sql.functions import spark_partition_id

    ids = spark.range(-50, 50).selectExpr("cast(id AS int) AS number")
    rows = ids.repartition(partitions, "number").withColumn("at", spark_partition_id()).collect()
    assert {row.number: row["at"] for row in rows} == {n: partition_of(n, partitions) for n in range(-50, 50)}
