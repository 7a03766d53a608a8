"""The driver's side of `DataFrameSpout`: writes the rows once, in a thread, and cuts them into batches.

A definition is plain data: `snapshot` (the id of the written rows), `start` and `end` (numbers of chunks), `of` (how many
there are), `rows`, `bytes`, `left` (rows behind this batch).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spouts.spark.chunks import (
    ChunkLimits,
    ChunkPart,
    Manifest,
    check_owner,
    cut_chunks,
    fields_as_text,
    read_manifest,
    remove_others,
    remove_rows,
    said_by_spark,
    write_dataframe,
)
from trident.errors import ReplayMismatchError, SpoutError
from trident.fields import Fields
from trident.spout.interfaces import Definition, Lag, ThrottledCoordinator, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNKS_PER_BATCH = 8
"""How many chunks a full batch has, so that several tasks read it and a slow state can be given less."""

_log = logging.getLogger(__name__)
_BEGIN_AGAIN = "begin again with a new folder, a new log_dir and empty states"


class DataFrameCoordinator(ThrottledCoordinator):
    """Cuts the rows of a DataFrame into batches.

    `open_dataframe`: returns the DataFrame; called only if its rows are not written yet.
    `folder`: where they are written.
    `limits`: of a batch.
    `keep`: keep the rows after the last batch.
    `owner`: whose rows they are; see `owner_of`.
    """

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
        self._writing = _Writing(lambda: self._written(open_dataframe()))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the next chunks; None while the rows are being written, and after the last."""
        if previous is not None and previous["end"] == previous["of"]:
            if not self._begun:  # then the batch is committed, and the driver before this one was killed
                self._done(previous)
            return None
        manifest = self._loaded() if previous is None else self._of(previous)
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
        """Cut the chunks of a batch into parts."""
        self._begun, manifest = True, self._of(definition)
        chunks = manifest.chunks[definition["start"] : definition["end"]]
        return cut_chunks(manifest.rows_folder(self._folder), chunks, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        """Delete the rows once the last of them are committed; and at first those that no batch will ever have."""
        if not self._has_swept:
            remove_others(self._folder, definition["snapshot"])
            self._has_swept = True
        if definition["end"] == definition["of"]:
            self._done(definition)

    def size(self, definition: Definition) -> int | None:
        return int(definition["bytes"])

    def lag(self, definition: Definition) -> Lag:
        """Say how many rows are behind the batch."""
        return Lag(int(definition["left"]), "records")

    def is_preparing(self) -> bool:
        return self._writing.is_on and self._manifest is None

    def close(self) -> None:
        self._writing.cancel()

    # ---- the written rows -------------------------------------------------------------------------------------------

    def _loaded(self) -> Manifest | None:
        """Return the manifest, None if the rows are not written yet."""
        if self._manifest is None:
            manifest = read_manifest(self._folder)
            if manifest is not None and manifest.fields != fields_as_text(self._fields):
                raise ReplayMismatchError(
                    f"the rows in {self._folder} have the fields ({', '.join(manifest.fields)}), the DataFrame has "
                    f"({', '.join(fields_as_text(self._fields))}). Make the DataFrame as it was, or {_BEGIN_AGAIN}"
                )
            self._manifest = manifest
        return self._manifest

    def _of(self, definition: Definition) -> Manifest:
        """Return the manifest that a definition is of."""
        manifest = self._loaded()
        if manifest is None or manifest.id != definition["snapshot"]:
            found = "no rows of a DataFrame" if manifest is None else f"the rows of snapshot {manifest.id}"
            raise ReplayMismatchError(
                f"the log continues with the rows of snapshot {definition['snapshot']}, of which {definition['left']} are "
                f"behind the last batch, but {self._folder} has {found}. Bring the folder back, or {_BEGIN_AGAIN}"
            )
        return manifest

    def _written(self, df: DataFrame) -> Manifest:
        limits = ChunkLimits(*(max(1, limit // CHUNKS_PER_BATCH) for limit in self._limits))
        manifest = write_dataframe(df, self._folder, self._fields, limits, self._owner)
        _log.info("wrote %d rows in %d chunks to %s", manifest.rows, len(manifest.chunks), self._folder)
        return manifest

    def _done(self, definition: Definition) -> None:
        if self._keep:
            return
        manifest = self._manifest or read_manifest(self._folder)
        if manifest is not None and manifest.id == definition["snapshot"] and not manifest.consumed:
            remove_rows(self._folder, manifest)
            self._manifest = read_manifest(self._folder)


class _Writing:
    """Writes in a thread; `result` begins it, and returns None until it is done."""

    def __init__(self, write: Callable[[], Manifest]) -> None:
        self._write, self._tag = write, f"trident-rows-{uuid.uuid4().hex}"
        self._thread: threading.Thread | None = None
        self._manifest: Manifest | None = None
        self._error: Exception | None = None
        self.is_on = False

    def result(self) -> Manifest | None:
        if self._thread is None:
            self.is_on = True
            self._thread = threading.Thread(target=self._run, name="dataframe-rows", daemon=True)
            self._thread.start()
        if self._thread.is_alive():
            return None
        if self._error is not None:
            error, self._error, self._thread = self._error, None, None  # the next call tries again
            raise SpoutError(f"the rows of a DataFrame cannot be written: {said_by_spark(error)}") from error
        self.is_on = False
        return self._manifest

    def _run(self) -> None:
        from pyspark import SparkContext

        try:
            context = SparkContext._active_spark_context  # noqa: SLF001  PySpark has no public question
            if context is not None:
                context.addJobTag(self._tag)
            self._manifest = self._write()
        except Exception as error:  # noqa: BLE001  raised by the next `result`
            self._error = error

    def cancel(self) -> None:
        from pyspark import SparkContext

        context = SparkContext._active_spark_context  # noqa: SLF001  as above
        if self._thread is not None and self._thread.is_alive() and context is not None:
            context.cancelJobsWithTag(self._tag)
            self._thread.join(10)
