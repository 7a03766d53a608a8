"""Says who may commit next, and the note of each commit in the log of its table: batch, attempt, earlier winners.

The state never depends on the notes: they are for reading the past, and tell commits of rows from compactions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow.compute as pc

from states.delta.faults import VersionMoved
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN
from states.delta.state_table import ABSENT, COMPACTION, StateTable
from trident.state.txid import EVERYTHING_WON, Sentinel, Snapshot, Txid, Winners

_TRIES = 5


def newest_sentinel(table: StateTable) -> Sentinel | None:
    """Return the sentinel of the version last seen, None if there is none; reads no other rows."""
    if table.version == ABSENT:
        return None
    # The newest file has it, unless another program wrote that.
    newest = max(table.files(), key=lambda file: file.last, default=None)
    for files in ([] if newest is None else [newest], None):
        marks = table.scan(~pc.field(SENTINEL_COLUMN).is_null(), [SENTINEL_COLUMN, SEQ_COLUMN], files).to_pylist()
        latest = max(marks, key=lambda row: int(row[SEQ_COLUMN]), default=None)
        if latest is not None:
            return Sentinel(**latest[SENTINEL_COLUMN])
    return None


def moved_by_compactions(table: StateTable, since: int) -> bool:
    """Move to the newest version; return whether there were only compactions since, which change no content."""
    newest = table.refresh()
    if newest < since:
        return False
    unchanged = {entry["version"] for entry in table.notes(newest - since) if changes_nothing(entry)}
    return unchanged.issuperset(range(since + 1, newest + 1))


def commit_past_compactions(table: StateTable, at: int, commit: Callable[[], None]) -> bool:
    """Call what commits on top of version `at`, again after compactions; False: another commit came first."""
    for _ in range(_TRIES):
        try:
            commit()
            return True
        except VersionMoved:
            if not moved_by_compactions(table, at):
                break
            at = table.version
    return False


STAGED_AS = "trident.staged"
RESET = "trident.reset"
_COMMIT = "trident.commit"


class CommitNote(NamedTuple):
    """The commit of a version, and the winners of the batches before it.

    `incarnation` is None for a commit without a log; `winners` is None if every attempt is treated as the winner.
    """

    txid: int
    attempt: int
    incarnation: str | None
    winners: Winners | None

    @staticmethod
    def of_commit(txid: Txid) -> CommitNote:
        winners = None if txid.winners is EVERYTHING_WON else txid.winners
        return CommitNote(int(txid), txid.attempt, txid.incarnation, winners)

    @staticmethod
    def of_sentinel(sentinel: Sentinel) -> CommitNote:
        """Return the note of a sentinel that is written again; all values of that moment are valid."""
        return CommitNote(sentinel.txid, sentinel.attempt, sentinel.incarnation, None)

    @staticmethod
    def found_in(entry: Mapping[str, Any]) -> CommitNote | None:
        """Return the note of an entry of the table's history; None if it has none."""
        if _COMMIT not in entry:
            return None
        txid, attempt, incarnation, winners = json.loads(entry[_COMMIT])
        return CommitNote(txid, attempt, incarnation, None if winners is None else Winners.of(*winners))

    def metadata(self) -> dict[str, str]:
        winners = None if self.winners is None else (self.winners.ranges, self.winners.adopted)
        return {_COMMIT: json.dumps([self.txid, self.attempt, self.incarnation, winners])}

    def snapshot(self, txid: int) -> Snapshot:
        """Return the snapshot of a batch up to this one, with the winners that this commit knows."""
        if self.winners is None:
            return Snapshot(txid)
        return Snapshot(txid, self.winners.with_winner(self.txid, self.attempt))


def shown_commits(entries: Iterable[Mapping[str, Any]], newest: int) -> Iterator[tuple[int, CommitNote]]:
    """Iterate over the commits of the last incarnation, newest first, each with the last version before the next commit."""
    until, incarnation = newest, None
    for entry in entries:
        if RESET in entry:
            return
        note = CommitNote.found_in(entry)
        if note is None:
            continue
        if incarnation is not None and incarnation != (note.incarnation,):
            return
        incarnation = (note.incarnation,)
        yield until, note
        until = entry["version"] - 1


def changes_nothing(entry: Mapping[str, Any]) -> bool:
    return COMPACTION in entry or str(entry.get("operation", "")).startswith("VACUUM")
