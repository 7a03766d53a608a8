"""Decides whether a checkpoint and the log belong together, before the query is started.

Each batch of the query has a file in the checkpoint, `offsets/N`, which Spark writes before it reads the batch, and a replay
uses again. Its time of writing is in it, so two files are equal only if they are of one batch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trident.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHOICES = (
    "Restore the checkpoint that belongs to the log. To count everything again, give a new checkpoint, a new log_dir and, "
    'once, state_recovery="discard_totals"'
)


class Checkpoint:
    """A checkpoint of Structured Streaming, in any file system that Spark knows. Spark's errors pass through."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  PySpark has no call for files
        self._jvm, self._folder = jvm, jvm.org.apache.hadoop.fs.Path(path)
        self._system = self._folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001  as above

    @cached_property
    def query(self) -> str:
        """The id of the query; empty: there is no checkpoint (yet)."""
        metadata = self._text("metadata")
        return "" if metadata is None else str(json.loads(metadata)["id"])

    @property
    def planned(self) -> int | None:
        return self._last("offsets")  # that Spark began

    @property
    def done(self) -> int | None:
        return self._last("commits")  # that Spark completed

    def digest(self, batch: int) -> str | None:
        offsets = self._text(f"offsets/{batch}")
        return None if offsets is None else digest_of(offsets)

    def _text(self, name: str) -> str | None:
        path = self._jvm.org.apache.hadoop.fs.Path(self._folder, name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _last(self, name: str) -> int | None:
        path = self._jvm.org.apache.hadoop.fs.Path(self._folder, name)
        if not self.query or not self._system.exists(path):
            return None
        names = [status.getPath().getName() for status in self._system.listStatus(path)]
        return max((int(each) for each in names if each.isdigit()), default=None)


def digest_of(offsets: str) -> str:
    return hashlib.sha256(offsets.encode()).hexdigest()[:16]


def is_batch(definition: Mapping[str, Any] | None, query: str, batch: int, digest: str | None) -> bool:
    """Whether a definition is surely of this batch of this query."""
    found = [query, batch, digest]
    return definition is not None and [definition[each] for each in ("query", "batch", "offsets")] == found


def check_checkpoint(checkpoint: Checkpoint, last: Mapping[str, Any] | None, sources: list[str]) -> None:
    """Raise `CheckpointMismatchError` if the query would not continue behind `last`, the last batch that the log has."""
    if last is None:
        if (done := checkpoint.done) is not None:
            raise CheckpointMismatchError(
                f"the checkpoint {checkpoint.path} has given the batches up to {done} of query {checkpoint.query} "
                "already, and this log has none of them: it is the checkpoint of another topology or program, or the log was "
                f"lost. Give each topology a checkpoint of its own. {_CHOICES}"
            )
        return
    problem = _problem(checkpoint, last, sources)
    if problem is not None:
        log = f"the log continues behind batch {last['batch']} of query {last['query']}"
        raise CheckpointMismatchError(f"{log}, but {problem}. {_CHOICES}")


def _problem(checkpoint: Checkpoint, last: Mapping[str, Any], sources: list[str]) -> str | None:
    batch, path = last["batch"], f"the checkpoint {checkpoint.path}"
    if not checkpoint.query:
        return f"{path} is empty: it was deleted, or a different folder is named. Spark would read from the beginning"
    if checkpoint.query != last["query"]:
        return f"{path} is of query {checkpoint.query}: it was deleted and begun again, or it is of another query"
    if sources != last["sources"]:
        now, then = (", ".join(each) or "nothing" for each in (sources, last["sources"]))
        return f"the query reads {now} where it read {then}: the offsets mean nothing there"
    planned, done = checkpoint.planned, checkpoint.done
    if planned is None or planned < batch:
        return f"{path} ends with batch {planned}: it was restored from an older copy"
    if checkpoint.digest(batch) != last["offsets"]:
        return (
            f"batch {batch} of {path} is a different one: it was restored from an older copy and has gone on since, "
            "or two topologies share it"
        )
    if done is not None and done > batch:
        given = f"batch {done}" if done == batch + 1 else f"the batches {batch + 1} to {done}"
        return f"{path} has given {given} to someone else: two topologies share it, or the log is an older copy"
    return None


def check_handed(path: str, query: str, batch: int, last: Mapping[str, Any] | None, adopts: bool) -> None:
    """Raise `CheckpointMismatchError` if Spark hands over another batch than the one behind the last."""
    expected = 0 if last is None else int(last["batch"]) + 1
    known = last is not None and last["query"] == query
    if batch == expected and (known or last is None):
        return
    if not adopts:
        raise CheckpointMismatchError(
            f"Spark gives batch {batch} of query {query}, but the log continues with batch {expected}: two topologies share "
            f"the checkpoint {path}, or it was changed while the query ran. {_CHOICES}"
        )


# The options of a source that say what is read. The others say how, and may change.
_NAMING = ("path", "table", "subscribe", "subscribepattern", "assign", "topic", "streamname", "host", "port")


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
