"""Rows of a Delta state that expire: how old they are, and which of them a commit deletes.

Each commit gives its rows a higher `_seq` than all before, also after a reset, and no merge of files changes it. So a few marks
tell the age of all rows: a mark says that the rows up to a `_seq` were written by a time. A mark is part of a version of the
table, as transactions of Delta's, and the driver makes one when a sixteenth of `ttl_s` has passed since the last. A row has
expired if there is a mark that covers it, and a later one by `ttl_s`: no other clock counts, so all who read a version agree.

What has expired is deleted by the next commit, beside its own rows, as any deletion is: fenced, in one version, whoever reads.
So a row is there, whole, until that version, and gone after it; a key that the commit writes stays. The deletion stands if the
attempt fails: what has expired does not come back with a replay.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import pyarrow.compute as pc

from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, RawKey
from states.delta.state_tables import StateTables

_APP = "trident/expiry"
_MARKS_A_TTL = 16
_KEPT = _MARKS_A_TTL + 2
"""The newest marks, of which one is older than the last by `ttl_s`."""

Transaction = tuple[str, int]


class TimeMark(NamedTuple):
    """The rows up to `seq` were written by `at`, in seconds since 1970; `number` counts the marks, from 1."""

    number: int
    at: int
    seq: int

    def transactions(self) -> list[Transaction]:
        """Return it as a version keeps it, in place of the oldest."""
        slot = self.number % _KEPT
        return [(_APP, self.number), (f"{_APP}/{slot}/at", self.at), (f"{_APP}/{slot}/seq", self.seq)]


class Expiry:
    """The marks of a table, as far as this process knows, and what has expired by them.

    `tables`: the state; its `ttl_s` says how old a row must be.
    """

    def __init__(self, tables: StateTables) -> None:
        self._table, self._layout, self._ttl_s = tables.changes, tables.layout, tables.options.ttl_s
        self._marks: list[TimeMark] | None = None  # in order; None: they were not read
        self._made: TimeMark | None = None
        self._clean = -1  # nothing up to this `_seq` has expired

    def forget(self) -> None:
        """Read the marks again."""
        self._marks, self._made, self._clean = None, None, -1

    def follow(self) -> None:
        """In a task, whose driver makes the marks: read them again if there are others."""
        if self._ttl_s is not None and self._number() != self._last().number:
            self._marks = None

    def mark(self, seq: int) -> list[Transaction]:
        """Return what the version with this `_seq` is to say beside its rows: a mark, if it is time for one."""
        self._made = None
        if self._ttl_s is None:
            return []
        last = self._last()
        now = int(time.time())
        if now < last.at + -(-self._ttl_s // _MARKS_A_TTL):
            return []
        self._made = TimeMark(last.number + 1, now, seq)
        return self._made.transactions()

    def marked(self) -> None:
        """Take note that the version is made."""
        if self._made is not None:
            self._marks, self._made = [*self._read(), self._made][-_KEPT:], None

    def expired(self) -> list[RawKey]:
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
        rows = self._layout.reduced(rows, drop_deleted=True)
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
                at, seq = (self._table.transaction(f"{_APP}/{number % _KEPT}/{part}") for part in ("at", "seq"))
                self._marks.append(TimeMark(number, at or 0, seq or 0))
        return self._marks

    def _number(self) -> int:
        return self._table.transaction(_APP) or 0
