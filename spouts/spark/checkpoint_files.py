"""Reads a checkpoint of Structured Streaming, wherever Spark keeps it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from spouts.spark.checkpoint_check import Checkpoint, digest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_batch", "read_checkpoint", "sources_of"]

# The options of a source that say what is read. The others say how, and may change.
_NAMING = ("path", "table", "subscribe", "subscribepattern", "assign", "topic", "streamname", "host", "port")


def read_checkpoint(spark: SparkSession, path: str) -> Checkpoint:
    """Return what a checkpoint says of itself. Errors are those of Spark."""
    files = _Files(spark, path)
    metadata = files.text("metadata")
    if metadata is None:
        return Checkpoint(path)

    return Checkpoint(path, _id(metadata), files.last("offsets"), files.last("commits"), files.digest)


def read_batch(spark: SparkSession, path: str, batch: int) -> tuple[str, str | None]:
    """Return the id of the query of a checkpoint, and the digest of a batch."""
    files = _Files(spark, path)
    metadata = files.text("metadata")
    return "" if metadata is None else _id(metadata), files.digest(batch)


def _id(metadata: str) -> str:
    return str(json.loads(metadata)["id"])


class _Files:
    """The files of a folder, in any file system that Spark knows."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  PySpark has no call for files
        self._jvm = jvm
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._system = self._folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001  as above

    def text(self, name: str) -> str | None:
        path = self._path(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def digest(self, batch: int) -> str | None:
        offsets = self.text(f"offsets/{batch}")
        return None if offsets is None else digest_of(offsets)

    def last(self, name: str) -> int | None:
        path = self._path(name)
        if not self._system.exists(path):
            return None
        names = [status.getPath().getName() for status in self._system.listStatus(path)]
        return max((int(each) for each in names if each.isdigit()), default=None)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)


def sources_of(df: DataFrame) -> list[str]:
    """Return what a streaming DataFrame reads, in words that another start of the same query has too."""
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001  PySpark does not show plans as data
    streams = [leaf for leaf in (leaves.apply(at) for at in range(leaves.size())) if leaf.isStreaming()]
    return [_source(leaf) for leaf in streams]


def _source(leaf: Any) -> str:
    name = str(leaf.sourceName()) if "StreamingRelation" in leaf.getClass().getName() else str(leaf.nodeName())
    if leaf.getClass().getName().endswith("StreamingRelationV2"):
        options = dict(leaf.extraOptions())
        named = ", ".join(f"{key}={options[key]}" for key in _NAMING if key in options)
        return f"{name}[{named}]" if named else name
    kind, bracket, path = name.partition("[")
    path = path.removesuffix("]").removeprefix("file:")
    return f"{kind}[{os.path.abspath(path)}]" if bracket and ":" not in path else name  # noqa: PTH100  as Spark has it
