"""Brings the published table up to date, beside the commits: at most every few seconds, and when the state is closed.

It shows committed batches only. A state learns which these are when its next commit begins, or when the driver says so
(`recorded`). The rows come from the version of the change table of that moment.

Two writers may publish at once, if one of them was paused and replaced. So a version is based on the one that was read before
the sentinel of the changes was compared: the slower of two is refused, and a state of the past replaces no later one.
"""

from __future__ import annotations

import logging
import threading
import time

from states.delta.faults import VersionMoved
from states.delta.published_table import Due, Shown, is_newest
from states.delta.state_table import ABSENT, StateTable
from states.delta.state_tables import StateTables
from trident.errors import StateError

_LOGGER = logging.getLogger(__name__)
_TRIES = 5
_SHARE = 40  # publishing takes at most one part in so many of the time
_LOOK_S = 0.2  # how soon the thread notices that the program ends


class Publisher:
    """Publishes one state. It has table objects and a thread of its own, which ends when all is published.

    `tables`, `changes`: the state, and the table of its changes.
    """

    def __init__(self, tables: StateTables, changes: StateTable) -> None:
        self._tables, self._changes = tables, changes
        self._published = tables.at_path()
        self._table = self._published.table
        self._news = threading.Condition()
        self._due: Due | None = None
        self._last: Shown | None = None
        self._thread: threading.Thread | None = None
        self._not_before, self._at_once = 0.0, False

    def publish(self, due: Due) -> None:
        """Publish a committed state soon. A later one takes its place if it comes first."""
        if self._last is not None and self._last.is_same(due.shown):
            return
        self._last = due.shown
        with self._news:
            self._due = due
            if self._tables.options.background_maintenance and (self._thread is None or not self._thread.is_alive()):
                self._at_once = False
                self._thread = threading.Thread(target=self._run, name=f"{self._tables.what}: publishing")
                self._thread.start()
        if not self._tables.options.background_maintenance and time.monotonic() >= self._not_before:
            self.finish()

    def create(self) -> None:
        """Make the published table, without rows, if it is absent."""
        self.finish()
        self._table.create()

    def finish(self) -> None:
        """Publish now what is due, and return."""
        with self._news:
            thread, self._at_once = self._thread, True
            self._news.notify()
        if thread is not None:
            thread.join()
        with self._news:
            due, self._due = self._due, None
        if due is not None:
            self._try(due)

    def forget(self) -> None:
        """Publish nothing that is due; return when nothing is being published."""
        with self._news:
            self._due = self._last = None
        self.finish()

    def clear(self) -> None:
        """Remove all rows, because the state was emptied."""
        for left in range(_TRIES - 1, -1, -1):
            if self._table.refresh() == ABSENT:
                return
            try:
                self._published.clear()
                return
            except VersionMoved:
                if not left:
                    raise

    # ---- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._is_time():
                    self._news.wait(_LOOK_S)
                due, self._due = self._due, None
                if due is None or not threading.main_thread().is_alive():
                    self._thread = None
                    return
            self._try(due)

    def _is_time(self) -> bool:
        ends = self._at_once or not threading.main_thread().is_alive()
        return ends or self._due is None or time.monotonic() >= self._not_before

    def _try(self, due: Due) -> None:
        """Publish; what fails is tried again with the next state, because no batch depends on it."""
        began = time.monotonic()
        try:
            self._publish(due)
        except (VersionMoved, StateError) as error:
            self._last = None
            _LOGGER.warning("the table of %s shows an earlier batch for now: %s", self._tables.what, error)
        ended = time.monotonic()
        self._not_before = ended + max(self._tables.options.publish_every_s, (ended - began) * (_SHARE - 1))

    def _publish(self, due: Due) -> None:
        changes = self._changes.another(read_only=True, at=due.shown.version)
        for left in range(_TRIES - 1, -1, -1):
            is_there = self._table.refresh() != ABSENT
            if self._published.holds() or not is_newest(self._changes, due.shown):
                return
            shown = self._published.shown() if is_there else None
            if shown is not None and (shown.is_same(due.shown) or shown.is_later(due.shown)):
                return
            if changes.refresh() == ABSENT:
                return
            rows = self._tables.rows.of(self._tables.layout.reduced(changes.scan(), drop_deleted=True), due.snapshot)
            try:
                self._table.create()  # another program may have deleted it
                self._published.show(rows, due.shown)
                break
            except VersionMoved:
                if not left:
                    raise
        self._published.keep_small()
