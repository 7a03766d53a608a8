"""The same commit without Trident's change table: MERGE into a plain Delta table, by delta-rs and by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from trident.state import Key

ROOT = Path(__file__).parent.parent.parent
_ON = "t.word = s.word"


class Merge(Protocol):
    """Commits the same keys over and over."""

    def commit(self) -> None:
        """Read what stands, and write the new rows: one MERGE."""


def _rows(keys: list[Key], txid: int) -> pa.Table:
    columns = {
        "word": pa.array([key[0] for key in keys]),
        "txid": pa.array([txid] * len(keys), pa.int64()),
        "attempt": pa.array([1 << 20] * len(keys), pa.int64()),
        "prev": pa.array([txid - 1] * len(keys), pa.int64()),
        "curr": pa.array([txid] * len(keys), pa.int64()),
    }
    return pa.table(columns)


class _Rust:
    def __init__(self, path: Path, all_keys: list[Key], keys: list[Key]) -> None:
        from deltalake import write_deltalake

        self._path, self._keys, self._txid = str(path), keys, 1
        write_deltalake(self._path, _rows(all_keys, 1))

    def commit(self) -> None:
        from deltalake import DeltaTable

        self._txid += 1
        rows = _rows(self._keys, self._txid)
        merge = DeltaTable(self._path).merge(rows, _ON, source_alias="s", target_alias="t")
        done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
        assert done["num_target_rows_updated"] == len(self._keys)

    def read(self) -> None:
        """Read the values of the keys."""
        from deltalake import DeltaTable

        wanted = pc.field("word").isin([key[0] for key in self._keys])
        found = DeltaTable(self._path).to_pyarrow_dataset().to_table(filter=wanted).to_pylist()
        assert len(found) == len(self._keys)


class _Spark:
    def __init__(self, spark: Any, path: Path, all_keys: list[Key], keys: list[Key]) -> None:
        from deltalake import write_deltalake

        self._spark, self._path, self._keys, self._txid = spark, str(path), keys, 1
        write_deltalake(self._path, _rows(all_keys, 1))

    def commit(self) -> None:
        self._txid += 1
        self._spark.createDataFrame(_rows(self._keys, self._txid)).createOrReplaceTempView("s")
        self._spark.sql(
            f"MERGE INTO delta.`{self._path}` t USING s ON {_ON} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def rust_merge(path: Path, all_keys: list[Key], keys: list[Key]) -> _Rust:
    """A table of `all_keys`; its commits merge `keys` through delta-rs."""
    return _Rust(path, all_keys, keys)


@contextmanager
def spark_merge(path: Path, all_keys: list[Key], keys: list[Key]) -> Iterator[Merge]:
    """A table of `all_keys`; its commits merge `keys` through Spark, on both cores."""
    from pyspark.sql import SparkSession

    from states.delta import delta_session_conf
    from trident.spark.environment import pin_worker_python

    pin_worker_python()
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        **delta_session_conf(ROOT / "build" / "ivy"),
    }
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield _Spark(spark, path, all_keys, keys)
    finally:
        spark.stop()
