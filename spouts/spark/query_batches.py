"""The driver's side of `StructuredStreamingSpout`: from a batch of the query to a batch of the topology.

A definition is plain data: `query` and `batch` (Spark's ids), `offsets` (the digest of what the checkpoint says of the
batch), `sources` (what the query reads), `rows`, `bytes`, `snapshot`, the id of the written rows, and `folder`, the name of
that which they are in.
"""

from __future__ import annotations

import shutil
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts.spark.checkpoint_check import (
    check_checkpoint,
    check_handed,
    is_batch,
    read_batch,
    read_checkpoint,
    sources_of,
)
from spouts.spark.chunks import ChunkLimits, ChunkPart, cut_chunks, write_dataframe
from spouts.spark.manifests import check_owner, fields_as_text, new_rows_folder, read_manifest, write_manifest
from spouts.spark.stream_query import StreamQuery
from trident.errors import ReplayMismatchError, SpoutError
from trident.fields import Fields
from trident.spout.interfaces import BatchCoordinator, Definition, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_CHUNK = ChunkLimits(65_536, 32 << 20)
_used: set[str] = set()  # the checkpoints of this process
_used_lock = threading.Lock()


class QuerySettings:
    """What a `StructuredStreamingSpout` was given, see there."""

    def __init__(
        self, fields: Fields, checkpoint: str, rows_dir: str, trigger: Mapping[str, Any], adopts: bool
    ) -> None:
        self.fields, self.checkpoint, self.rows_dir = fields, checkpoint, rows_dir
        self.trigger, self.adopts = dict(trigger), adopts


