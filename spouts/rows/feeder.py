"""FeederBatchSpout: a spout that a test feeds by hand, batch by batch, from any thread of the driver's process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from spouts.rows.driver_rows import fitted, table_of_rows
from trident.arrow import TableEmitter, TablePart, cut_table, schema_of
from trident.errors import ReplayMismatchError, SpoutError
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, OnNewLog, SpoutType, TransactionAttempt


class FeederBatchSpout:
    """Each `feed` is one batch. Transactional while the process runs; its rows are lost with it.

    Copies of the spout within the process (by pickle or copy) are the same feeder. In another process it can be held,
    but neither fed nor started.

    Parameters
    ----------
    fields
        The names of the values with their types, as in `"word: string, n: bigint"`.
    """

    spout_type = SpoutType.TRANSACTIONAL
    on_new_log: OnNewLog = "behind"

    def __init__(self, *fields: FieldsLike) -> None:
        self._fields = Fields(*fields)
        schema_of(self._fields)  # raises for a field without a type
        self._id = uuid.uuid4().hex
        self._channel: _Channel | None = _Channel(self._id)
        _channels[self._id] = self._channel

    def feed(self, rows: Sequence[Sequence[Any]] | pa.Table, timeout_s: float = 30) -> None:
        """Queue the rows of the next batch and wait until it is committed.

        Raises
        ------
        SpoutError
            Not committed within `timeout_s` seconds, or the topology stopped before. The rows stay queued: if the
            topology runs on, or a topology is started with this spout, they are still committed once.
        """
        channel = self._own()
        number = self.feed_nowait(rows)
        channel.wait(number, timeout_s)

    def feed_nowait(self, rows: Sequence[Sequence[Any]] | pa.Table) -> int:
        """Queue the rows of a batch and return at once, with the number of the feed (0, 1, 2 …)."""
        table = fitted(rows, self._fields) if isinstance(rows, pa.Table) else table_of_rows(self._fields, rows)
        return self._own().put(table)

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> _FeederCoordinator:
        """Open the driver's side."""
        return _FeederCoordinator(self._own())

    def get_emitter(self, conf: Mapping[str, Any]) -> TableEmitter:
        """Return the worker's side, which carries no rows: the parts do."""
        return TableEmitter()

    def _own(self) -> _Channel:
        if self._channel is None:
            raise SpoutError(
                f"the feeder {self._id} was made in another process; a FeederBatchSpout is fed and started in the "
                "process that made it"
            )
        return self._channel

    def __getstate__(self) -> dict[str, Any]:
        return {"_fields": self._fields, "_id": self._id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _channel=_channels.get(state["_id"]))


class _Channel:
    """What feeders and coordinators of one id share. Feeds are numbered and committed in order."""

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

    def next_after(self, number: int | None, txid: int) -> int | None:
        """Return the number of the feed after `number` (None: the first that is not committed), None if not fed yet."""
        with self._lock:
            following = self._committed + 1 if number is None else number + 1
            if following >= self._fed:
                return None
            self._batches[following] = txid
            return following

    def table(self, number: int) -> pa.Table | None:
        with self._lock:
            return self._tables.get(number)

    def fed_after(self, number: int) -> int:
        with self._lock:
            return self._fed - number - 1

    def commit(self, number: int) -> None:
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
                self._changed.wait(left)


class _FeederCoordinator(BatchCoordinator):
    """Definitions are `{"feeder": id, "feed": number}`."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Give the next feed, None if there is none yet. A log of an earlier process is continued with new feeds."""
        own = previous is not None and previous["feeder"] == self._channel.id
        number = self._channel.next_after(int(previous["feed"]) if own and previous is not None else None, txid)
        return None if number is None else {"feeder": self._channel.id, "feed": number}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        """Cut the rows of a feed into views."""
        number = int(definition["feed"])
        table = self._channel.table(number) if definition["feeder"] == self._channel.id else None
        if table is None:
            raise ReplayMismatchError(
                f"batch {attempt.txid} is feed {number} of the feeder {definition['feeder']}, which this process does "
                f"not have (its feeder is {self._channel.id}); what was fed is lost with its process. "
                "Start with a new log_dir"
            )
        return cut_table(table, parallelism)

    def size(self, definition: Definition) -> int | None:
        """Say how many bytes the rows of a feed take; None if this process does not have them."""
        table = self._channel.table(int(definition["feed"])) if definition["feeder"] == self._channel.id else None
        return None if table is None else int(table.nbytes)

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many batches were fed after this one; None if another process fed it."""
        own = definition["feeder"] == self._channel.id
        return Lag(self._channel.fed_after(int(definition["feed"])), "batches") if own else None

    def success(self, txid: int, definition: Definition) -> None:
        """Wake up the threads that wait for this feed, and forget its rows."""
        if definition["feeder"] == self._channel.id:
            self._channel.commit(int(definition["feed"]))

    def close(self) -> None:
        """Wake up the threads that wait for a feed that is not committed."""
        self._channel.close()


# The spout is pickled for the workers, and maybe inside the driver. All its copies find their one channel here.
_channels: WeakValueDictionary[str, _Channel] = WeakValueDictionary()
