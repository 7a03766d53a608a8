"""What a batch holds: the rows of the source, each once, within the limits, in order."""

from __future__ import annotations

import math
import time

from trident.arrow import cast_table, schema_of
from trident.testing.checks.expecting import broken, expect, promise
from trident.testing.spout.filled_source import FilledBatch, rows_of
from trident.testing.spout.source_under_test import Row, SpoutPromise
from trident.testing.spout.spout_checks import SpoutChecks
from trident.testing.spout.spout_life import Life

_IDLE_CALLS = 20
_THROTTLED_BATCHES = 3


class BatchChecks(SpoutChecks):
    """The checks of batches, without failures."""

    @promise(SpoutPromise.FIELDS)
    def test_what_is_emitted_has_the_names_and_types_of_the_fields(self) -> None:
        """Other types are cast, as in a topology; what cannot be cast is wrong."""
        filled = self.filled
        filled.fill(filled.backlog)
        life = filled.live()
        schema, definition = schema_of(life.fields), filled.next(life, 1, None)
        for table in life.tables(1, definition) if definition is not None else ():
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
        filled = self.filled
        filled.fill(filled.backlog)
        life, found = filled.live(), list[Row]()
        filled.drain(life, each=lambda batch: found.extend(life.read(batch.txid, batch.definition, 3)))
        for partition, stated in filled.stated.items():
            names = {repr(row): at for at, row in enumerate(stated)}
            came = [names[name] for row in found if (name := repr(filled.source.row_of(row))) in names]
            late = next((at for at in range(1, len(came)) if came[at] < came[at - 1]), None)
            if late is not None:
                before, after = stated[came[late - 1]], stated[came[late]]
                broken(f"partition {partition}: {after!r} came after {before!r}, which is behind it in the source")

    @promise(SpoutPromise.LIMIT)
    def test_a_backlog_is_read_within_the_limit(self) -> None:
        """No batch has more rows than the declared limit."""
        filled, limit = self.filled, self.filled.source.limit
        self.needs(limit is not None, "the source declares no limit")
        assert limit is not None
        filled.fill(filled.backlog)
        for batch in filled.drain(filled.live()):
            if len(batch.rows) > limit:
                broken(f"batch {batch.txid} has {len(batch.rows)} rows, the limit is {limit}: {batch.definition!r}")

    @promise(SpoutPromise.THROTTLE)
    def test_a_throttled_spout_makes_smaller_batches_and_goes_on(self) -> None:
        """At half of the limit, at the smallest share, and at the whole again."""
        filled, limit = self.filled, self.filled.source.limit
        self.needs(limit is not None, "the source declares no limit")
        assert limit is not None
        filled.fill(3 * filled.backlog)
        life = filled.live()
        throttled = life.coordinator
        self.needs(throttled.offers("throttle"), "the coordinator has no throttle()")
        last, sizes = None, list[int]()
        for share in (0.5, 1e-9, 0.5, 1.0):
            throttled.throttle(share)
            most, sizes = self._most(share), []
            for _ in range(_THROTTLED_BATCHES):
                last = self._next_batch(life, last)
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
        filled = self.filled
        filled.fill(filled.backlog)
        life = filled.live()
        batches = filled.drain(life)
        self.needs(bool(batches), "the spout reads nothing")
        last, times = batches[-1], list[float]()
        if not last.rows:
            broken(f"all is read, and {last.definition!r} is a batch without rows; return None where there is nothing")
        for _ in range(_IDLE_CALLS):
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

    @promise(SpoutPromise.GROWTH)
    def test_what_is_added_is_found(self) -> None:
        """By a coordinator that has reported nothing new, more than once; and by a new one."""
        filled = self.filled
        self.needs(filled.source.grows, "an open coordinator does not find what is added")
        filled.fill(filled.backlog)
        life, read = filled.live(), 0
        batches = filled.drain(life)
        for rows in (1, filled.backlog, 2):
            read = len(rows_of(batches))
            filled.fill(rows)
            batches += filled.drain(life, batches[-1] if batches else None, want=rows)
            if len(rows_of(batches)) == read:
                broken(f"{rows} rows were added after the end was reached, and not one of them came")

    def _most(self, share: float) -> int:
        """How many rows a throttled batch may have; each partition may round up."""
        source = self.filled.source
        assert source.limit is not None
        return max(source.unit, math.ceil(source.limit * share)) + (source.partitions - 1) * source.unit

    def _next_batch(self, life: Life, last: FilledBatch | None) -> FilledBatch | None:
        """Read and commit the batch after another one."""
        txid, previous = (1, None) if last is None else (last.txid + 1, last.definition)
        definition = self.filled.next(life, txid, previous)
        if definition is None:
            return None
        batch = FilledBatch(txid, definition, life.read(txid, definition))
        life.succeeded(txid, definition)
        return batch

    def _all_rows(self) -> list[Row]:
        filled = self.filled
        filled.fill(filled.backlog)
        return rows_of(filled.drain(filled.live()))
