"""What only old versions of a table need: their log entries, the checkpoints before them, and the files that they replaced.

A version can be read as long as a checkpoint at or before it, the log entries since, and its data files are there. So old
versions go from the oldest on, up to a checkpoint, which stays. First the data files that their entries removed: no
later version has them, unless another program has brought them back. Then the entries, oldest first. After a kill in
between, the entries that are still there name what is left, and the next run deletes that.

What a log entry and a data file of a Delta table look like when they are whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow.fs import FileSelector, FileSystem

_LOG = "_delta_log"
_LOG_FILE = re.compile(r"(\d{20})\.(json|crc|checkpoint\.[\w.-]*(?:parquet|json))")
_ENTRY, _CHECKPOINT = "json", "checkpoint.parquet"


class _LogFile(NamedTuple):
    version: int
    kind: str
    path: str


def delete_versions_before(system: FileSystem, version: int, used: Collection[str]) -> None:
    """Delete the versions before the last checkpoint that is not after `version`; nothing if there is none.

    `system`: the table's folder.
    `version`: the oldest version that must stay readable.
    `used`: the data files of the newest version: another program may have brought removed files back (RESTORE).
    """
    files = _log_files(system)
    first = max((file.version for file in files if file.kind == _CHECKPOINT and file.version <= version), default=0)
    old = [file for file in files if file.version < first]
    for file in old:
        if file.kind == _ENTRY:
            delete_files(system, [name for name in _removed(_actions(system, file.path)) if name not in used])
    delete_files(system, [file.path for file in old])


def removed_since(system: FileSystem, time_ms: int) -> set[str]:
    """Return the data files that the log entries since a time removed: versions of that time need them."""
    files = set[str]()
    for file in reversed(_log_files(system)):
        if file.kind == _ENTRY:
            actions = _actions(system, file.path)
            if 0 < _time_of(actions) < time_ms:
                break
            files.update(_removed(actions))
    return files


def delete_files(system: FileSystem, names: Sequence[str]) -> None:
    """Delete files; those that are gone already do not matter."""
    for name in names:
        with suppress(FileNotFoundError):
            system.delete_file(name)


def _log_files(system: FileSystem) -> list[_LogFile]:
    """Return the files of the log, oldest version first."""
    files = system.get_file_info(FileSelector(_LOG, allow_not_found=True))
    names = ((_LOG_FILE.fullmatch(info.base_name), info.path) for info in files)
    return sorted(_LogFile(int(name[1]), name[2], path) for name, path in names if name is not None)


def _actions(system: FileSystem, path: str) -> list[dict[str, Any]]:
    try:
        with system.open_input_stream(path) as entry:
            return [json.loads(line) for line in entry.read().splitlines()]
    except FileNotFoundError:  # another writer has deleted it
        return []


def _removed(actions: Sequence[dict[str, Any]]) -> Iterator[str]:
    return (action["remove"]["path"] for action in actions if "remove" in action)


def _time_of(actions: Sequence[dict[str, Any]]) -> int:
    notes = (action["commitInfo"] for action in actions if "commitInfo" in action)
    return max((int(note.get("timestamp", 0)) for note in notes), default=0)


TXN_IS_LAST = "trident.txn_is_last"
"""The mark of our commits: their log entry is whole only if its last line is a transaction."""

_PARQUET = b"PAR1"


def is_whole(data: bytes, version: int) -> bool:
    """Return whether the log entry of a version was written to its end."""
    # A cut at the end of a line leaves valid lines: half a batch, or a compaction that only removes. But delta-rs writes
    # the transaction of a commit last, and the commits made here say that they have one.
    try:
        actions: Sequence[Any] = [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return False
    if not actions or not all(isinstance(action, dict) for action in actions):
        return False
    kinds = {kind for action in actions for kind in action}
    if version == 0 and not {"protocol", "metaData"} <= kinds:
        return False
    notes = [note for action in actions if isinstance(note := action.get("commitInfo"), dict)]
    return "txn" in actions[-1] if any(TXN_IS_LAST in note for note in notes) else True


def added_files(entry: bytes) -> list[Mapping[str, Any]]:
    """Return the data files that a log entry adds."""
    return [action["add"] for action in map(json.loads, entry.splitlines()) if "add" in action]


def is_cut(name: Path, size: int | None = None) -> bool:
    """Return whether a Parquet file is missing, or not as long as it should be."""
    try:
        data = name.open("rb")
    except FileNotFoundError:
        return True
    with data:
        length = data.seek(0, os.SEEK_END)
        if length < 2 * len(_PARQUET) or (size is not None and size != length):
            return True
        ends = []
        for at in (0, length - len(_PARQUET)):
            data.seek(at)
            ends.append(data.read(len(_PARQUET)))
        return ends != [_PARQUET, _PARQUET]
