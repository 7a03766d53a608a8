"""What keeps a Delta state small: files are merged beside its commits, and a commit deletes the rows that have expired.

When there are enough files, a thread merges the newest, so that each remaining file has at least twice the rows of all after
it: each row is rewritten only a few times, and at most a third of the rows are out of date. Merged rows keep their `_seq`.
The thread is not a daemon, so a process that ends waits for a compaction that it has begun.

A few marks tell the age of all rows: a mark says that the rows up to a `_seq` were written by a time. It is part of a version
of the table, as transactions of Delta's; the driver makes one when a sixteenth of `ttl_s` has passed. A row has expired if a
mark covers it, and a later one is later by `ttl_s`: no other clock counts, so all who read a version agree. The next commit
deletes what has expired, beside its own rows: fenced, in one version. The deletion stands if the attempt fails.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow.compute as pc

from states.delta.data_files import DataFile
from states.delta.faults import VersionMoved
from states.delta.index import Index
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, RawKey
from states.delta.state_table import ABSENT, COMPACTION, StateTable
from states.delta.state_tables import StateTables
from trident.errors import StateError

_LOGGER = logging.getLogger(__name__)
_RUNS_PER_VACUUM = 8
_LARGER_BY = 2
_MOST_ROWS = 1 << 19
_APP = "trident-maintenance"

_EXPIRY = "trident/expiry"
_MARKS_A_TTL = 16
_KEPT = _MARKS_A_TTL + 2  # the newest marks, of which one is older than the last by `ttl_s`
Transaction = tuple[str, int]


class Maintenance:
    """Keeps one table small. The commit at which it is due starts it. It has a table object and a thread of its own."""

    def __init__(self, tables: StateTables, index: Index) -> None:
        self._source, self._layout, self._options = tables.changes, tables.layout, tables.options
        self._what, self._index = tables.what, index
        self._entries = self._runs = 0
        self._thread: threading.Thread | None = None
        self._closing = False

    def after_commit(self) -> None:
        """Note a commit, which left a file and a log entry; start the maintenance if it is due and not running."""
        self._index.files, self._entries = self._index.files + 1, self._entries + 1
        compact = self._index.files >= self._options.compact_after_commits
        checkpoint = self._entries >= self._options.checkpoint_interval
        if not (compact or checkpoint) or (self._thread is not None and self._thread.is_alive()):
            return
        self._index.files = 0 if compact else self._index.files
        self._entries = 0 if checkpoint else self._entries
        self._closing = False
        if not self._options.background_maintenance:
            self.run(compact, checkpoint)
            return
        self._thread = threading.Thread(target=self.run, args=(compact, checkpoint), name=f"{self._what}: maintenance")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for the current step, skip the others, and return."""
        self._closing = True
        self.wait()

    def run(self, compact: bool, checkpoint: bool) -> None:
        """Do what is due. A failed step is tried again the next time, because no batch depends on it."""
        table = self._source.another()
        try:
            if table.refresh() == ABSENT:
                return
            if compact:
                self._compact(table)
            if checkpoint and not self._closing:
                table.checkpoint()
                table.delete_old_versions()
            self._runs += compact
            if compact and self._runs % _RUNS_PER_VACUUM == 0 and not self._closing:
                table.vacuum()
        except (VersionMoved, StateError) as error:
            _LOGGER.warning("maintenance of %s was postponed: %s", self._what, error)

    def _compact(self, table: StateTable) -> None:
        files, holds = table.files(), self._index.holds
        if holds is not None:
            files = last_rows([file for file in files if file.first > holds.seq])
        first = first_to_merge(files)
        if first == len(files):
            return
        everything, at = first == 0 and holds is None, table.version
        rows = table.scan(None, None, files[first:])
        if table.version != at:
            raise VersionMoved(f"the files of version {at} were deleted meanwhile")
        note = {COMPACTION: "rows" if everything else "files"}
        table.replace(self._layout.latest_rows(rows, drop_deleted=everything), files[first:], (_APP, at), note)


