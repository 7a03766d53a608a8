"""The data files of a Delta table: written whole before any log entry names them.

A file's name gives the range of `_seq` of its rows. The log holds no bounds of its columns: readers through delta-rs and Arrow
skip files that have bounds for some columns and not for all, and not every type has bounds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from states.delta.faults import VersionMoved
from states.delta.layout import SEQ_COLUMN

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

_ROWS_PER_GROUP = 1 << 20
_NAME = re.compile(r"part-(\d{10,})-(\d{10,})-[\da-f-]{36}\.snappy\.parquet")
"""The file of a commit; those of other programs have the eight digits of a UUID in the second place, sometimes decimal ones."""


class DataFile(NamedTuple):
    """A data file: its name, its bytes and rows, and the lowest and highest `_seq` among these."""

    path: str
    size: int
    rows: int
    first: int
    last: int

    @staticmethod
    def of(fact: Mapping[str, Any]) -> DataFile:
        """Return the file of a log entry; files of other programs have bounds in the entry."""
        name = _NAME.fullmatch(fact["path"])
        first, last = (
            (fact.get(f"{end}.{SEQ_COLUMN}") or 0 for end in ("min", "max")) if name is None else name.groups()
        )
        return DataFile(fact["path"], fact["size_bytes"], fact["num_records"] or 0, int(first), int(last))

    def removed(self) -> RemoveAction:
        """Return the action that takes the file out of the table, because its rows are in another file now."""
        from deltalake.transaction import RemoveAction

        # Without the time: a checkpoint holds the removals of a week, and each would be larger than the one before. When
        # the file may be deleted is decided by the log entry of the removal (`old_versions`).
        return RemoveAction(self.path, False, 0, self.size, {})


def data_files(table: DeltaTable) -> list[DataFile]:
    """Return the data files of a table, in the order of their rows' `_seq`."""
    facts = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return sorted(map(DataFile.of, facts), key=lambda file: file.first)


def in_turn(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Return files in groups, each of whose rows come before the next one's; files overlap if another program merged them."""
    groups, last = list[list[DataFile]](), -1
    for file in sorted(files, key=lambda file: file.first):
        if not groups or file.first > last:
            groups.append([])
        groups[-1].append(file)
        last = max(last, file.last)
    return groups


def write_file(
    rows: pa.Table,
    seq: tuple[int, int],
    schema: pa.Schema,
    system: FileSystem,
    new_rows: bool,
    name: str | None = None,
) -> AddAction | None:
    """Write rows into a file of their own; return the action that adds it, None without any row.

    `seq`: the lowest and highest `_seq` of the rows.
    `schema`: of the table.
    `system`: the table's folder.
    `new_rows`: False for rows that were in the table before.
    `name`: of the file, where no version shows it yet; None: as of a data file.
    """
    if not rows.num_rows:
        return None
    name = name or name_of(*seq)
    try:
        size = write_parquet(rows if rows.schema == schema else rows.cast(schema), name, system, _ROWS_PER_GROUP)
    except FileNotFoundError as error:
        raise VersionMoved(f"the folder of the table is gone: {error}") from error
    return added(name, size, rows.num_rows, new_rows)


def write_parquet(rows: pa.Table, name: str, system: FileSystem, rows_per_group: int, **how: Any) -> int:
    """Write rows into a file of their own, whole or not at all; return its bytes. `how`: of `ParquetWriter`."""
    try:
        with system.open_output_stream(name) as sink:
            with pq.ParquetWriter(sink, rows.schema, **how) as writer:
                writer.write_table(rows, rows_per_group)
            return int(sink.tell())
    except BaseException:
        with suppress(OSError):
            system.delete_file(name)
        raise


def name_of(first: int, last: int) -> str:
    """Return a name for a new data file whose rows have these lowest and highest `_seq`."""
    return f"part-{first:010}-{last:010}-{uuid4()}.snappy.parquet"


def added(name: str, size: int, rows: int, new_rows: bool) -> AddAction:
    """Return the action that adds a data file to a table."""
    from deltalake.transaction import AddAction

    return AddAction(name, size, {}, int(time.time() * 1000), new_rows, json.dumps({"numRecords": rows}))
