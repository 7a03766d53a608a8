"""DataFrameSpout: a batch DataFrame, in transactional batches. StructuredStreamingSpout: a streaming one, by `foreachBatch`.

A definition of `DataFrameSpout`: `snapshot` (the id of the written rows), `start` and `end` (numbers of chunks), `of` (how many
there are), `rows`, `bytes`, `left` (rows behind this batch).
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts.spark.chunks import (
    ChunkEmitter,
    ChunkLimits,
    ChunkPart,
    Manifest,
    check_owner,
    cut_chunks,
    owner_of,
    read_manifest,
    remove_others,
    remove_rows,
    said_by_spark,
    write_dataframe,
)
from spouts.spark.query_batches import QueryCoordinator, QuerySettings
from trident.arrow import schema_of
from trident.channel import DaemonPool
from trident.errors import ReplayMismatchError, SpoutError, TopologyError
from trident.fields import Fields, FieldsLike
from trident.servers.log_addresses import is_url
from trident.setting_types import Limit, check_arguments
from trident.spout.interfaces import Definition, Lag, OnNewLog, SpoutType, ThrottledCoordinator, TransactionAttempt
from trident.spout.query_batches import fields_of_schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

CHUNKS_PER_BATCH = 8
"""How many chunks a full batch has, so that several tasks read it and a slow state can be given less."""

_log = logging.getLogger(__name__)
_BEGIN_AGAIN = "begin again with a new folder, a new log_dir and empty states"
_NOT_ON_CONNECT = (
    "does not work on Spark Connect, whose server does not call a function of this process for each batch: let "
    "topology.foreach_batch(…) return the function for the query's writeStream.foreachBatch, or use a classic session"
)
_CANCEL_S = 10.0


class _DataFrameSource:
    """What a spout over a DataFrame has of any kind. `streams`: whether it reads streaming ones."""

    spout_type = SpoutType.TRANSACTIONAL
    streams = False

    def __init__(self, source: Any, fields: FieldsLike | None) -> None:
        self._source, self._name = source, type(self).__name__
        if _is_dataframe(source):
            if misfit := self._misfit(source):
                raise TopologyError(misfit)
            if fields is not None:
                raise TopologyError(f"{self._name} takes the DataFrame's fields; rename or cast its columns instead")
            self._fields = _fields_of(source)
            return
        if not callable(source):
            raise TopologyError(
                f"{self._name} reads a DataFrame, or a function of the SparkSession that makes one; not {source!r}"
            )
        if fields is None:
            raise TopologyError(
                f"{self._name} cannot know the columns of a DataFrame that is made later; declare them, as in "
                'fields="id: bigint, amount: double"'
            )
        self._fields = Fields(fields)
        schema_of(self._fields)  # raises for a field without a type

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_emitter(self, conf: Mapping[str, Any]) -> ChunkEmitter:
        return ChunkEmitter()

    def _open_dataframe(self) -> DataFrame:
        """Return the DataFrame that was given, or what the function makes of the session."""
        from pyspark.sql import SparkSession

        if self._source is None:
            raise SpoutError("this spout's DataFrame is in the process that made it; give a function that makes it")
        if _is_dataframe(self._source):
            df: DataFrame = self._source
            return df
        session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001  the default one
        if session is None:
            raise SpoutError('a DataFrame needs a running Spark: start with engine="spark", or start Spark first')
        made: DataFrame = self._source(session)
        if not _is_dataframe(made) or _fields_of(made) != self._fields:
            found = f"the columns ({_fields_of(made)})" if _is_dataframe(made) else repr(made)
            raise SpoutError(f"the function of a DataFrame made {found}; declared are the fields ({self._fields})")
        if misfit := self._misfit(made):
            kind = "streaming" if made.isStreaming else "batch"
            raise SpoutError(f"the function made a {kind} DataFrame: {misfit}")
        return made

    def _misfit(self, df: DataFrame) -> str | None:
        """Say why the spout does not read a DataFrame; None if it does."""
        if self.streams and type(df).__module__.startswith("pyspark.sql.connect"):
            return f"{self._name} {_NOT_ON_CONNECT}"
        if df.isStreaming == self.streams:
            return None
        kind, made = ("a streaming", "spark.readStream") if self.streams else ("a batch", "spark.read")
        other = "DataFrameSpout" if self.streams else "StructuredStreamingSpout"
        return f"{self._name} reads {kind} DataFrame ({made}); give this one to {other}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None if _is_dataframe(self._source) else self._source}


class DataFrameSpout(_DataFrameSource):
    """Emits the rows of a DataFrame once, in batches. Transactional, whatever the query.

    The query runs once: Spark's tasks write its rows into `folder`, without passing them through the driver, and every
    batch is read from there by the tasks of the topology. So a replay and a restart have the same rows, also if the table
    has changed since, or the query would not give the same again.

    Parameters
    ----------
    source
        The DataFrame; or a function that makes it of the `SparkSession` when the topology runs, so that the declaration
        needs no Spark (`trident get` and `open_state` import it too).
    folder
        Where the rows are written: a folder of its own, which all machines of Spark see under this path. A restart needs
        it; after the last batch the rows in it are deleted.
    fields
        Only with a function: names and types of the columns.
    max_batch_rows, max_batch_bytes
        The greatest number of rows of a batch, and of bytes in memory. A single row may have more bytes.
    keep
        Keep the rows in `folder` after the last batch. To read the DataFrame again, remove the folder or name another.
    """

    on_new_log: OnNewLog = "elsewhere"

    @check_arguments
    def __init__(
        self,
        source: DataFrame | Callable[[SparkSession], DataFrame],
        folder: str | os.PathLike[str],
        *,
        fields: FieldsLike | None = None,
        max_batch_rows: Limit = 100_000,
        max_batch_bytes: Limit = 64 << 20,
        keep: bool = False,
    ) -> None:
        super().__init__(source, fields)
        self._folder, self._keep = _checked_folder("folder", folder), keep
        self._limits = ChunkLimits(max_batch_rows, max_batch_bytes)

    def get_coordinator(self, conf: Mapping[str, Any]) -> DataFrameCoordinator:
        """Open the driver's side."""
        return DataFrameCoordinator(
            self._open_dataframe, self._folder, self._fields, self._limits, self._keep, owner_of(conf)
        )


