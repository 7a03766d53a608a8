"""The contract of spouts, for a streaming DataFrame over a folder of files; each check runs queries of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts import StructuredStreamingSpout
from trident.testing import SpoutContract, SpoutSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_IN_A_FILE = 5


class StreamSource(SpoutSource):
    """A folder of files with some rows each; a batch of the query is a file."""

    limit = ROWS_IN_A_FILE
    patience_s = 10.0
    durable = False  # a process without Spark has no query
    crashes = False  # Spark refuses two queries on one checkpoint

    def __init__(self) -> None:
        self.home, self.files = Path(tempfile.mkdtemp(prefix="trident-stream-")), 0
        (self.home / "in").mkdir()

    def spout(self) -> StructuredStreamingSpout:
        folder = str(self.home / "in")

        def stream(spark: SparkSession) -> DataFrame:
            reader = spark.readStream.schema("n bigint, text string").option("maxFilesPerTrigger", 1)
            return reader.csv(folder)

        return StructuredStreamingSpout(stream, self.home / "checkpoint", fields="n: bigint, text: string")

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = [(number, f"row {number}") for number in numbers]
        for at in range(0, len(rows), ROWS_IN_A_FILE):
            self.files += 1
            lines = (f"{number},{text}\n" for number, text in rows[at : at + ROWS_IN_A_FILE])
            (part := self.home / "part").write_text("".join(lines), encoding="utf-8")
            os.utime(part, (1_800_000_000 + self.files,) * 2)  # Spark reads files in the order of their times
            part.rename(self.home / "in" / f"{self.files}.csv")
        return rows

    def close(self) -> None:
        shutil.rmtree(self.home)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
class TestStructuredStreaming(SpoutContract):
    source = StreamSource

    @pytest.mark.xfail(
        strict=True, reason="Py4J keeps the thread and the socket of a query's calls as long as Spark runs"
    )
    def test_threads_files_and_connections_are_released(self) -> None:
        super().test_threads_files_and_connections_are_released()
