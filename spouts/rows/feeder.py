"""FeederBatchSpout: a spout that a test feeds by hand, batch by batch, from any thread of the driver's process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from spouts.rows.fixed_batch import DriverRows, fit_table, table_of_rows
from trident.arrow import TablePart, cut_table, schema_of
from trident.errors import ReplayMismatchError, SpoutError
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, OnNewLog, TransactionAttempt


class FeederBatchSpout(DriverRows):
    """Each `feed` is one batch. Transactional while the process runs; its rows are lost with it.

    Copies of the spout within the process (by pickle or copy) are the same feeder. In another process it can be held,
    but neither fed nor started.

    Parameters
    ----------
    fields
        The names of the values with their types, as in `"word: string, n: bigint"`.
    """

    on_new_log: OnNewLog = "behind"

    def __init__(self, *fields: FieldsLike) -> None:
        self._fields = Fields(*fields)
        schema_of(self._fields)  # raises for a field without a type
        self._id = uuid.uuid4().hex
        self._feeds: _Feeds | None = _Feeds(self._id)
        _all_feeds[self._id] = self._feeds

    def feed(self, rows: Sequence[Sequence[Any]] | pa.Table, timeout_s: float = 30) -> None:
        """Queue the rows of the next batch and wait until it is committed.

        Raises
        ------
        SpoutError
            Not committed within `timeout_s` seconds, or the topology stopped before. The rows stay queued: if the
            topology runs on, or a topology is started with this spout, they are still committed once.
        """
        feeds = self._own()
        number = self.feed_nowait(rows)
        feeds.wait(number, timeout_s)

    def feed_nowait(self, rows: Sequence[Sequence[Any]] | pa.Table) -> int:
        """Queue the rows of a batch and return at once, with the number of the feed (0, 1, 2 …)."""
        table = fit_table(rows, self._fields) if isinstance(rows, pa.Table) else table_of_rows(self._fields, rows)
        return self._own().put(table)

    def get_coordinator(self, conf: Mapping[str, Any]) -> _Feeds:
        """Open the driver's side."""
        return self._own()

    def _own(self) -> _Feeds:
        if self._feeds is None:
            raise SpoutError(
                f"the feeder {self._id} was made in another process; a FeederBatchSpout is fed and started in the "
                "process that made it"
            )
        return self._feeds

    def __getstate__(self) -> dict[str, Any]:
        return {"_fields": self._fields, "_id": self._id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _feeds=_all_feeds.get(state["_id"]))


class _Feeds(BatchCoordinator):
    """What was fed, numbered and committed in order: what feeders of one id share, and the driver's side of all of them.

    Definitions are `{"feeder": id, "feed": number}`.
    """

    def __init__(self, id_: str) -> None:
        self.id = id_
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tables: dict[int, pa.Table] = {}
        self._fed = 0
        self._committed = -1
        self._closings = 0
        self._batches: dict[int, int] = {}

    def put(self, table: pa.Table) -> int:
        with self._lock:
            number, self._fed = self._fed, self._fed + 1
            self._tables[number] = table
            return number

    def wait(self, number: int, timeout_s: float) -> None:
        with self._lock:
            closings, deadline = self._closings, monotonic() + timeout_s
            while self._committed < number:
                txid = self._batches.get(number)
                where = "no batch has it yet" if txid is None else f"it is batch {txid}"
                if self._closings != closings:
                    raise SpoutError(
                        f"feed {number} was not committed: the topology stopped before ({where}). "
                        "The rows stay queued for the next start of the topology"
                    )
                left = deadline - monotonic()
                if left <= 0:
                    raise SpoutError(
                        f"feed {number} was not committed within {timeout_s:g} s ({where}). "
                        "Is the topology started, and has it failed? The rows stay queued"
                    )
                self._changed.wait(min(left, threading.TIMEOUT_MAX))  # which `math.inf` is beyond

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Give the next feed, None if there is none yet. A log of an earlier process is continued with new feeds."""
        before = None if previous is None else self._number(previous)
        with self._lock:
            number = (self._committed if before is None else before) + 1
            if number >= self._fed:
                return None
            self._batches[number] = txid
        return {"feeder": self.id, "feed": number}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        table = self._table(definition)
        if table is None:
            raise ReplayMismatchError(
                f"batch {attempt.txid} is feed {definition['feed']} of the feeder {definition['feeder']}, which this process "
                f"does not have (its feeder is {self.id}); what was fed is lost with its process. "
                "Start with a new log_dir"
            )
        return cut_table(table, parallelism)

    def size(self, definition: Definition) -> int | None:
        table = self._table(definition)
        return None if table is None else int(table.nbytes)

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many batches were fed after this one; None if another process fed it."""
        number = self._number(definition)
        with self._lock:
            return None if number is None else Lag(self._fed - number - 1, "batches")

    def success(self, txid: int, definition: Definition) -> None:
        """Wake up the threads that wait for this feed, and forget its rows."""
        number = self._number(definition)
        if number is not None:
            with self._lock:
                for done in range(self._committed + 1, number + 1):
                    self._tables.pop(done, None)
                    self._batches.pop(done, None)
                self._committed = max(self._committed, number)
                self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closings += 1
            self._changed.notify_all()

    def _number(self, definition: Definition) -> int | None:
        return int(definition["feed"]) if definition["feeder"] == self.id else None

    def _table(self, definition: Definition) -> pa.Table | None:
        number = self._number(definition)
        with self._lock:
            return None if number is None else self._tables.get(number)


# The spout is pickled for the workers, and maybe inside the driver. All its copies find their one object here.
_all_feeds: WeakValueDictionary[str, _Feeds] = WeakValueDictionary()