def last_rows(files: list[DataFile]) -> list[DataFile]:
    """Return the last files, of so few rows together that they are merged in little memory."""
    rows = 0
    for number, file in reversed(list(enumerate(files))):
        rows += file.rows
        if rows > _MOST_ROWS:
            return files[number + 1 :]
    return files


def first_to_merge(files: Sequence[DataFile]) -> int:
    """Return the first file, in the order of their rows, of those to merge (all after it too); the number of files if none."""
    later = sum(file.rows for file in files)
    for number, file in enumerate(files):
        later -= file.rows
        if file.rows < _LARGER_BY * later:
            return number
    return len(files)


class TimeMark(NamedTuple):
    """The rows up to `seq` were written by `at`, in seconds since 1970; `number` counts the marks, from 1."""

    number: int
    at: int
    seq: int

    def transactions(self) -> list[Transaction]:
        """Return it as a version keeps it, in place of the oldest."""
        slot = self.number % _KEPT
        return [(_EXPIRY, self.number), (f"{_EXPIRY}/{slot}/at", self.at), (f"{_EXPIRY}/{slot}/seq", self.seq)]


class Expiry:
    """The marks of a table, as far as this process knows, and what has expired by them."""

    def __init__(self, tables: StateTables) -> None:
        self._table, self._layout, self._ttl_s = tables.changes, tables.layout, tables.options.ttl_s
        self._marks: list[TimeMark] | None = None  # in order; None: they were not read
        self._clean = -1  # nothing up to this `_seq` has expired

    def forget(self) -> None:
        self._marks, self._clean = None, -1

    def follow(self) -> None:
        """In a task, whose driver makes the marks: read them again if there are others."""
        if self._ttl_s is not None and self._number() != self._last().number:
            self._marks = None

    def mark(self, seq: int) -> list[Transaction]:
        """Return what a version with this `_seq` is to say beside its rows: a mark, if it is time for one.

        If the version is not made, `forget` is called.
        """
        if self._ttl_s is None:
            return []
        last = self._last()
        now = int(time.time())
        if now < last.at + -(-self._ttl_s // _MARKS_A_TTL):
            return []
        self._marks = [*self._read(), TimeMark(last.number + 1, now, seq)][-_KEPT:]
        return self._marks[-1].transactions()

    def expired_keys(self) -> list[RawKey]:
        """Return the keys whose latest row has expired, as of the version last seen."""
        if self._ttl_s is None or not (marks := self._read()):
            return []
        until = max((mark.seq for mark in marks if mark.at + self._ttl_s <= marks[-1].at), default=-1)
        if until <= self._clean:
            return []
        # Another object: if the files of the version are gone, this moves to a later one, which the commit must not.
        table = self._table.another(read_only=True)
        table.refresh()
        first, *_ = self._layout.value_columns
        rows = table.scan(None, [*self._layout.key_columns, first, SEQ_COLUMN, SENTINEL_COLUMN])
        rows = self._layout.latest_rows(rows, drop_deleted=True)
        rows = rows.filter(pc.and_(pc.is_null(rows[SENTINEL_COLUMN]), pc.less_equal(rows[SEQ_COLUMN], until)))
        if not rows.num_rows:
            self._clean = until
        return self._layout.raw_keys([rows[name] for name in self._layout.key_columns])

    def _last(self) -> TimeMark:
        return next(reversed(self._read()), TimeMark(0, 0, 0))

    def _read(self) -> list[TimeMark]:
        if self._marks is None:
            last = self._number()
            self._marks = []
            for number in range(max(1, last - _KEPT + 1), last + 1):
                at, seq = (self._table.transaction(f"{_EXPIRY}/{number % _KEPT}/{part}") for part in ("at", "seq"))
                self._marks.append(TimeMark(number, at or 0, seq or 0))
        return self._marks

    def _number(self) -> int:
        return self._table.transaction(_EXPIRY) or 0
