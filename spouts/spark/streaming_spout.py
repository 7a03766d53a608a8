"""StructuredStreamingSpout: any streaming DataFrame, batch by batch, through `foreachBatch`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts.spark.chunks import ChunkEmitter
from spouts.spark.dataframe_spout import checked_folder, dataframe_of, fields_of_source, is_dataframe
from spouts.spark.manifests import owner_of
from spouts.spark.query_batches import QueryCoordinator, QuerySettings
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import OnNewLog, SpoutType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class StructuredStreamingSpout:
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

    spout_type = SpoutType.TRANSACTIONAL
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
        self._fields = fields_of_source(source, fields, "StructuredStreamingSpout", streams=True)
        self._source: Any = source
        place = os.fspath(checkpoint)
        if _URL.match(place) is None:
            place = str(Path(place).absolute())
        elif rows_dir is None:
            raise ValueError(f"checkpoint is {place!r}; give rows_dir too, a folder that all machines see as a path")
        rows = checked_folder("rows_dir", Path(place, "trident-rows") if rows_dir is None else rows_dir)
        self._settings = QuerySettings(self._fields, place, rows, trigger or {}, adopt_checkpoint)

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> QueryCoordinator:
        """Open the driver's side. The query is started when the first batch is asked for."""
        return QueryCoordinator(
            lambda: dataframe_of(self._source, self._fields, streams=True), self._settings, owner_of(conf)
        )

    def get_emitter(self, conf: Mapping[str, Any]) -> ChunkEmitter:
        """Return the worker's side."""
        return ChunkEmitter()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None if is_dataframe(self._source) else self._source}
