"""DataFrameSpout: a batch DataFrame, a table or the result of a query, in transactional batches.

StructuredStreamingSpout: any streaming DataFrame, batch by batch, through `foreachBatch`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts.spark.chunks import ChunkEmitter, ChunkLimits, owner_of
from spouts.spark.dataframe_batches import DataFrameCoordinator
from spouts.spark.query_batches import QueryCoordinator, QuerySettings
from trident.arrow import schema_of
from trident.errors import SpoutError, TopologyError
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import OnNewLog, SpoutType
from trident.spout.query_batches import fields_of_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_ON_CONNECT = (
    "does not work on Spark Connect, whose server does not call a function of this process for each batch: let "
    "topology.foreach_batch(…) return the function for the query's writeStream.foreachBatch, or use a classic session"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


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
                raise TopologyError(
                    f"{self._name} takes the fields from the DataFrame; rename or cast its columns instead"
                )
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
        """Return the worker's side."""
        return ChunkEmitter()

    def _open_dataframe(self) -> DataFrame:
        """Return the DataFrame that was given, or what the function makes of the session."""
        from pyspark.sql import SparkSession

        if self._source is None:
            raise SpoutError(
                "the DataFrame of this spout is in the process that made it; give a function that makes it"
            )
        if _is_dataframe(self._source):
            df: DataFrame = self._source
            return df
        session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001  the default one
        if session is None:
            raise SpoutError(
                'a DataFrame needs Spark, which is not running: start with engine="spark", or start Spark first'
            )
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

    def __init__(
        self,
        source: DataFrame | Callable[[SparkSession], DataFrame],
        folder: str | os.PathLike[str],
        *,
        fields: FieldsLike | None = None,
        max_batch_rows: int = 100_000,
        max_batch_bytes: int = 64 << 20,
        keep: bool = False,
    ) -> None:
        for name, limit in (("max_batch_rows", max_batch_rows), ("max_batch_bytes", max_batch_bytes)):
            if limit < 1:
                raise ValueError(f"{name} is {limit}; it must be at least 1")
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
        if _URL.match(place) is None:
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
    if _URL.match(path):
        raise ValueError(f"{name} is {path!r}; it must be a folder that all machines see, as a path without a scheme")
    return str(Path(path).absolute())


def _fields_of(df: DataFrame) -> Fields:
    """Return the columns of a DataFrame as fields; `TopologyError` for a type that tuples do not have."""
    fields = fields_of_schema(df.schema)
    schema_of(fields)
    return fields


def _is_dataframe(source: Any) -> bool:
    """Whether it is a DataFrame; asked without an import of PySpark where it is none."""
    if type(source).__module__.partition(".")[0] != "pyspark":
        return False
    from pyspark.sql import DataFrame

    return isinstance(source, DataFrame)
