"""The driver's side of `StructuredStreamingSpout`: from a batch of the query, in its threads, to a batch of the topology.

Spark calls `foreachBatch` in the query's thread. It writes the rows as chunks, hands them over, and returns when the topology
has recorded the batch; then Spark completes it in its checkpoint and plans the next one. A definition: `query` and `batch`
(Spark's ids), `offsets` (the digest of what the checkpoint says of the batch), `sources` (what the query reads), `rows`,
`bytes`, `snapshot`, the id of the written rows, and `folder`, the name of that which they are in.
"""

from __future__ import annotations

import logging
import shutil
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spouts.spark.checkpoint_check import Checkpoint, check_checkpoint, check_handed, is_batch, sources_of
from spouts.spark.chunks import (
    ChunkLimits,
    ChunkPart,
    check_owner,
    cut_chunks,
    read_manifest,
    said_by_spark,
    write_dataframe,
)
from trident.errors import ReplayMismatchError, SpoutError
from trident.fields import Fields
from trident.spout.interfaces import BatchCoordinator, Definition, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_log, _py4j = logging.getLogger(__name__), logging.getLogger("py4j.clientserver")
_STOP_S = 30.0
_CHUNK = ChunkLimits(65_536, 32 << 20)
_used: dict[str, QueryCoordinator] = {}  # the checkpoints of this process, and who reads them
# What Spark takes for the end of a query that was stopped: it looks for this text in what the Python side raised. Any longer
# text of that kind, as a cancelled job raises it, lets Spark's search overflow its stack.
_Stopped = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
_STOPPED = "An error occurred while calling foreachBatch.\n: java.lang.InterruptedException: stopped"


class QuerySettings(NamedTuple):
    """What a `StructuredStreamingSpout` was given, see there."""

    fields: Fields
    checkpoint: str
    rows_dir: str
    trigger: Mapping[str, Any]
    adopts: bool


class QueryCoordinator(BatchCoordinator):
    """Runs the query, from when the first batch is asked for, and defines a batch for each of its batches."""

    runs_spark_jobs = True

    def __init__(self, open_dataframe: Callable[[], DataFrame], settings: QuerySettings, owner: str = "") -> None:
        self._open_dataframe, self._settings, self._fields = open_dataframe, settings, settings.fields
        self._owner = owner
        self._query: StreamQuery | None = None
        self._last: Definition | None = None  # the last batch that the log has, committed or being tried
        self._open: Definition | None = None  # a batch that is being tried
        self._sources: list[str] = []

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the batch that Spark waits with, None if there is none."""
        if self._open is None:
            self._last = previous
        query = self._running()
        try:
            handed = query.waiting_batch()
        except SpoutError:
            self._end()  # the next call starts it again
            raise
        if handed is None or is_batch(previous, *(handed[each] for each in ("query", "batch", "offsets"))):
            return None
        self._last = self._open = dict(handed)
        return self._open

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[ChunkPart]:
        self._last = self._open = definition  # the query is started when the next one is asked for
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
        self._remove(definition)  # first: a batch that Spark gives again is deleted again
        self._open = None
        if self._query is not None:
            self._query.let_complete(definition)

    def size(self, definition: Definition) -> int | None:
        return int(definition["bytes"])

    def refresh(self) -> None:
        if self._query is not None:
            self._query.refresh()

    def may_have_more(self) -> bool:
        return self._query is not None and self._query.may_have_more()

    def close(self) -> None:
        self._end()

    def _running(self) -> StreamQuery:
        if self._query is None:
            checkpoint = self._settings.checkpoint
            if _used.setdefault(checkpoint, self) is not self:
                raise SpoutError(
                    f"the checkpoint {checkpoint} is in use by another stream of this process. Give each its own: what one "
                    "of them has read, the other would miss"
                )
            self._query = StreamQuery(
                self._start, self._write, bool({"availableNow", "once"} & self._settings.trigger.keys())
            )
            self._query.refresh()
        return self._query

    def _end(self) -> None:
        if self._query is not None:
            self._query.close()
            self._query = None
        if _used.get(self._settings.checkpoint) is self:
            del _used[self._settings.checkpoint]

    def _start(self, call: Callable[[DataFrame, int], None]) -> StreamingQuery:
        df, settings = self._open_dataframe(), self._settings
        self._sources = sources_of(df)
        if not settings.adopts:
            check_checkpoint(Checkpoint(df.sparkSession, settings.checkpoint), self._last, self._sources)
        writer = df.writeStream.foreachBatch(call).option("checkpointLocation", settings.checkpoint)
        return (writer.trigger(**settings.trigger) if settings.trigger else writer).start()

    def _write(self, df: DataFrame, batch: int) -> Definition | None:
        """Write the rows of a batch that Spark gives, in the query's thread; None if the log has committed it."""
        settings, last, open_ = self._settings, self._last, self._open
        checkpoint = Checkpoint(df.sparkSession, settings.checkpoint)
        query, digest = checkpoint.query, checkpoint.digest(batch)
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
        fields = zlib.crc32("\n".join(self._fields.typed).encode())
        made = {"query": query, "batch": batch, "offsets": digest, "sources": self._sources}
        made["folder"] = f"{batch}-{digest}-{fields:08x}"
        folder = self._folder(made)
        manifest = read_manifest(folder)
        if manifest is None:
            manifest = write_dataframe(df, folder, self._fields, _CHUNK, self._owner)
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