class StructuredStreamingSpout(_DataFrameSource):
    """Emits the batches of a streaming DataFrame, one batch of the topology for each batch of Spark. Transactional.

    Spark plans a batch, its tasks write the rows into `rows_dir`, the topology reads them there, and when the batch is
    recorded Spark completes it and plans the next. So a batch is one on both sides, and a replay has the same rows.

    Parameters
    ----------
    source
        The streaming DataFrame (`spark.readStream…`), or a function that makes it of the `SparkSession` when the topology
        runs, so that the declaration needs no Spark.
    checkpoint
        The folder of Spark's checkpoint: it says how far the source was read. It belongs to this stream of this topology
        alone, and to its log.
    fields
        Only with a function: names and types of the columns.
    rows_dir
        Where the rows of a batch are from its plan to its record; all machines of Spark must see it under this path.
        Default: a folder in the checkpoint.
    trigger
        As for `DataStreamWriter.trigger`, such as `{"processingTime": "10 seconds"}` or `{"availableNow": True}`.
        Default: a batch as soon as there are rows.
    adopt_checkpoint
        Take the checkpoint as it is, although it does not belong to the log. For one start, if you know what the states
        have.
    """

    streams = True
    on_new_log: OnNewLog = "checkpoint"

    @check_arguments
    def __init__(
        self,
        source: DataFrame | Callable[[SparkSession], DataFrame],
        checkpoint: str | os.PathLike[str],
        *,
        fields: FieldsLike | None = None,
        rows_dir: str | os.PathLike[str] | None = None,
        trigger: Mapping[str, Any] | None = None,
        adopt_checkpoint: bool = False,
    ) -> None:
        super().__init__(source, fields)
        place = os.fspath(checkpoint)
        if not is_url(place):
            place = str(Path(place).absolute())
        elif rows_dir is None:
            raise ValueError(f"checkpoint is {place!r}; give rows_dir too, a folder that all machines see as a path")
        rows = _checked_folder("rows_dir", Path(place, "trident-rows") if rows_dir is None else rows_dir)
        self._settings = QuerySettings(self._fields, place, rows, trigger or {}, adopt_checkpoint)

    def get_coordinator(self, conf: Mapping[str, Any]) -> QueryCoordinator:
        """Open the driver's side. The query is started when the first batch is asked for."""
        return QueryCoordinator(self._open_dataframe, self._settings, owner_of(conf))


