"""SpoutContract: what every spout must do.

Partitions that are added, that are lost, and that come back.
"""

from __future__ import annotations

import time
from unittest import SkipTest

from trident.errors import SpoutError
from trident.spout.interfaces import SpoutType
from trident.testing.checks.expecting import broken, promise
from trident.testing.spout.contract_batches import BatchChecks
from trident.testing.spout.contract_definitions import DefinitionChecks
from trident.testing.spout.contract_surroundings import SurroundingChecks
from trident.testing.spout.filled_source import FilledBatch, FilledSource, rows_of
from trident.testing.spout.source_under_test import LosesPartitions, Row, SpoutPromise
from trident.testing.spout.spout_checks import SpoutChecks
from trident.testing.spout.spout_life import Life
from trident.testing.spout.spout_schedules import SpoutSchedule


class PartitionChecks(SpoutChecks):
    """The checks of sources with partitions."""

    @promise(SpoutPromise.NEW_PARTITIONS)
    def test_a_partition_that_is_added_is_read_from_its_first_row(self) -> None:
        """One that appears while a driver runs, and one that appears between two drivers."""
        filled, source = self.filled, self.filled.source
        self.needs(source.adds_partitions, "no partition can be added")
        filled.fill(filled.backlog)
        life = filled.live()
        batches = filled.drain(life)
        for number, restarted in enumerate((False, True) if source.grows else (True,)):
            life = filled.live() if restarted else life
            added = source.partitions + number
            filled.fill(5, added)
            filled.fill(5)
            batches += filled.drain(life, batches[-1] if batches else None, want=10)
            missing = filled.compare(rows_of(batches), filled.rows(added)).missing
            if missing:
                when = "between two drivers" if restarted else "while the driver ran"
                some = f"{len(missing)} of its 5 rows did not come, the first is {missing[0]!r}"
                broken(f"partition {added} was added {when}: {some}")

    @promise(SpoutPromise.LOST_PARTITIONS)
    def test_the_rows_of_a_lost_partition_count_once(self) -> None:
        """A batch that was defined before is not read in part; after the partition is back, all rows have come once."""
        self.needs_replays()
        filled, source = self.filled, self.filled.source
        self.needs(isinstance(source, LosesPartitions), "the source has no lost()")
        assert isinstance(source, LosesPartitions)
        filled.fill(filled.backlog)
        life, lost = filled.live(), source.partitions - 1
        batches, second = self._begin(life, lost)
        with source.lost(lost):
            if self.kind is SpoutType.TRANSACTIONAL:
                self._expect_whole_or_error(life, second)
            else:
                batches += self._drain_what_is_there(life, batches, lost)
        if self.kind is SpoutType.TRANSACTIONAL:
            again = life.read(second.txid, second.definition)
            filled.expect_same(again, second.rows, f"batch {second.txid}, read after partition {lost} was back")
            life.succeeded(second.txid, second.definition)
            batches.append(second)
        want = len(filled.rows()) - len(rows_of(batches))
        batches += filled.drain(life, batches[-1], want=want)
        filled.expect_all(rows_of(batches), f"partition {lost} was lost and came back")

    def _begin(self, life: Life, partition: int) -> tuple[list[FilledBatch], FilledBatch]:
        """Commit batches up to the first with rows of a partition; return them, and the second, which is only read."""
        filled, batches = self.filled, list[FilledBatch]()
        names, tally = set[str](), filled.tally(4 * filled.backlog)
        while tally.may_go_on:
            names.update(map(repr, filled.rows(partition)))
            batch = self._read_batch(life, batches[-1] if batches else None)
            if batch is None:
                self.needs(
                    filled.source.grows and not names.isdisjoint(_names(filled, batches)), "too few batches can be had"
                )
                filled.fill(filled.backlog)
            elif not names.isdisjoint(_names(filled, [batch])) and not names.isdisjoint(_names(filled, batches)):
                return batches, batch
            else:
                tally.add(batch.rows)
                batches.append(batch)
                life.succeeded(batch.txid, batch.definition)
        raise SkipTest("the rows of the partition are spread over too many batches")

    def _expect_whole_or_error(self, life: Life, batch: FilledBatch) -> None:
        """Read a batch while a partition is lost: it cannot be read, or it is the same."""
        try:
            again = life.read(batch.txid, batch.definition, attempt=1)
        except Exception:  # noqa: BLE001 - another promise says which error
            return
        self.filled.expect_same(again, batch.rows, f"batch {batch.txid}, read while a partition was lost")

    def _drain_what_is_there(self, life: Life, done: list[FilledBatch], lost: int) -> list[FilledBatch]:
        """Read and commit what can be read while a partition is lost; an opaque spout gives all of the others."""
        filled, batches = self.filled, list[FilledBatch]()
        present = [at for at in filled.stated if at != lost]
        if filled.source.grows and present:
            filled.fill(5, *present)
        others = [row for at in present for row in filled.rows(at)]
        until = time.monotonic() + 2 * filled.source.patience_s
        while filled.compare(rows_of([*done, *batches]), others).missing:
            if time.monotonic() > until:
                left = filled.compare(rows_of([*done, *batches]), others).missing
                broken(
                    f"partition {lost} is lost, and {len(left)} rows of the others do not come, the first is {left[0]!r}"
                )
            batch = self._attempted(life, [*done, *batches][-1])
            if batch is not None:
                batches.append(batch)
                life.succeeded(batch.txid, batch.definition)
        return batches

    def _attempted(self, life: Life, last: FilledBatch) -> FilledBatch | None:
        try:
            return self._read_batch(life, last, wait=False)
        except SpoutError:
            return None  # the attempt failed, and the next one is defined again

    def _read_batch(self, life: Life, last: FilledBatch | None, wait: bool = True) -> FilledBatch | None:
        txid, previous = (1, None) if last is None else (last.txid + 1, last.definition)
        definition = self.filled.next(life, txid, previous) if wait else life.define(txid, previous)
        return None if definition is None else FilledBatch(txid, definition, list[Row](life.read(txid, definition)))


def _names(filled: FilledSource, batches: list[FilledBatch]) -> set[str]:
    return {repr(filled.source.row_of(row)) for row in rows_of(batches)}


_SCHEDULES = 6


class SpoutContract(BatchChecks, DefinitionChecks, PartitionChecks, SurroundingChecks):
    """What every spout must do. Subclass it, set `source`, and let pytest run it.

    A check of something that source and spout do not claim is skipped.
    """

    @promise(SpoutPromise.AT_LEAST_ONCE)
    def test_random_failures_lose_no_row(self) -> None:
        """A few schedules over a spout that may give rows again."""
        self.needs(self.kind is SpoutType.NON_TRANSACTIONAL, f"the spout is {self.kind.value}")
        self.needs(self.filled.source.at_least_once, "the source says nothing of failures")
        self.run_schedules()

    @promise(SpoutPromise.EXACTLY_ONCE)
    def test_random_failures_end_exact(self) -> None:
        """A few schedules; `spout_suite` runs more."""
        self.needs_replays()
        self.run_schedules()

    def run_schedules(self) -> None:
        """Run a few random schedules."""
        for number in range(_SCHEDULES):
            self.run_schedule(number)
            self.teardown_method()

    def run_schedule(self, number: int) -> None:
        """Run one random schedule over an empty source."""
        SpoutSchedule(self.filled, self.kind, f"{self.seed}/{number}").run()