class _Failed(Exception):
    """A short error for Spark, whose own texts hold the stack traces of both sides."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of Py4J is of another error than those by which `foreachBatch` ends a query."""
    return record.exc_info is None or not isinstance(record.exc_info[1], (_Failed, _Stopped))


class StreamQuery:
    """A streaming query in its own threads, from its start to its end.

    `start`: checks the checkpoint and starts the query with a function for `foreachBatch`.
    `write`: writes the rows of a batch and returns its definition; or None: the log has committed this very batch.
    """

    def __init__(
        self,
        start: Callable[[Callable[[DataFrame, int], None]], StreamingQuery],
        write: Callable[[DataFrame, int], Definition | None],
        ends_itself: bool,
    ) -> None:
        self._start, self._write, self._ends_itself = start, write, ends_itself
        self._changed = threading.Condition()
        self._query: StreamingQuery | None = None
        self._handed: Definition | None = None
        self._recorded: Definition | None = None
        self._error: BaseException | None = None
        self._has_ended = self._closing = False
        self._looked = self._probed = 0
        self._probe: threading.Thread | None = None
        _py4j.addFilter(_is_news)  # once, however often it is added
        self._thread = threading.Thread(target=self._run, name="streaming-query", daemon=True)
        self._thread.start()

    # ---- for the topology -------------------------------------------------------------------------------------------

    def waiting_batch(self) -> Definition | None:
        """Return the batch that waits to be recorded, None if there is none; raise what ended the query."""
        with self._changed:
            if isinstance(self._error, SpoutError):
                raise self._error
            if self._error is not None:
                raise SpoutError(f"the streaming query failed: {said_by_spark(self._error)}") from self._error
            return None if self._handed == self._recorded else self._handed

    def let_complete(self, definition: Definition) -> None:
        with self._changed:
            self._recorded = definition
            self._changed.notify_all()

    def refresh(self) -> None:
        with self._changed:
            self._looked += 1

    def may_have_more(self) -> bool:
        """Whether the query may still give a batch of what the source had at the last `refresh`."""
        with self._changed:
            if self._error is not None or self._handed not in (None, self._recorded):
                return True
            if self._has_ended or self._probed >= self._looked:
                return False
            if self._query is not None and self._probe is None:
                self._probe = threading.Thread(
                    target=self._drain, args=(self._looked,), name="streaming-probe", daemon=True
                )
                self._probe.start()
            return True

    def close(self) -> None:
        """Stop the query. The batch that waits stays without an end in the checkpoint, so Spark will give it again."""
        with self._changed:
            self._closing = True
            query = self._query
        if query is not None and not self._has_ended:
            stopping = threading.Thread(target=_stop, args=(query,), name="streaming-stop", daemon=True)
            stopping.start()
            while stopping.is_alive() and _is_active(query):  # only then does Spark know that it is a stop
                stopping.join(0.01)
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            _log.warning("a streaming query did not stop within %g seconds; it is left behind", _STOP_S)

    # ---- in threads of its own ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            query = self._start(self._call)
            with self._changed:
                self._query = query
                closing = self._closing
            if closing:
                query.stop()
            query.awaitTermination()
            if not self._ends_itself and not self._closing:
                raise SpoutError(
                    "the streaming query was stopped by someone else: by a call of stop(), or because another query with "
                    "its checkpoint was started. Give each topology a checkpoint of its own"
                )
        except Exception as error:  # noqa: BLE001  raised by `waiting_batch`
            with self._changed:
                if not self._closing:
                    self._error = self._error or error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _call(self, df: DataFrame, batch: int) -> None:
        """Pass on a batch and wait until it is recorded; the query's thread calls it."""
        try:
            definition = self._write(df, batch)
        except Exception as error:  # noqa: BLE001  as above; Spark gets a short one
            with self._changed:
                self._error = None if self._closing else error
            raise (_Stopped(_STOPPED) if self._closing else _Failed("see the error of the topology")) from None
        if definition is None:
            return
        with self._changed:
            self._handed = definition
            self._changed.wait_for(lambda: self._recorded == definition or self._closing)
            if self._recorded != definition:
                raise _Stopped(_STOPPED)

    def _drain(self, looked: int) -> None:
        query = self._query
        with suppress(Exception):  # an error of the query is noted where its end is awaited
            if query is not None:
                query.processAllAvailable()
        with self._changed:
            self._probed, self._probe = looked, None


def _stop(query: StreamingQuery) -> None:
    with suppress(Exception):  # Spark itself may be gone
        query.stop()


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # noqa: BLE001  as above
        return False