def _checked_folder(name: str, folder: str | os.PathLike[str]) -> str:
    """Return a folder as an absolute path; `ValueError` if it is a URL, which files cannot be written to."""
    path = os.fspath(folder)
    if is_url(path):
        raise ValueError(f"{name} is {path!r}; it must be a folder that all machines see, as a path without a scheme")
    return str(Path(path).absolute())


def _fields_of(df: DataFrame) -> Fields:
    """Return the columns of a DataFrame as fields; `TopologyError` if it has none, or for a type that tuples do not have."""
    fields = fields_of_schema(df.schema)
    if not len(fields):
        raise TopologyError("a DataFrame without columns has no rows that could be written: select one, such as lit(1)")
    schema_of(fields)
    return fields


def _is_dataframe(source: Any) -> bool:
    """Whether it is a DataFrame; asked without an import of PySpark where it is none."""
    if type(source).__module__.partition(".")[0] != "pyspark":
        return False
    from pyspark.sql import DataFrame

    return isinstance(source, DataFrame)


class DataFrameCoordinator(ThrottledCoordinator):
    """Has the rows written once, in a thread, and cuts them into batches."""

    runs_spark_jobs = True

    def __init__(
        self,
        open_dataframe: Callable[[], DataFrame],
        folder: str,
        fields: Fields,
        limits: ChunkLimits,
        keep: bool,
        owner: str = "",
    ) -> None:
        self._folder, self._fields, self._limits, self._keep = folder, fields, limits, keep
        self._owner = owner
        self._manifest: Manifest | None = None
        self._has_swept = False
        self._begun = False  # whether this driver defined or cut a batch
        self._writing = _Writing(lambda: self._write_rows(open_dataframe()))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the next chunks; None while the rows are being written, and after the last."""
        if previous is not None and previous["end"] == previous["of"]:
            if not self._begun:  # then the batch is committed, and the driver before this one was killed
                self._remove_rows(previous)
            return None
        manifest = self._load_manifest() if previous is None else self._of(previous)
        if manifest is None:
            manifest = self._manifest = self._writing.result()
        if manifest is None:
            return None
        if previous is None:  # else the log says that they are its own, whatever the topology is called now
            check_owner(self._folder, manifest, self._owner)
        if manifest.consumed:
            raise SpoutError(
                f"the rows in {self._folder} were all committed and then deleted, and this log has none of them. Remove the "
                "folder, or name another one, to read the DataFrame again; or name the log that has them (log_dir)"
            )
        return self._define(manifest, 0 if previous is None else int(previous["end"]))

    def _define(self, manifest: Manifest, start: int) -> Definition | None:
        self._begun, chunks = True, manifest.chunks
        if start == len(chunks):
            return None
        most_rows, most_bytes = map(self._most, self._limits)
        end, rows, size = start, 0, 0
        while end < len(chunks) and (
            end == start or (rows + chunks[end].rows <= most_rows and size + chunks[end].bytes <= most_bytes)
        ):
            rows, size, end = rows + chunks[end].rows, size + chunks[end].bytes, end + 1
        left = sum(chunk.rows for chunk in chunks[end:])
        counted = {"rows": rows, "bytes": size, "left": left}
        return {"snapshot": manifest.id, "start": start, "end": end, "of": len(chunks), **counted}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[ChunkPart]:
        self._begun, manifest = True, self._of(definition)
        chunks = manifest.chunks[definition["start"] : definition["end"]]
        return cut_chunks(manifest.rows_folder(self._folder), chunks, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        """Delete the rows once the last of them are committed; and at first those that no batch will ever have."""
        if not self._has_swept:
            remove_others(self._folder, definition["snapshot"])
            self._has_swept = True
        if definition["end"] == definition["of"]:
            self._remove_rows(definition)

    def size(self, definition: Definition) -> int | None:
        return int(definition["bytes"])

    def lag(self, definition: Definition) -> Lag:
        return Lag(int(definition["left"]), "records")

    def may_have_more(self) -> bool:
        return self._writing.has_begun and self._manifest is None

    def close(self) -> None:
        self._writing.cancel()

    def _load_manifest(self) -> Manifest | None:
        if self._manifest is None:
            manifest = read_manifest(self._folder)
            if manifest is not None and manifest.fields != tuple(self._fields.typed):
                raise ReplayMismatchError(
                    f"the rows in {self._folder} have the fields ({', '.join(manifest.fields)}), the DataFrame has "
                    f"({', '.join(self._fields.typed)}). Make the DataFrame as it was, or {_BEGIN_AGAIN}"
                )
            self._manifest = manifest
        return self._manifest

    def _of(self, definition: Definition) -> Manifest:
        manifest = self._load_manifest()
        if manifest is None or manifest.id != definition["snapshot"]:
            found = "no rows of a DataFrame" if manifest is None else f"the rows of snapshot {manifest.id}"
            raise ReplayMismatchError(
                f"the log continues with the rows of snapshot {definition['snapshot']}, of which {definition['left']} are "
                f"behind the last batch, but {self._folder} has {found}. Bring the folder back, or {_BEGIN_AGAIN}"
            )
        return manifest

    def _write_rows(self, df: DataFrame) -> Manifest:
        limits = ChunkLimits(*(max(1, limit // CHUNKS_PER_BATCH) for limit in self._limits))
        manifest = write_dataframe(df, self._folder, self._fields, limits, self._owner)
        _log.info("wrote %d rows in %d chunks to %s", manifest.rows, len(manifest.chunks), self._folder)
        return manifest

    def _remove_rows(self, definition: Definition) -> None:
        if self._keep:
            return
        manifest = self._manifest or read_manifest(self._folder)
        if manifest is not None and manifest.id == definition["snapshot"] and not manifest.consumed:
            remove_rows(self._folder, manifest)
            self._manifest = read_manifest(self._folder)


class _Writing:
    """Writes in a thread; `result` begins it, and returns None until it is done. After an error the next call tries again."""

    def __init__(self, write: Callable[[], Manifest]) -> None:
        self._write, self._tag = write, f"trident-rows-{uuid.uuid4().hex}"
        self._future: Future[Manifest] | None = None
        self.has_begun = False

    def result(self) -> Manifest | None:
        if self._future is None:
            self.has_begun, pool = True, DaemonPool(1, "dataframe-rows")
            self._future = pool.submit(self._run)
            pool.shutdown(wait=False)
        if not self._future.done():
            return None
        future, self._future = self._future, None
        try:
            return future.result()
        except Exception as error:
            raise SpoutError(f"the rows of a DataFrame cannot be written: {said_by_spark(error)}") from error

    def _run(self) -> Manifest:
        if (context := _active_context()) is not None:
            context.addJobTag(self._tag)
        return self._write()

    def cancel(self) -> None:
        if self._future is not None and not self._future.done() and (context := _active_context()) is not None:
            context.cancelJobsWithTag(self._tag)
            wait([self._future], _CANCEL_S)


def _active_context() -> SparkContext | None:
    from pyspark import SparkContext

    return SparkContext._active_spark_context  # noqa: SLF001  PySpark has no public question
