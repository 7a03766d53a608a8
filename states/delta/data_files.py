"""The data files of a Delta table: written whole before any log entry names them, deleted once no version needs them.

A file's name gives the range of `_seq` of its rows. The log holds no bounds of its columns: readers through delta-rs and
Arrow skip files that have bounds for some columns and not for all, and not every type has bounds.

A version can be read as long as a checkpoint at or before it, the log entries since, and its data files are there. So old
versions go from the oldest on, up to a checkpoint, which stays: first the data files that their entries removed, then the
entries. After a kill in between, the entries that are still there name what is left.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem

from states.delta.layout import SEQ_COLUMN
from states.delta.local_folder import LOG

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

_NAME = re.compile(r"part-(\d{10,})-(\d{10,})-[\da-f-]{36}\.snappy\.parquet")
"""The file of a commit; those of other programs have the eight digits of a UUID in the second place, sometimes decimal ones."""
_OF_A_TABLE = re.compile(r"part-[\w.=-]+\.parquet")
_LOG_FILE = re.compile(r"(\d{20})\.(json|crc|checkpoint\.[\w.-]*(?:parquet|json))")
_ENTRY, _CHECKPOINT = "json", "checkpoint.parquet"


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

    def remove_action(self) -> RemoveAction:
        """Return the action that takes the file out of the table, because its rows are in another file now."""
        from deltalake.transaction import RemoveAction

        # Without the time: a checkpoint holds the removals of a week, and each would be larger than the one before. When
        # the file may be deleted is decided by the log entry of the removal (`removed_since`).
        return RemoveAction(self.path, False, 0, self.size, {})


def in_turn(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Return files in groups, each of whose rows come before the next one's; files overlap if another program merged them."""
    groups, last = list[list[DataFile]](), -1
    for file in sorted(files, key=lambda file: file.first):
        if not groups or file.first > last:
            groups.append([])
        groups[-1].append(file)
        last = max(last, file.last)
    return groups


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


def add_action(name: str, size: int, rows: int, new_rows: bool) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(name, size, {}, int(time.time() * 1000), new_rows, json.dumps({"numRecords": rows}))


class _LogFile(NamedTuple):
    version: int
    kind: str
    path: str


def delete_versions_before(system: FileSystem, version: int, used: Collection[str]) -> None:
    """Delete the versions before the last checkpoint that is not after `version`, the oldest that must stay readable.

    `used`: the data files of the newest version: another program may have brought removed files back (RESTORE).
    """
    files = _log_files(system)
    first = max((file.version for file in files if file.kind == _CHECKPOINT and file.version <= version), default=0)
    old = [file for file in files if file.version < first]
    for file in old:
        if file.kind == _ENTRY:
            delete_files(
                system, [name for name in _removed_paths(actions_of(system, file.version)) if name not in used]
            )
    delete_files(system, [file.path for file in old])


def removed_since(system: FileSystem, time_ms: int) -> set[str]:
    """Return the data files that the log entries since a time removed: versions of that time need them."""
    files = set[str]()
    for file in reversed(_log_files(system)):
        if file.kind == _ENTRY:
            actions = actions_of(system, file.version)
            notes = (action["commitInfo"] for action in actions if "commitInfo" in action)
            if 0 < max((int(note.get("timestamp", 0)) for note in notes), default=0) < time_ms:
                break
            files.update(_removed_paths(actions))
    return files


def only_data_files(names: Sequence[str]) -> list[str]:
    """Select, from files that a table does not use, the ones named like its own, which may be deleted."""
    return [name for name in names if _OF_A_TABLE.fullmatch(name)]


def delete_files(system: FileSystem, names: Sequence[str]) -> None:
    """Delete files; those that are gone already do not matter."""
    for name in names:
        with suppress(FileNotFoundError):
            system.delete_file(name)


def _log_files(system: FileSystem) -> list[_LogFile]:
    files = system.get_file_info(FileSelector(LOG, allow_not_found=True))
    names = ((_LOG_FILE.fullmatch(info.base_name), info.path) for info in files)
    return sorted(_LogFile(int(name[1]), name[2], path) for name, path in names if name is not None)


def actions_of(system: FileSystem, version: int) -> list[dict[str, Any]]:
    """Return what the log entry of a version says; nothing if it is not there any more."""
    try:
        with system.open_input_stream(f"{LOG}/{version:020}.json") as entry:
            return [json.loads(line) for line in entry.read().splitlines()]
    except FileNotFoundError:  # another writer has deleted it
        return []


def _removed_paths(actions: Sequence[dict[str, Any]]) -> Iterator[str]:
    return (action["remove"]["path"] for action in actions if "remove" in action)
