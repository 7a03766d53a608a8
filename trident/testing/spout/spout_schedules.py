"""Random schedules: a log, simulated, and everything that happens to a topology around a spout."""

from __future__ import annotations

import random
from contextlib import ExitStack

from trident.errors import SpoutError
from trident.spout.interfaces import Definition, SpoutType
from trident.testing.checks.contract import Violation, broken
from trident.testing.spout.filled_source import FilledBatch, FilledSource, Life, through_log
from trident.testing.spout.source_under_test import Row


class SpoutSchedule:
    """One schedule: rows come, batches are defined, read, committed, fail; drivers die, partitions vanish.

    What the log has of a transactional spout is used again, as the driver loop does it. What is committed is compared with the
    source at the end.
    """

    def __init__(self, filled: FilledSource, kind: SpoutType, seed: str) -> None:
        self._filled, self._kind, self._random, self._seed = filled, kind, random.Random(seed), seed
        self._life: Life
        self._txid, self._last = 0, None
        self._logged: dict[int, Definition] = {}
        self._read: dict[int, list[Row]] = {}
        self._flying: list[FilledBatch] = []
        self._committed: list[Row] = []
        self._attempt = 0
        self._events: list[str] = []
        self._lost = ExitStack()
        self._absent: set[int] = set()

    def run(self) -> None:
        """Run; `Violation` with the seed and the last events if it does not end exact."""
        source = self._filled.source
        self._filled.fill(self._filled.backlog * (1 if source.grows else 2))
        self._life = self._filled.live()
        try:
            with self._lost:
                for _ in range(100):
                    self._step()
            self._fail_from(0)
            self._finish()
        except Violation as error:
            events = ", ".join(self._events[-6:])
            raise Violation(f"{error}; seed {self._seed!r}, the last events: {events}") from error

    # ---- events -----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        steps = {
            self._define: 8, self._read_one: 8, self._commit: 6, self._fail: 4, self._crash: 1, self._throttle: 1,
            self._grow: 2 if self._filled.source.grows else 0,
            self._lose: 1 if self._filled.source.offers("lost") else 0,
        }  # fmt: skip
        (step,) = self._random.choices(list(steps), list(steps.values()))
        try:
            step()
        except SpoutError:
            if not self._absent:
                raise
            self._fail_from(0)

    def _define(self) -> None:
        if len(self._flying) >= 3:
            return
        last = self._flying[-1] if self._flying else None
        txid, previous = (self._txid + 1, self._last) if last is None else (last.txid + 1, last.definition)
        definition = self._logged.get(txid)
        if definition is None:
            definition = self._life.define(txid, previous)
        if definition is None:
            return
        self._events.append(f"batch {txid} defined")
        if self._kind is SpoutType.TRANSACTIONAL:
            self._logged[txid] = through_log(definition)
        self._flying.append(FilledBatch(txid, definition))

    def _read_one(self) -> None:
        waiting = [at for at, batch in enumerate(self._flying) if not batch.is_read]
        if not waiting:
            return
        at = self._random.choice(waiting)
        batch = self._flying[at]
        rows = self._life.read(batch, self._random.randint(1, 5), self._attempt)
        self._events.append(f"batch {batch.txid} read")
        if batch.txid in self._read:
            self._filled.expect_same(rows, self._read[batch.txid], f"batch {batch.txid}, replayed")
        if self._kind is SpoutType.TRANSACTIONAL:
            self._read[batch.txid] = rows
        self._flying[at] = batch._replace(rows=rows, is_read=True)

    def _commit(self) -> None:
        if not self._flying or not self._flying[0].is_read:
            return
        batch = self._flying.pop(0)
        if self._random.random() < 0.05:  # after the spout has committed, and before the record
            self._life.commit(batch, self._attempt)
            self._crash()
            return
        self._committed += batch.rows
        self._txid, self._last = batch.txid, through_log(batch.definition)
        self._logged.pop(batch.txid, None)
        self._read.pop(batch.txid, None)
        self._events.append(f"batch {batch.txid} committed")
        self._life.succeeded(batch, self._attempt)

    def _fail(self) -> None:
        if self._flying:
            self._fail_from(self._random.randrange(len(self._flying)))

    def _fail_from(self, first: int) -> None:
        if self._flying[first:]:
            self._events.append(f"batch {self._flying[first].txid} failed")
        self._flying[first:] = []
        self._attempt += 1

    def _crash(self) -> None:
        self._events.append("another driver")
        self._fail_from(0)
        last_logged = self._random.randint(self._txid, self._txid + len(self._logged))  # the last ones were not synced
        self._logged = {txid: definition for txid, definition in self._logged.items() if txid <= last_logged}
        self._read = {txid: rows for txid, rows in self._read.items() if txid <= last_logged}
        # After half of the crashes; before the others the driver was stopped.
        end = self._filled.crash if self._random.random() < 0.5 else self._filled.end
        end(self._life)
        self._life = self._filled.live()

    def _grow(self) -> None:
        self._events.append("rows came")
        present = [at for at in range(self._filled.source.partitions) if at not in self._absent]
        if present:
            self._filled.fill(self._random.randint(1, self._filled.backlog), *present)

    def _throttle(self) -> None:
        if self._life.coordinator.offers("throttle"):
            self._events.append("throttled")
            self._life.coordinator.throttle(self._random.choice((1.0, 0.5, 0.1)))

    def _lose(self) -> None:
        source = self._filled.source
        if self._absent:
            self._events.append("the partition is back")
            self._lost.close()
            self._absent.clear()
            return
        partition = self._random.randrange(source.partitions)
        self._events.append(f"partition {partition} lost")
        self._lost.enter_context(source.lost(partition))
        self._absent.add(partition)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._absent.clear()
        self._filled.take_all(self._take, want=len(self._filled.rows()) - len(self._committed))
        if self._kind is not SpoutType.NON_TRANSACTIONAL:
            self._filled.expect_all(self._committed, "what was committed")
        elif missing := self._filled.compare(self._committed).missing:
            broken(f"{len(missing)} of {len(self._filled.rows())} rows were not committed, the first is {missing[0]!r}")

    def _take(self, last: FilledBatch | None, wait: bool) -> FilledBatch | None:
        self._define()
        if not self._flying and wait:
            before = None if self._last is None else FilledBatch(self._txid, self._last)
            self._flying += filter(None, [self._filled.define_next(self._life, before)])
        if not self._flying:
            return None
        batch, done = self._flying[0], len(self._committed)
        self._read_one()
        self._commit()
        return batch._replace(rows=self._committed[done:])