class QueryCoordinator(BatchCoordinator):
    """Runs the query, and defines a batch for each of its batches.

    `open_dataframe`: returns the streaming DataFrame; called when the query is started, which is when the first batch is asked
    for.
    `owner`: whose rows they are; see `owner_of`.
    """

    def __init__(self, open_dataframe: Callable[[], DataFrame], settings: QuerySettings, owner: str = "") -> None:
        self._open_dataframe, self._settings, self._fields = open_dataframe, settings, settings.fields
        self._owner = owner
        self._query: StreamQuery | None = None
        self._last: Definition | None = None  # the last batch that the log has, committed or being tried
        self._open: Definition | None = None  # a batch that is being tried
        self._holds = False
        self._sources: list[str] = []

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the batch that Spark waits with, None if there is none."""
        if self._open is None:
            self._last = previous
        query = self._running()
        try:
            handed = query.handed()
        except SpoutError:
            self._end()  # the next call starts it again
            raise
        if handed is None or (previous is not None and _same(handed, previous)):
            return None
        self._last = self._open = dict(handed)
        return self._open

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[ChunkPart]:
        self._last = self._open = (
            definition  # the query is not needed for it, and is started when the next one is asked for
        )
        folder = self._folder(definition)
        manifest = read_manifest(folder)
        if manifest is None or manifest.id != definition["snapshot"]:
            raise ReplayMismatchError(
                f"the {definition['rows']} rows of batch {definition['batch']} of query {definition['query']} are no "
                f"longer in {folder}. Bring the folder back, or begin again with a new checkpoint, a new log_dir and "
                "empty states"
            )
        return cut_chunks(manifest.rows_folder(folder), manifest.chunks, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        """Delete the rows of the batch, and let Spark complete it."""
        self._remove(definition)  # first: a batch that Spark gives again is deleted again
        self._open = None
        if self._query is not None:
            self._query.recorded(definition)

    def size(self, definition: Definition) -> int | None:
        return int(definition["bytes"])

    def look_now(self) -> None:
        """Ask the query for all that its source has now."""
        if self._query is not None:
            self._query.look_now()

    def runs_spark_jobs(self) -> bool:
        return True

    def is_preparing(self) -> bool:
        """Whether the query may still give a batch of that."""
        return self._query is not None and self._query.is_preparing()

    def close(self) -> None:
        self._end()

    # ---- the query --------------------------------------------------------------------------------------------------

    def _running(self) -> StreamQuery:
        if self._query is None:
            self._claim()
            self._query = StreamQuery(
                self._start, self._write, bool({"availableNow", "once"} & self._settings.trigger.keys())
            )
            self._query.look_now()
        return self._query

    def _end(self) -> None:
        if self._query is not None:
            self._query.close()
            self._query = None
        with _used_lock:
            if self._holds:
                _used.discard(self._settings.checkpoint)
            self._holds = False

    def _claim(self) -> None:
        checkpoint = self._settings.checkpoint
        with _used_lock:
            if checkpoint in _used:
                raise SpoutError(
                    f"the checkpoint {checkpoint} is in use by another stream of this process. Give each its own: what one of "
                    "them has read, the other would miss"
                )
            _used.add(checkpoint)
            self._holds = True

    def _start(self, call: Callable[[DataFrame, int], None]) -> StreamingQuery:
        df, settings = self._open_dataframe(), self._settings
        self._sources = sources_of(df)
        if not settings.adopts:
            check_checkpoint(read_checkpoint(df.sparkSession, settings.checkpoint), self._last, self._sources)
        writer = df.writeStream.foreachBatch(call).option("checkpointLocation", settings.checkpoint)
        return (writer.trigger(**settings.trigger) if settings.trigger else writer).start()

    def _write(self, df: DataFrame, batch: int) -> Definition | None:
        """Write the rows of a batch that Spark gives, in the query's thread; None if the log has committed it."""
        settings, last, open_ = self._settings, self._last, self._open
        query, digest = read_batch(df.sparkSession, settings.checkpoint, batch)
        if not query or digest is None:  # without them no batch can be distinguished from another
            raise SpoutError(
                f"Spark gives batch {batch}, but {settings.checkpoint} does not show "
                f"{f'offsets/{batch}' if query else 'metadata'}, which Spark writes before: its file system does not answer "
                "for all that is in it. It is tried again"
            )
        if last is not None and is_batch(last, query, batch, digest):
            if open_ is None:  # committed, but a crash prevented Spark from completing it
                self._remove(last)
            return open_  # else it is being tried since the restart, from the rows that were written before
        check_handed(settings.checkpoint, query, batch, last, settings.adopts)
        # Of these rows nothing is removed here: a driver that was replaced would remove its successor's.
        fields = zlib.crc32("\n".join(fields_as_text(self._fields)).encode())
        made = {"query": query, "batch": batch, "offsets": digest, "sources": self._sources}
        made["folder"] = f"{batch}-{digest}-{fields:08x}"
        folder = self._folder(made)
        manifest = read_manifest(folder)
        if manifest is None:
            id_, rows_folder = new_rows_folder(folder)
            chunks = write_dataframe(df, rows_folder, self._fields, _CHUNK)
            manifest = write_manifest(folder, id_, self._fields, chunks, self._owner)
        if last is None and not settings.adopts:
            check_owner(folder, manifest, self._owner)
        size = sum(chunk.bytes for chunk in manifest.chunks)
        return {**made, "snapshot": manifest.id, "rows": manifest.rows, "bytes": size}

    def _folder(self, definition: Mapping[str, Any]) -> str:
        return str(Path(self._settings.rows_dir, definition["query"], definition["folder"]))

    def _remove(self, definition: Mapping[str, Any]) -> None:
        """Delete the rows of a batch that is committed, and of those before it: also what other drivers wrote of them."""
        for folder in Path(self._folder(definition)).parent.glob("*-*"):
            number = folder.name.partition("-")[0]
            if number.isdecimal() and int(number) <= definition["batch"]:
                shutil.rmtree(folder, ignore_errors=True)


def _same(one: Definition, other: Definition) -> bool:
    return is_batch(one, other["query"], other["batch"], other["offsets"])
