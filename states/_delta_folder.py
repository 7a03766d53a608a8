"""The folder of a Delta table on a local disk: what is forced to the disk, and what a power failure may leave behind.

A commit counts as done once its log entry, the data files that the entry names and all entries before it were forced to
the disk. So an entry at the very end of the log that is damaged was never acknowledged, and may be set aside.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trident.errors import ConfigError, StateError
from trident.redaction import redacted

__all__ = ["TXN_IS_LAST", "TableFolder", "local_path"]

TXN_IS_LAST = "trident.txn_is_last"
"""Noted with each commit: its log entry is whole only if its last line is a transaction."""

_LOGGER = logging.getLogger(__name__)
_LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json$")
_LOG_FILE = re.compile(r"\d{20}\.(json|checkpoint.*)$")
# Entries that a process which was killed may have left unsynced: its last commit, and a compaction beside it.
_UNSURE = 3


def local_path(path: str) -> Path | None:
    """Return the folder that a path or `file://` URL names; None for the URL of an object store.

    Raises
    ------
    ConfigError
        A URL that went through `pathlib` and lost a slash.
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", path):
        raise ConfigError(
            f"Delta table {redacted(path)!r} looks like a URL without its second slash; give URLs as text"
        )
    if path.startswith("file://"):
        return Path(unquote(urlsplit(path).path))
    return None if "://" in path else Path(path)


class TableFolder:
    """The folder of one table.

    Parameters
    ----------
    path
        The folder; need not exist.
    fsync
        Whether commits are forced to the disk.
    """

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path, self._log, self._fsync = path, path / _LOG, fsync
        self._synced: int | None = None

    def has_entry(self, version: int) -> bool:
        """Tell whether the log entry of a version is there."""
        return self._entry(version).exists()

    def refuse_other_content(self) -> None:
        """Raise `StateError` if there is something here that is no Delta table."""
        try:
            names = sorted(found.name for found in self.path.iterdir())
        except FileNotFoundError:
            return
        # What a crash in the middle of the creation leaves is no other content: a log without an entry.
        started = names == [_LOG] and not (set(self._names(_LOG_FILE)) - {found.name for found in self._damaged_end()})
        if names and not started:
            raise StateError(
                f"open Delta table {self.path}: the directory holds {names[:5]} and is no Delta table. Nothing was "
                "written. Give the state a path of its own, or restore _delta_log"
            )

    # ---- the end of the log ---------------------------------------------------------------------------------------

    def first_damaged_version(self) -> int | None:
        """Return the number of the first of the log entries at the end that are damaged; None if the last is whole."""
        damaged = self._damaged_end()
        return int(damaged[0].stem) if damaged else None

    def is_damaged(self, version: int) -> bool:
        """Tell whether the log entry of a version is there and damaged."""
        try:
            return not _is_whole(self._entry(version).read_bytes(), version)
        except FileNotFoundError:
            return False

    def set_damaged_aside(self) -> None:
        """Rename damaged entries at the end of the log to `….json.damaged`, and say so."""
        for entry in reversed(self._damaged_end()):
            aside = entry.with_name(f"{entry.name}.damaged")
            entry.rename(aside)
            _LOGGER.warning(
                "the last log entry of Delta table %s is damaged, as a power failure leaves it; it was never "
                "acknowledged and is set aside as %s",
                self.path,
                aside.name,
            )
            if self._fsync:
                _fsync(self._log)

    def _damaged_end(self) -> list[Path]:
        # Ascending. Every damaged entry from the last one back to the first whole one.
        names = sorted(self._names(_ENTRY), reverse=True)
        damaged: list[Path] = []
        for name in names:
            if _is_whole((self._log / name).read_bytes(), int(name[:20])):
                break
            damaged.insert(0, self._log / name)
        return damaged

    def _names(self, pattern: re.Pattern[str]) -> list[str]:
        try:
            return [found.name for found in self._log.iterdir() if pattern.match(found.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    # ---- durability -----------------------------------------------------------------------------------------------

    def sync(self, version: int) -> None:
        """Force a version and all that it is built upon to the disk."""
        if not self._fsync:
            return
        first = max(version - _UNSURE, 0) if self._synced is None else self._synced + 1
        # Oldest first, data before the log: nothing must survive a power failure that what it needs does not.
        for one in range(first, version + 1):
            self._sync_entry(one, version)
        _fsync(self.path)
        _fsync(self._log)
        self._synced = version

    def _sync_entry(self, version: int, committed: int) -> None:
        entry = self._entry(version)
        try:
            actions = map(json.loads, entry.read_text("utf-8").splitlines())
            for name in [self.path / unquote(action["add"]["path"]) for action in actions if "add" in action]:
                _fsync(name)
            _fsync(entry)
        except FileNotFoundError:
            if version == committed:  # an earlier one may have been compacted and cleaned up since
                raise

    def _entry(self, version: int) -> Path:
        return self._log / f"{version:020}.json"


def _is_whole(data: bytes, version: int) -> bool:
    # A cut at the end of a line leaves valid lines: half a batch, or a compaction that only removes. But delta-rs writes
    # the transaction of a commit last, and the commits made here say that they have one.
    try:
        actions: Sequence[Any] = [json.loads(line) for line in data.decode("utf-8").splitlines()]
    except ValueError:
        return False
    if not actions or not all(isinstance(action, dict) for action in actions):
        return False
    kinds = {kind for action in actions for kind in action}
    if version == 0 and not {"protocol", "metaData"} <= kinds:
        return False
    notes = [note for action in actions if isinstance(note := action.get("commitInfo"), dict)]
    return "txn" in actions[-1] if any(TXN_IS_LAST in note for note in notes) else True


def _fsync(name: Path) -> None:
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
