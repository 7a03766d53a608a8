"""The files that tasks stage for the table of the changes: written whole, shown by no version until one adds them.

A staged file is in a folder inside the table, which readers and clean-ups leave alone. Its name says which run of which
attempt wrote it. To publish it, the driver moves it to where data files are, and adds it as one version of the table. What is
left in the folder is of attempts that are no longer published, as soon as a later attempt begins.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow as pa
from pyarrow.fs import FileSelector

from states.delta.data_files import added, name_of
from states.delta.faults import VersionMoved
from states.delta.fence import moved_by_compactions
from states.delta.state_table import StateTable
from trident.errors import BackendError, StateError
from trident.state.txid import Sentinel

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

__all__ = ["STAGED", "Staged", "StagedFiles", "StagedName"]

_LOGGER = logging.getLogger(__name__)
STAGED = "_staged"
_NAME = re.compile(r"([\da-f]{16})-(\d+)-(\d+)-(\d+)-(\w*)\.parquet")
_TRIES = 5


class StagedName(NamedTuple):
    """Who staged a file: the log, the batch, the attempt, the partition, and the run of the task."""

    log: str
    txid: int
    attempt: int
    partition: int
    run: str

    @classmethod
    def of_commit(cls, own: Sentinel, partition: int) -> Self:
        """Return the name for a commit by its sentinel."""
        return cls(_digest(own.incarnation), own.txid, own.attempt, partition, own.run)

    @classmethod
    def of_file(cls, name: str) -> Self | None:
        """Return the name of a file; None if it is not one of ours."""
        found = _NAME.fullmatch(name)
        return found and cls(found[1], int(found[2]), int(found[3]), int(found[4]), found[5])

    def is_other_run_of(self, own: StagedName) -> bool:
        """Whether another run of the same task wrote it."""
        return self[:4] == own[:4] and self.run != own.run

    def is_stale(self, incarnation: str, attempt: int) -> bool:
        """Whether it is of an attempt up to this one, or of another log."""
        return self.log != _digest(incarnation) or self.attempt <= attempt

    def __str__(self) -> str:
        return f"{self.log}-{self.txid}-{self.attempt}-{self.partition}-{self.run}.parquet"


class Staged(NamedTuple):
    """What a task has staged: plain data, which goes through the driver.

    Attributes
    ----------
    name
        The file.
    size, rows, seq
        Its bytes, its rows, and the `_seq` of all of them.
    version
        The version of the table that its values are based on.
    """

    name: str
    size: int = 0
    rows: int = 0
    seq: int = 0
    version: int = 0

    def packed(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(self).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Return what was packed."""
        return cls(*json.loads(data))


class StagedFiles:
    """The folder of staged files of a table of changes."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def stage(self, rows: pa.Table, seq: int, based_on: int, name: StagedName) -> Staged:
        """Write rows, all of one `_seq`, into a file that no version shows.

        Raises
        ------
        BackendError
            The store refused.
        """
        path = f"{STAGED}/{name}"
        with self._table.or_forgotten("stage a commit to"):
            self._table.filesystem().create_dir(STAGED)
        written = self._table.data_file(rows, (seq, seq), name=path)
        assert written is not None, "a sentinel is a row"
        return Staged(str(name), written.size, rows.num_rows, seq, based_on)

    def publish(self, staged: Staged, app: tuple[str, int], note: Mapping[str, str]) -> bool:
        """Add what was staged as one version; False if another commit than a compaction came first: nothing was written.

        Raises
        ------
        BackendError
            The file is gone, or the store refused.
        """
        table = self._table
        table.refresh()
        if table.version != staged.version and not moved_by_compactions(table, staged.version):
            return False
        file = self._moved(staged)
        for _ in range(_TRIES):
            at = table.version
            try:
                table.append([file], "append", app, note)
                return True
            except VersionMoved:
                if not moved_by_compactions(table, at):
                    break
        with suppress(OSError):
            table.filesystem().delete_file(file.path)
        return False

    def names(self) -> Iterator[StagedName]:
        """Iterate over the files that are staged now."""
        with self._table.or_forgotten("list what is staged for"):
            found = self._table.filesystem().get_file_info(FileSelector(STAGED, allow_not_found=True))
        yield from (name for info in found if (name := StagedName.of_file(info.base_name)) is not None)

    def discard(self, incarnation: str, attempt: int) -> None:
        """Delete what attempts up to this one, and other logs, have staged; a failure only postpones it."""
        try:
            for name in [one for one in self.names() if one.is_stale(incarnation, attempt)]:
                with suppress(FileNotFoundError):
                    self._table.filesystem().delete_file(f"{STAGED}/{name}")
        except (StateError, OSError, VersionMoved) as error:
            _LOGGER.warning("lost files in %s of Delta table %s are deleted later: %s", STAGED, self._table.name, error)

    def _moved(self, staged: Staged) -> AddAction:
        """Move a file to the others, durably, and return the action that adds it."""
        name = name_of(staged.seq, staged.seq)
        with self._table.or_forgotten("publish a commit to"):
            try:
                self._table.filesystem().move(f"{STAGED}/{staged.name}", name)
            except FileNotFoundError as error:
                raise BackendError(
                    f"{self._table.name}: what a task staged ({staged.name}) is gone; the batch may be replayed"
                ) from error
        self._table.sync_data(name)
        return added(name, staged.size, staged.rows, True)


def _digest(incarnation: str) -> str:
    return blake2b(incarnation.encode(), digest_size=8).hexdigest()
