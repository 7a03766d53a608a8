"""Commits that tasks stage and their driver publishes (`docs/internals/placement.md`).

A task stages its puts as a data file in a folder inside the table, which readers and clean-ups leave alone; its name says
which run of which attempt wrote it. The driver moves it to the data files and adds it to the table, in one transaction based
on the version that the task read. What is left in the folder is of attempts that are no longer published, as soon as a later
one begins.

A task keeps its index for the next batch: what it staged is in it as soon as the table shows it; if the table shows something
else, it is read again. Of a state beyond memory a task keeps what changed since the last merge; the driver keeps nothing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Self

from pyarrow.fs import FileSelector

from states.delta.data_files import add_action, name_of
from states.delta.faults import VersionMoved
from states.delta.fence import STAGED_AS, CommitNote, commit_past_compactions, moved_by_compactions
from states.delta.index import Index
from states.delta.layout import Puts
from states.delta.state_tables import StateTables
from trident.errors import BackendError, SecondRunError, StateError
from trident.state.txid import Sentinel, Txid

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

_LOGGER = logging.getLogger(__name__)


class Staging:
    """What tasks have staged of one state; in a task, and in the driver."""

    def __init__(self, tables: StateTables, partition: int) -> None:
        self._table, self._layout, self._partition = tables.changes, tables.layout, partition
        self._what, self._app = tables.what, tables.app
        self.is_on = False  # whether the commit that ends is staged
        self._staged: Staged | None = None
        self._has_looked = False  # for what earlier drivers and their tasks have staged
        self._discarded = 0  # the last attempt whose lost files the driver has looked for

    # ---- in a task ------------------------------------------------------------------------------------------------

    def staged_by(self, commit: Callable[[], None]) -> bytes:
        """Call what ends the commit, and stage it instead of committing it; return what `publish` needs."""
        self.is_on, self._staged = True, None
        try:
            commit()
        finally:
            self.is_on = False
        if self._staged is None:
            raise StateError(f"nothing was staged for {self._what}")
        return self._staged.to_bytes()

    def begin(self, claim: Sentinel, txid: Txid) -> None:
        """Delete what earlier attempts have staged; raise `SecondRunError` if another run of this task has staged."""
        own = StagedName.of_commit(claim, self._partition)
        if any(name[:4] == own[:4] and name.run != own.run for name in self._names()):  # of the same task
            raise SecondRunError(self._what, str(claim))
        self.discard(claim.incarnation, txid.attempt - 1)

    def stage(self, index: Index, puts: Puts, claim: Sentinel) -> None:
        """Write puts and the sentinel into a file that no version shows, based on the version of the index."""
        assert index.version is not None, "a commit has begun"
        name, seq = StagedName.of_commit(claim, self._partition), index.next_seq
        path, rows = f"{STAGED}/{name}", self._layout.table(puts, seq, claim)
        with self._table.or_forgotten("stage a commit to"):
            self._table.filesystem().create_dir(STAGED)
        written = self._table.data_file(rows, (seq, seq), name=path)
        assert written is not None, "a sentinel is a row"
        self._staged = Staged(str(name), written.size, rows.num_rows, seq, index.version)
        index.note_staged(str(name), puts, claim, seq)

    # ---- in the driver --------------------------------------------------------------------------------------------

    def publish(self, own: Sentinel, txid: Txid, staged: Staged, *more: tuple[str, int]) -> bool:
        """Add what was staged as one version, with `more` transactions; False: another commit than a compaction came first."""
        table, self._has_looked = self._table, True
        if not moved_by_compactions(table, staged.version):
            return False
        file, note = self._move_staged(staged), CommitNote.of_commit(txid).metadata() | {STAGED_AS: staged.name}
        is_made = commit_past_compactions(
            table, table.version, lambda: table.append([file], "append", (self._app, own.version), note, *more)
        )
        if not is_made:
            with suppress(OSError):
                table.filesystem().delete_file(file.path)
        return is_made

    def discard(self, incarnation: str, attempt: int) -> None:
        """Delete what attempts up to this one, and other logs, have staged; a failure only postpones it."""
        try:
            log = _digest(incarnation)
            for name in [one for one in self._names() if one.log != log or one.attempt <= attempt]:
                with suppress(FileNotFoundError):
                    self._table.filesystem().delete_file(f"{STAGED}/{name}")
        except (StateError, OSError, VersionMoved) as error:
            _LOGGER.warning("lost files in %s of Delta table %s are deleted later: %s", STAGED, self._table.name, error)

    def discard_before(self, own: Sentinel) -> None:
        """Delete once for each attempt, in a driver that commits by itself, what tasks of earlier ones have staged."""
        if self._discarded < own.attempt - 1:
            self._discarded = own.attempt - 1
            self.discard(own.incarnation, self._discarded)

    def discard_all(self, once: bool = False) -> None:
        """Delete all that is staged; with `once` only what earlier drivers and their tasks left, when this one begins."""
        if not (once and self._has_looked):
            self._has_looked = True
            self.discard("", 0)

    def _names(self) -> Iterator[StagedName]:
        with self._table.or_forgotten("list what is staged for"):
            files = self._table.filesystem().get_file_info(FileSelector(STAGED, allow_not_found=True))
        yield from (name for info in files if (name := StagedName.of_file(info.base_name)) is not None)

    def _move_staged(self, staged: Staged) -> AddAction:
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
        return add_action(name, staged.size, staged.rows, True)


STAGED = "_staged"
_NAME = re.compile(r"([\da-f]{16})-(\d+)-(\d+)-(\d+)-(\w*)\.parquet")


class StagedName(NamedTuple):
    """Who staged a file: the log, the batch, the attempt, the partition, and the run of the task."""

    log: str
    txid: int
    attempt: int
    partition: int
    run: str

    @classmethod
    def of_commit(cls, own: Sentinel, partition: int) -> Self:
        return cls(_digest(own.incarnation), own.txid, own.attempt, partition, own.run)

    @classmethod
    def of_file(cls, name: str) -> Self | None:
        """Return the name of a file; None if it is none of ours."""
        match = _NAME.fullmatch(name)
        return match and cls(match[1], int(match[2]), int(match[3]), int(match[4]), match[5])

    def __str__(self) -> str:
        return f"{self.log}-{self.txid}-{self.attempt}-{self.partition}-{self.run}.parquet"


class Staged(NamedTuple):
    """What a task has staged: plain data, which goes through the driver."""

    name: str
    size: int = 0
    rows: int = 0
    seq: int = 0  # of all its rows
    version: int = 0  # of the table that its values are based on

    def to_bytes(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(*json.loads(data))


def _digest(incarnation: str) -> str:
    return blake2b(incarnation.encode(), digest_size=8).hexdigest()
