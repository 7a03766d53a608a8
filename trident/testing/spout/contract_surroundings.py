"""What a spout holds and costs, and what it raises when its source is away or was changed."""

import gc
import os
import pickle
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import SkipTest

import cloudpickle

from trident.errors import SpoutError, describe
from trident.spout.interfaces import ITridentSpout, TransactionAttempt
from trident.spout.partitioned import PartitionedSpout
from trident.testing.contract import SpoutPromise, Violation, broken, expect_error, promise
from trident.testing.spout.source_under_test import FilledBatch, FilledSource, Life, SpoutChecks, rows_of

_CYCLES = 3
_FACTOR = 1000  # between the reported size and the size of the rows: a compressed source is small
_OVERHEAD_BYTES = 1 << 20


class SurroundingChecks(SpoutChecks):
    """The checks of everything around the rows."""

    @promise(SpoutPromise.SHIPPED)
    def test_description_emitter_and_parts_can_be_pickled(self) -> None:
        filled = self.filled
        filled.fill(filled.backlog)
        spout = filled.source.spout()
        self.needs(isinstance(spout, (PartitionedSpout, ITridentSpout)), "the spout is an object of the driver")
        before = _held_resources()
        spouts = [filled.source.spout() for _ in range(_CYCLES)]
        for each in spouts:
            each.get_output_fields()
            self._pickle(each, "the description")
        if grown := _grown_since(before):
            broken(f"{_CYCLES} descriptions were made, and {grown}; open it in the coordinator or the emitter")
        life = filled.live()
        self._pickle(life.spout.get_emitter({}), "the emitter")
        batch = filled.define_next(life)
        for part in () if batch is None else life.coordinator.parts(TransactionAttempt(1, 0), batch.definition, 2):
            self._pickle(part, "a part")

    @promise(SpoutPromise.SIZE)
    def test_the_size_of_a_batch_is_told_from_its_definition(self) -> None:
        filled, life = self.begin()
        self.needs(life.coordinator.offers("size"), "the coordinator has no size()")
        sized, sizes = life.coordinator, list[tuple[FilledBatch, Any]]()
        for batch in filled.drain(life, each=lambda batch: sizes.append((batch, sized.size(batch.definition)))):
            rows_bytes = len(repr(batch.rows))
            size = sizes[batch.txid - 1][1]
            if size is None:
                continue
            if type(size) is not int or size < 0:
                broken(f"size of batch {batch.txid} is {size!r}, expected a number of bytes, or None")
            if batch.rows and not rows_bytes / _FACTOR <= size <= rows_bytes * _FACTOR + _OVERHEAD_BYTES:
                broken(f"size of batch {batch.txid} is {size}, its {len(batch.rows)} rows take some {rows_bytes} bytes")
        with self.filled.source.outage():
            for batch, size in sizes:
                with expect_error(what=f"size of batch {batch.txid}, while the source is away", must=False):
                    again = sized.size(batch.definition)
                if again not in (size, None):  # of a committed batch it may be forgotten
                    broken(f"size of batch {batch.txid} was {size}, and is {again} while the source is away")

    @promise(SpoutPromise.LAG)
    def test_the_lag_reaches_zero_and_no_server_is_asked(self) -> None:
        """It is above zero in a backlog, zero at its end, and known at once while the source is away."""
        filled, life = self.begin()
        self.needs(life.coordinator.offers("lag"), "the coordinator has no lag()")
        lagging, lags = life.coordinator, list[Any]()
        batches = filled.drain(life, after=lambda batch: lags.append(lagging.lag(batch.definition)))
        for batch, lag in zip(batches, lags, strict=True):
            if lag is None:
                continue
            if type(lag[0]) is not int or lag[0] < 0 or not isinstance(lag[1], str) or not lag[1]:
                broken(f"the lag after batch {batch.txid} is {lag!r}, expected Lag(amount, unit), or None")
            left = sum(len(later.rows) for later in batches[batch.txid :])
            if (lag.amount == 0) is not (left == 0):
                broken(f"the lag after batch {batch.txid} is {lag.amount} {lag.unit}, and {left} rows are to come")
        with self.filled.source.outage():
            for batch in batches[-1:]:
                began = time.monotonic()
                with expect_error(what="the lag, while the source is away", must=False):
                    lagging.lag(batch.definition)
                if (took := time.monotonic() - began) > 1.0:
                    broken(f"the lag took {took:.1f} s while the source is away; it must be known without asking it")

    @promise(SpoutPromise.CLOSE)
    def test_threads_files_and_connections_are_released(self) -> None:
        filled = self.filled
        filled.fill(filled.backlog)
        self._open_and_close()  # what is opened once for a process is open now
        before = _held_resources()
        for _ in range(_CYCLES):
            self._open_and_close()
        until = time.monotonic() + filled.source.patience_s
        while (grown := _grown_since(before)) and time.monotonic() < until:
            time.sleep(0.01)  # a thread that was asked to end may take a moment
        if grown:
            broken(f"{_CYCLES} drivers ended, and {grown}")

    @promise(SpoutPromise.ERRORS, "outage")
    def test_a_source_that_is_away_raises_spout_error(self) -> None:
        filled, life, batch = self._read_first()
        source, rows = filled.source, batch.rows
        with source.outage():
            with expect_error(SpoutError, what="reading a batch while the source is away", must=False):
                again = life.read(batch, attempt=1)
                filled.expect_same(again, rows, "batch 1, read while the source was away (SpoutError is expected)")
            with expect_error(SpoutError, what="defining a batch while the source is away", must=False):
                life.define(2, batch.definition)
            with expect_error(SpoutError, what="opening the coordinator while the source is away", must=False):
                filled.live()
        filled.expect_same(life.read(batch, attempt=2), rows, "batch 1, read after the source was back")
        life.succeed(batch)
        rest = filled.drain(life, batch, want=len(filled.rows()) - len(rows))
        filled.expect_all(rows_of([batch, *rest]), "the source was away and came back")

    @promise(SpoutPromise.CHANGES, "identical replays", "change")
    def test_a_source_that_was_changed_raises_spout_error(self) -> None:
        """Reading a definition again that no longer holds raises `ReplayMismatchError`, or another `SpoutError`."""
        filled, life, batch = self._read_first()
        filled.source.change()
        for reader, whose in ((life, "the same coordinator"), (None, "a new coordinator")):
            with expect_error(SpoutError, what=whose, must=False):
                again = (reader or filled.live()).read(batch, attempt=1)
                filled.expect_same(again, batch.rows, f"batch 1, read by {whose} after the source was changed")
                broken(f"change() changed nothing of batch 1: {whose} still reads the same rows")

    def _read_first(self) -> tuple[FilledSource, Life, FilledBatch]:
        filled, life = self.begin()
        batch = filled.read_next(life)
        if batch is None:
            raise SkipTest("the spout makes no batch")
        return filled, life, batch

    def _open_and_close(self) -> None:
        life = self.filled.live()
        batch = self.filled.define_next(life)
        if batch is not None:
            for _ in islice(life.tables(batch), 1):  # a task that fails leaves the rest unread
                pass
            life.read(batch)
        self.filled.end(life)

    @staticmethod
    def _pickle(value: object, what: str) -> None:
        try:
            pickle.loads(cloudpickle.dumps(value))
        except Exception as error:
            raise Violation(f"{what} ({type(value).__name__}) cannot be pickled: {describe(error)}") from error


_OPEN = Path("/dev/fd")


def _held_resources() -> dict[str, dict[int, str]]:
    """Return what this process holds: the names of Python's threads, and what open files and connections lead to."""
    gc.collect()
    files = dict[int, str]()
    with suppress(OSError):  # a system without the folder
        for name in os.listdir(_OPEN):  # noqa: PTH208  Path.iterdir holds the folder open
            files[int(name)] = "?"
            with suppress(OSError):
                files[int(name)] = str((_OPEN / name).readlink())
    return {"thread": {thread.ident or 0: thread.name for thread in threading.enumerate()}, "open file": files}


def _grown_since(before: dict[str, dict[int, str]]) -> str:
    """Say what is held more than before, if it is one for each cycle at least; what comes and goes by chance is less."""
    said = []
    for name, now in _held_resources().items():
        new = [each for at, each in now.items() if before[name].get(at) != each]
        if (more := len(now) - len(before[name])) >= _CYCLES:
            said.append(f"{more} more {name}s are there, such as {new[0] if new else '?'}")
    return " and ".join(said)
