"""DeltaSpout: a Delta table as a stream, version by version, through delta-rs; no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from spouts.delta.table_log import TableLog, TablePlace
from spouts.delta.version_batches import ChangeRules, DeltaCoordinator
from spouts.delta.version_rows import CHANGE_FIELDS, DeltaEmitter, fields_of_table
from spouts.files.parquet_spout import typed_as
from trident.arrow import schema_of
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import OnNewLog, SpoutType


class DeltaSpout:
    """Emits what is appended to a Delta table, or all changes of it, each once. Transactional.

    Parameters
    ----------
    table
        A folder, or the URL of an object store. All workers must see it under the same name.
    fields
        The columns to read; others are not read from the files. A type that is not declared comes from the table. None:
        all columns that the table has now.
    mode
        `"append"`: the rows of files that are added. `"changes"`: the change data feed, with `_change_type` (`insert`,
        `update_preimage`, `update_postimage`, `delete`), `_commit_version` and `_commit_timestamp` after the fields.
    starting_version
        Where the stream begins if its topology has no log yet. `"earliest"`: with the whole table as it is then (as
        inserts), followed by what comes after it. `"latest"`: with the next version. A number: with that version.
    on_removal
        With `mode="append"`, what to do about a version that removes rows (an update, a delete, a merge, an overwrite):
        `"error"`; `"skip"`, nothing of it is read; `"added_files"`, all files that it wrote are read, copied rows too.
    max_batch_bytes, max_batch_files
        The greatest number of packed bytes and of files of one batch. A larger file makes a batch of its own.
    storage_options
        Options of the object store, as delta-rs takes them.
    """

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(
        self,
        table: str | PathLike[str],
        fields: FieldsLike | None = None,
        *,
        mode: str = "append",
        starting_version: int | str = "earliest",
        on_removal: str = "error",
        max_batch_bytes: int = 64 << 20,
        max_batch_files: int = 1000,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        _check("mode", mode, ("append", "changes"))
        _check("on_removal", on_removal, ("error", "skip", "added_files"))
        if isinstance(starting_version, str):
            _check("starting_version", starting_version, ("earliest", "latest"))
        elif starting_version < 0:
            raise ValueError(f"starting_version is {starting_version}; versions begin at 0")
        for name, limit in (("max_batch_bytes", max_batch_bytes), ("max_batch_files", max_batch_files)):
            if limit < 1:
                raise ValueError(f"{name} is {limit}; it must be at least 1")
        self._place = TablePlace(fspath(table), storage_options)
        self._fields = self._typed(None if fields is None else Fields(fields))
        self._rules = ChangeRules(self._place.name, self._fields, mode, on_removal)
        self._limits, self._start = (max_batch_bytes, max_batch_files), starting_version
        self.on_new_log: OnNewLog = "elsewhere" if starting_version == "latest" else "start"
        self._with_changes = mode == "changes"
        self._output = Fields(self._fields, CHANGE_FIELDS) if self._with_changes else self._fields

    def get_output_fields(self) -> Fields:
        return self._output

    def get_coordinator(self, conf: Mapping[str, Any]) -> DeltaCoordinator:
        """Open the driver's side; `SpoutError` if there is no such table."""
        self._place.table()
        return DeltaCoordinator(TableLog(self._place), self._rules, self._limits, self._start)

    def get_emitter(self, conf: Mapping[str, Any]) -> DeltaEmitter:
        """Return the worker's side."""
        return DeltaEmitter(self._place, self._fields, self._with_changes)

    def _typed(self, fields: Fields | None) -> Fields:
        if fields is not None and None not in fields.types:
            schema_of(fields)
            return fields
        _, metadata = TableLog(self._place).metadata()
        there = fields_of_table(metadata.schema)
        if fields is None:
            return there
        return typed_as(fields, there.names, there.type_of, f"the Delta table {self._place.name}")


def _check(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be {' or '.join(map(repr, choices))}")
