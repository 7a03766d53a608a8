"""The contract of spouts, for the rows of a DataFrame as Spark's tasks have written them; no Spark is needed to read them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spouts import DataFrameSpout
from spouts.spark.chunks import ChunkLimits, new_rows_folder, read_manifest, write_manifest
from spouts.spark.dataframe_spout import CHUNKS_PER_BATCH
from tests.spouts.spark.written_rows import FIELDS, chunks_of
from trident.arrow import schema_of
from trident.testing import SpoutContract, SpoutSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
import pytest

pytestmark = pytest.mark.slow


def never(spark: SparkSession) -> DataFrame:
    raise AssertionError("the rows are written already")


class DataFrameSource(SpoutSource):
    """A folder with the rows of a DataFrame; all are filled in before a spout reads them."""

    limit = CHUNKS_PER_BATCH  # chunks of one row, because a throttled batch has a chunk at least
    grows = False

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="trident-dataframe-"))
        self.folder, self.rows = self.home / "rows", list[tuple[Any, ...]]()

    def spout(self) -> DataFrameSpout:
        folder = str(self.folder)
        found = read_manifest(folder)
        if self.folder.with_name("gone").exists():
            return self._made()
        if found is None or (found.rows != len(self.rows) and not found.consumed):
            shutil.rmtree(folder, ignore_errors=True)
            id_, rows_folder = new_rows_folder(folder)
            table = pa.table([list(column) for column in zip(*self.rows, strict=True)] or [[], []], schema_of(FIELDS))
            limits = ChunkLimits(1, 1 << 20)
            write_manifest(folder, id_, FIELDS, chunks_of(Path(rows_folder), table.to_batches(), limits))
        return self._made()

    def _made(self) -> DataFrameSpout:
        return DataFrameSpout(never, self.folder, fields=FIELDS, max_batch_rows=self.limit)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        added: list[tuple[Any, ...]] = [(number, f"row {number}") for number in numbers]
        self.rows += added
        return added

    def change(self) -> None:
        for path in self.folder.glob("rows-*/*"):
            path.write_bytes(path.read_bytes()[:-1])

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.folder.rename(self.home / "gone")
        yield
        (self.home / "gone").rename(self.folder)

    def close(self) -> None:
        shutil.rmtree(self.home)


class TestDataFrame(SpoutContract):
    source = DataFrameSource
