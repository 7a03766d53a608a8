"""SpoutContract: what every spout must do; spout_suite: all of it and random schedules, without pytest, and a report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TextIO

from trident.arrow import cast_table, schema_of
from trident.spout.interfaces import SpoutType
from trident.testing.checks.contract import broken, expect, promise
from trident.testing.checks.promises import SCHEDULED, Promised, SpoutPromise
from trident.testing.checks.suite import Findings, SuiteRunner, promise_table
from trident.testing.spout.contract_definitions import DefinitionChecks
from trident.testing.spout.contract_surroundings import SurroundingChecks
from trident.testing.spout.filled_source import rows_of
from trident.testing.spout.source_under_test import Row, SpoutSource
from trident.testing.spout.spout_schedules import SpoutSchedule


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
        """However many batches that takes."""
        rows = self._all_rows()
        missing, foreign, _ = self.filled.compare(rows)
        if len(missing) > len(foreign):  # else each of them came, as another row
            broken(f"{len(missing)} of {len(self.filled.rows())} rows did not come, the first is {missing[0]!r}")

    @promise(SpoutPromise.NO_OVERLAP)
    def test_no_row_comes_twice(self) -> None:
        """Neither in one batch nor in two."""
        repeated = self.filled.compare(self._all_rows()).repeated
        if repeated:
            broken(f"{len(repeated)} rows came more than once, the first is {repeated[0]!r}")

    @promise(SpoutPromise.ORDER)
    def test_the_rows_of_a_partition_come_in_its_order(self) -> None:
        """Batch after batch, and within a batch part after part, in one part and in several."""
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
        """No batch has more rows than the declared limit."""
        filled, life = self.begin()
        limit = filled.source.limit or 0
        for batch in filled.drain(life):
            if len(batch.rows) > limit:
                broken(f"batch {batch.txid} has {len(batch.rows)} rows, the limit is {limit}: {batch.definition!r}")

    @promise(SpoutPromise.THROTTLE, "limit")
    def test_a_throttled_spout_makes_smaller_batches_and_goes_on(self) -> None:
        """At half of the limit, at the smallest share, and at the whole again."""
        filled, limit = self.filled, self.filled.source.limit or 0
        filled.fill(3 * filled.backlog)
        life = filled.live()
        throttled = life.coordinator
        self.needs(throttled.offers("throttle"), "the coordinator has no throttle()")
        last, sizes = None, list[int]()
        for share in (0.5, 1e-9, 0.5, 1.0):
            throttled.throttle(share)
            most, sizes = self._most(share), []
            for _ in range(3):
                if (last := filled.read_next(life, last)) is not None:
                    life.succeeded(last)
                sizes.append(0 if last is None else len(last.rows))
            if not min(sizes):
                broken(f"throttle({share}): there is a backlog, and a batch holds nothing of it")
            if max(sizes) > most:
                broken(
                    f"throttle({share}): the limit is {limit}, and a batch has {max(sizes)} rows, at most {most} are due"
                )
        if max(sizes) <= limit / 2:
            broken(f"throttle(1.0) after throttle(0.5): batches stay at {max(sizes)} rows, the limit is {limit}")

    @promise(SpoutPromise.IDLE)
    def test_where_there_is_nothing_there_is_no_batch(self) -> None:
        """`initialize_transaction` returns None again and again, soon."""
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
        """By a coordinator that has reported nothing new, more than once; and by a new one."""
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
        """A few schedules over a spout that may give rows again."""
        self.run_schedules()

    @promise(SpoutPromise.EXACTLY_ONCE, "replays")
    def test_random_failures_end_exact(self) -> None:
        """A few schedules; `spout_suite` runs more."""
        self.run_schedules()

    def run_schedules(self) -> None:
        """Run a few random schedules."""
        for number in range(6):
            self.run_schedule(number)
            self.teardown_method()

    def run_schedule(self, number: int) -> None:
        SpoutSchedule(self.filled, self.kind, f"{self.seed}/{number}").run()

    def _most(self, share: float) -> int:
        """How many rows a throttled batch may have; each partition may round up."""
        source = self.filled.source
        return max(source.unit, math.ceil((source.limit or 0) * share)) + (source.partitions - 1) * source.unit

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
    seconds
        When no further schedule is begun. The contract runs to its end, and a few schedules too, unless `at_most` says.
    seed
        Decides everything that is drawn at random.
    at_most
        Seconds after which no check starts: what is left is reported as not run, and the report is not `ok`.
    out
        Where the report is printed; None: standard output, and standard error shows meanwhile what is being checked.

    Returns
    -------
    SpoutReport
        `report.ok`, `report.violated`, `report.raise_if_violated()`.
    """
    report = SpoutReport(seed)
    if not callable(source):
        raise TypeError(
            f"spout_suite was given a {type(source).__name__}; give your subclass of SpoutSource, not an instance"
        )
    contract: type[SpoutContract] = type(
        "SpoutContract", (SpoutContract,), {"source": staticmethod(source), "seed": seed}
    )
    claimed, kind = _scheduled(contract())  # raises what is wrong with the source itself
    promises, checks = list(SpoutPromise), contract.checks()
    runner = SuiteRunner(report, len(checks), at_most, out)
    for name in sorted(checks, key=lambda name: promises.index(checks[name].promise)):
        if checks[name].promise not in SCHEDULED:
            runner.check(contract(), name, kind, name)

    runner.run_schedules(contract(), claimed, kind, seconds)
    runner.end()
    return report


def _scheduled(case: SpoutContract) -> tuple[SpoutPromise | None, str]:
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
