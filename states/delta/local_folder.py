"""The folder of a Delta table on a local disk: what is synced, and what a power failure may leave behind.

A commit is done once its log entry, the data files that the entry names and all entries before it are synced; data first. So
a damaged entry at the very end of the log was never acknowledged, and may be renamed. A whole entry that lacks its data comes
from another program, or from a loss: only a writer whose log never recorded that batch may rename it.
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trident.errors import StateError

_LOGGER = logging.getLogger(__name__)
LOG = "_delta_log"
INSIDE = "_trident"  # where the changes of a state are
_ENTRY = re.compile(r"(\d{20})\.json$")
_LOG_FILE = re.compile(r"\d{20}\.(json|checkpoint.*)$")
# Entries that a killed process may have left unsynced: its last commit, and a compaction beside it.
_UNSURE = 3
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.(.*\.)?parquet$")
_HINT = "_last_checkpoint"
_PARQUET = b"PAR1"

TXN_IS_LAST = "trident.txn_is_last"
"""The mark of our commits: their log entry is whole only if its last line is a transaction."""


class TableFolder:
    """The folder of one table, which need not exist."""

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path, self._log, self._fsync = path, path / LOG, fsync
        self._synced: int | None = None
        self._doubtful: set[Path] = set()

    def has_entry(self, version: int) -> bool:
        return self._entry(version).exists()

    def entry_id(self, version: int) -> int:
        """Return the identity of the file with the log entry of a version; 0 if there is none."""
        try:
            status = self._entry(version).stat()
        except FileNotFoundError:
            return 0
        return hash((status.st_ino, status.st_mtime_ns))

    def refuse_other_content(self) -> None:
        """Raise `StateError` if there is something here that is not a Delta table."""
        try:
            names = sorted({path.name for path in self.path.iterdir()} - {INSIDE})
        except FileNotFoundError:
            return
        # A log without an entry is not other content: a crash during the creation leaves it.
        started = names == [LOG] and not (set(self._names(_LOG_FILE)) - {path.name for path in self._damaged_end()})
        if names and not started:
            raise StateError(
                f"open Delta table {self.path}: the directory holds {names[:5]} and is not a Delta table. Nothing was "
                "written. Give the state a path of its own, or restore _delta_log"
            )

    def first_damaged_version(self, without_data: bool = False) -> int | None:
        """Return the first of the damaged entries at the end of the log; None: the last is whole (and has its data)."""
        damaged = self._damaged_end(without_data)
        return int(damaged[0].stem) if damaged else None

    def is_damaged(self, version: int, without_data: bool = False) -> bool:
        try:
            return not self._is_sound(self._entry(version), without_data)
        except FileNotFoundError:
            return False

    def set_damaged_aside(self, without_data: bool = False) -> None:
        """Rename damaged entries at the end of the log to `….json.damaged`, and log a warning."""
        for entry in reversed(self._damaged_end(without_data)):
            aside = entry.with_name(f"{entry.name}.damaged")
            entry.rename(aside)
            _LOGGER.warning(
                "the last log entry of Delta table %s %s, as a power failure leaves it; it was never acknowledged and is "
                "set aside as %s",
                self.path,
                "lacks its data" if without_data else "is damaged",
                aside.name,
            )
            if self._fsync:
                _fsync(self._log)

    def set_cut_checkpoint_aside(self) -> None:
        """Rename the newest checkpoint if it is cut, and the hint to it; its log entries are still there."""
        files = self._newest_checkpoint()
        if any(map(is_cut, files)):
            hint = self._log / _HINT
            for name in [*([hint] if hint.exists() else []), *files]:
                name.rename(name.with_name(f"{name.name}.damaged"))
            _LOGGER.warning("the checkpoint %s of Delta table %s is cut and set aside", files[0].name, self.path)

    def sync_checkpoint(self) -> None:
        """Sync the newest checkpoint, before anything that it holds is deleted."""
        if self._fsync:
            for name in [*self._newest_checkpoint(), self._log / _HINT]:
                _fsync(name)
            _fsync(self._log)

    def _newest_checkpoint(self) -> list[Path]:
        names = sorted(self._names(_CHECKPOINT))
        return [self._log / name for name in names if name[:20] == names[-1][:20]]

    def _damaged_end(self, without_data: bool = False) -> list[Path]:
        # Ascending. Every damaged entry from the last one back to the first whole one.
        names = sorted(self._names(_ENTRY), reverse=True)
        damaged: list[Path] = []
        for name in names:
            if self._is_sound(self._log / name, without_data):
                break
            damaged.insert(0, self._log / name)
        return damaged

    def _is_sound(self, entry: Path, without_data: bool) -> bool:
        data = entry.read_bytes()
        return is_whole(data, int(entry.stem)) and not (
            without_data and any(is_cut(self._data(added), added["size"]) for added in added_files(data))
        )

    def _data(self, added: Mapping[str, Any]) -> Path:
        return self.path / unquote(added["path"])

    def _names(self, pattern: re.Pattern[str]) -> list[str]:
        try:
            return [path.name for path in self._log.iterdir() if pattern.match(path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextmanager
    def sync_created(self) -> Iterator[None]:
        """Sync what is created within: the folder, new folders above it, and the first log entry."""
        there = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        yield
        if self._fsync:
            self.sync(0, own=True)
            for folder in (self.path, *self.path.parents):
                _fsync(folder)
                if folder == there:
                    break

    def sync_data(self, name: str) -> None:
        if self._fsync:
            _fsync(self.path / name)
            _fsync(self.path)

    def sync(self, version: int, own: bool) -> None:
        """Sync a version and all that it is based on; `own` says whether this process has just made it."""
        if not self._fsync or self._synced == version:
            return
        first = max(version - _UNSURE, 0) if self._synced is None else self._synced + 1
        # Oldest first, data before the log, because nothing may survive a power failure without what it needs.
        for one in range(first, version + 1):
            self._sync_entry(one, own and one == version)
        _fsync(self._log)
        self._synced = version

    def _sync_entry(self, version: int, own: bool) -> None:
        entry = self._entry(version)
        try:
            if not own:  # the data of our own version was synced before it was made
                for added in added_files(entry.read_bytes()):
                    self._force(self._data(added))
                _fsync(self.path)
            self._force(entry)
        except FileNotFoundError:
            if own:  # an earlier version may have been compacted and cleaned up since
                raise

    def _force(self, name: Path) -> None:
        # After a failed fsync the system treats the pages that it could not write as written, and the next fsync
        # succeeds. Only bytes that are written again can be synced again.
        if name not in self._doubtful:
            self._doubtful.add(name)
            try:
                _fsync(name)
            except FileNotFoundError:
                self._doubtful.remove(name)
                raise
            except OSError as error:
                _LOGGER.warning("fsync of %s failed (%s); writing it again", name, error)
            else:
                self._doubtful.remove(name)
                return
        if name.parent == self._log and not self._is_sound(name, without_data=False):
            raise OSError(errno.EIO, "the bytes of a log entry were lost when the disk refused them", str(name))
        other = name.with_name(f".{name.name}.tmp")
        other.unlink(missing_ok=True)
        shutil.copy2(name, other)
        _fsync(other)
        other.replace(name)
        _fsync(name.parent)
        self._doubtful.remove(name)

    def _entry(self, version: int) -> Path:
        return self._log / f"{version:020}.json"


def _fsync(name: Path) -> None:
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
