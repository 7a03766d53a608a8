"""SpoutContract: what every spout must do; spout_suite: all of it and random schedules, without pytest, and a report."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, TextIO

from trident.arrow import cast_table, schema_of
from trident.errors import SpoutError
from trident.spout.interfaces import Definition, SpoutType
from trident.testing.contract import SCHEDULED, Promised, SpoutPromise, Violation, broken, expect, promise
from trident.testing.spout.contract_definitions import DefinitionChecks
from trident.testing.spout.contract_surroundings import SurroundingChecks
from trident.testing.spout.source_under_test import (
    FilledBatch,
    FilledSource,
    Life,
    Row,
    SpoutSource,
    rows_of,
    through_log,
)
from trident.testing.suite import Findings, SuiteRunner, promise_table


class SpoutContract(DefinitionChecks, SurroundingChecks):
    """What every spout must do. Subclass it, set `source`, and let pytest run it.

    A check of something that source and spout do not claim is skipped.
    """

    @promise(SpoutPromise.FIELDS)
    def test_what_is_emitted_has_the_names_and_types_of_the_fields(self) -> None:
        """Other types are cast, as in a topology; what cannot be cast is wrong."""
        filled, life = self.begin()
        schema, batch = schema_of(life.fields), filled.define_next(life)
        for table in life.tables(batch) if batch is not None else ():
            expect(list(table.schema.names), list(schema.names), "the columns that are emitted")
            cast_table(table, life.fields).validate(full=True)

    @promise(SpoutPromise.VALUES)
    def test_no_row_comes_that_the_source_does_not_hold(self) -> None:
        """A value that is not what was filled in makes such a row."""
        foreign = self.filled.compare(self._all_rows()).foreign
        if foreign:
            broken(f"{len(foreign)} rows came that the source does not hold, the first is {foreign[0]!r}")

    @promise(SpoutPromise.NO_GAP)
    def test_each_row_of_the_source_comes(self) -> None:
        missing, foreign, _ = self.filled.compare(self._all_rows())
        if len(missing) > len(foreign):  # else each of them came, as another row
            broken(f"{len(missing)} of {len(self.filled.rows())} rows did not come, the first is {missing[0]!r}")

    @promise(SpoutPromise.NO_OVERLAP)
    def test_no_row_comes_twice(self) -> None:
        repeated = self.filled.compare(self._all_rows()).repeated
        if repeated:
            broken(f"{len(repeated)} rows came more than once, the first is {repeated[0]!r}")

    @promise(SpoutPromise.ORDER)
    def test_the_rows_of_a_partition_come_in_its_order(self) -> None:
        filled, life = self.begin()
        found = list[Row]()
        filled.drain(life, each=lambda batch: found.extend(life.read(batch, 3)))
        for partition, stated in filled.stated.items():
            names = {repr(row): at for at, row in enumerate(stated)}
            came = [names[name] for row in found if (name := repr(filled.source.row_of(row))) in names]
            late = next((at for at in range(1, len(came)) if came[at] < came[at - 1]), None)
            if late is not None:
                before, after = stated[came[late - 1]], stated[came[late]]
                broken(f"partition {partition}: {after!r} came after {before!r}, which is behind it in the source")

    @promise(SpoutPromise.LIMIT, "limit")
    def test_a_backlog_is_read_within_the_limit(self) -> None:
        filled, life = self.begin()
        limit = filled.source.limit or 0
        for batch in filled.drain(life):
            if len(batch.rows) > limit:
                broken(f"batch {batch.txid} has {len(batch.rows)} rows, the limit is {limit}: {batch.definition!r}")

    @promise(SpoutPromise.THROTTLE, "limit")
    def test_a_throttled_spout_makes_smaller_batches_and_goes_on(self) -> None:
        filled, limit, unit = self.filled, self.filled.source.limit or 0, self.filled.source.unit
        filled.fill(3 * filled.backlog)
        life = filled.live()
        throttled = life.coordinator
        self.needs(throttled.offers("throttle"), "the coordinator has no throttle()")
        last, sizes = None, list[int]()
        for share in (0.5, 1e-9, 0.5, 1.0):
            throttled.throttle(share)
            # Each partition may round up.
            most = max(unit, math.ceil(limit * share)) + (filled.source.partitions - 1) * unit
            sizes = []
            for _ in range(3):
                if (last := filled.read_next(life, last)) is not None:
                    life.succeed(last)
                sizes.append(0 if last is None else len(last.rows))
            if not min(sizes):
                broken(f"throttle({share}): there is a backlog, and a batch holds nothing of it")
            if max(sizes) > most:
                broken(f"throttle({share}): the limit is {limit}, a batch has {max(sizes)} rows, {most} are due")
        if max(sizes) <= limit / 2:
            broken(f"throttle(1.0) after throttle(0.5): batches stay at {max(sizes)} rows, the limit is {limit}")

    @promise(SpoutPromise.IDLE)
    def test_where_there_is_nothing_there_is_no_batch(self) -> None:
        filled, life = self.begin()
        batches = filled.drain(life)
        self.needs(bool(batches), "the spout reads nothing")
        last, times = batches[-1], list[float]()
        if not last.rows:
            broken(f"all is read, and {last.definition!r} is a batch without rows; return None where there is nothing")
        for _ in range(20):
            began = time.monotonic()
            definition = life.define(last.txid + 1, last.definition)
            times.append(time.monotonic() - began)
            if definition is not None:
                broken(f"all is read, and batch {last.txid + 1} is {definition!r}, not None")
        usual = sorted(times)[len(times) // 2]
        if usual > filled.source.idle_s:
            broken(
                f"to say that there is nothing took {usual * 1000:.0f} ms, at most {filled.source.idle_s * 1000:.0f} ms is due"
            )

    @promise(SpoutPromise.GROWTH, "grows")
    def test_what_is_added_is_found(self) -> None:
        filled, life = self.begin()
        batches = filled.drain(life)
        for rows in (1, filled.backlog, 2):
            read = len(rows_of(batches))
            filled.fill(rows)
            batches += filled.drain(life, batches[-1] if batches else None, want=rows)
            if len(rows_of(batches)) == read:
                broken(f"{rows} rows were added after the end was reached, and not one of them came")

    @promise(SpoutPromise.AT_LEAST_ONCE, "no replays", "at_least_once")
    def test_random_failures_lose_no_row(self) -> None:
        self.run_schedules()

    @promise(SpoutPromise.EXACTLY_ONCE, "replays")
    def test_random_failures_end_exact(self) -> None:
        self.run_schedules()

    def run_schedules(self) -> None:
        """Run a few random schedules."""
        for number in range(6):
            self.run_schedule(number)
            self.teardown_method()

    def run_schedule(self, number: int) -> None:
        SpoutSchedule(self.filled, self.kind, f"{self.seed}/{number}").run()

    def _all_rows(self) -> list[Row]:
        filled, life = self.begin()
        return rows_of(filled.drain(life))


def spout_suite(
    source: Callable[[], SpoutSource],
    *,
    seconds: float = 10.0,
    seed: int = 0,
    at_most: float | None = None,
    out: TextIO | None = None,
) -> SpoutReport:
    """Check a spout: the whole contract, then random schedules of failures, crashes and lost partitions.

    Parameters
    ----------
    source
        Your subclass of `SpoutSource`, or a function that returns one; it is called for each check.
    seconds, seed, at_most, out
        As of `backend_suite`.
    """
    report = SpoutReport(seed)
    if not callable(source):
        raise TypeError(
            f"spout_suite was given a {type(source).__name__}; give your subclass of SpoutSource, not an instance"
        )
    given = {"source": staticmethod(source), "seed": seed}
    contract: type[SpoutContract] = type("SpoutContract", (SpoutContract,), given)
    claimed, kind = _promise_to_schedule(contract())  # raises what is wrong with the source itself
    promises, checks = list(SpoutPromise), contract.checks()
    runner = SuiteRunner(report, len(checks), at_most, out)
    for name in sorted(checks, key=lambda name: promises.index(checks[name].promise)):
        if checks[name].promise not in SCHEDULED:
            runner.check(contract(), name, kind, name)

    runner.run_schedules(contract(), claimed, kind, seconds)
    runner.end()
    return report


def _promise_to_schedule(case: SpoutContract) -> tuple[SpoutPromise | None, str]:
    """Return the promise that random schedules are about, None if the spout makes none; and its kind."""
    try:
        if case.kind is not SpoutType.NON_TRANSACTIONAL:
            return SpoutPromise.EXACTLY_ONCE, case.kind.value
        return SpoutPromise.AT_LEAST_ONCE if case.filled.source.at_least_once else None, case.kind.value
    finally:
        case.teardown_method()


@dataclass
class SpoutReport(Findings):
    """All findings of one run of `spout_suite`."""

    promises: ClassVar[type[Promised]] = SpoutPromise
    why_not_run: ClassVar[str] = "because they build on what is broken, or for want of time"


def spout_table(reports: Mapping[str, SpoutReport]) -> str:
    """Return a table: a line for each promise, a column for each spout, by the names of the reports."""
    return promise_table(SpoutPromise, reports)


class SpoutSchedule:
    """One schedule: rows come, batches are defined, read, committed, fail; drivers die, partitions vanish; the end is exact."""

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
        self._filled.fill(self._filled.backlog * (1 if self._filled.source.grows else 2))
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
        self._life.succeed(batch, self._attempt)

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
