"""Rows of a DataFrame as Spark's tasks write them, without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from spouts.spark.chunks import Chunk, ChunkLimits, Manifest, new_rows_folder, write_chunks, write_manifest
from trident.arrow import schema_of
from trident.fields import Fields

FIELDS = Fields("n: bigint, text: string")


def batch_of(start: int, end: int, text: str = "x") -> pa.RecordBatch:
    """Return the rows `start` to `end`, without the last."""
    numbers = range(start, end)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([text] * len(numbers))], schema=schema_of(FIELDS))


def chunks_of(folder: Path, batches: list[pa.RecordBatch], limits: ChunkLimits, partition: int = 0) -> list[Chunk]:
    """Write the rows of one task."""
    lines = write_chunks(str(folder), FIELDS, limits, partition, batches)
    rows: list[dict[str, Any]] = [row for line in lines for row in line.to_pylist()]
    return [Chunk(*(row[name] for name in Chunk._fields)) for row in rows]


def written(folder: Path, rows: int, per_chunk: int, owner: str = "") -> Manifest:
    """Write the numbers below `rows` as a DataFrame of a former start."""
    id_, rows_folder = new_rows_folder(str(folder))
    chunks = chunks_of(Path(rows_folder), [batch_of(0, rows)], ChunkLimits(per_chunk, 1 << 30))
    return write_manifest(str(folder), id_, FIELDS, chunks, owner)
