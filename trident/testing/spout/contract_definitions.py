"""What a definition is, and what a batch is that is read again, elsewhere, or by a new driver."""

from __future__ import annotations

import copy

from trident.coordination.framing import decode, encode
from trident.testing.checks.expecting import broken, expect, promise
from trident.testing.spout.filled_source import FilledBatch
from trident.testing.spout.source_under_test import SpoutPromise
from trident.testing.spout.spout_checks import SpoutChecks
from trident.testing.spout.spout_life import Life, read_in_another_process

_MANY_BATCHES = 24
_ALLOWED_BYTES = 64  # numbers become longer
_AHEAD = 3


class DefinitionChecks(SpoutChecks):
    """The checks of definitions and replays."""

    @promise(SpoutPromise.PLAIN)
    def test_a_definition_is_plain_data(self) -> None:
        """It comes back from the log as it was, and no call changes it."""
        filled = self.filled
        filled.fill(filled.backlog)
        life, txid, previous = filled.live(), 1, None
        filled.next(life, 1, None)  # which waits until there is something
        while txid <= _AHEAD + 1:
            before = copy.deepcopy(previous)
            definition = life.define_here(txid, previous)
            if definition is None:
                break
            expect(
                previous, before, f"the definition of batch {txid - 1}, after it was passed on to define batch {txid}"
            )
            try:
                expect(decode(encode(definition)), definition, f"the definition of batch {txid}, read from the log")
            except ValueError as error:
                broken(f"the definition of batch {txid}: {error}")
            before = copy.deepcopy(definition)
            life.read(txid, definition)
            life.coordinator.success(txid, definition)
            expect(definition, before, f"the definition of batch {txid}, after the batch was read and committed")
            txid, previous = txid + 1, definition

    @promise(SpoutPromise.SMALL)
    def test_a_definition_does_not_grow_with_the_batches(self) -> None:
        """Batches of the same size have definitions of the same size, however many there were."""
        batches = self._many_batches()
        sizes, few = [_size(batch) for batch in batches], len(batches) // 4
        if few and max(sizes[few:]) > max(sizes[:few]) * 1.5 + _ALLOWED_BYTES:
            largest = sizes.index(max(sizes))
            broken(
                f"the first {few} definitions take at most {max(sizes[:few])} bytes, that of batch {largest + 1} takes "
                f"{sizes[largest]}: {batches[largest].definition!r}"
            )

    @promise(SpoutPromise.REPLAY)
    def test_a_definition_read_again_has_the_same_rows(self) -> None:
        """At once, in another attempt, after later batches were defined, and after the source has grown."""
        self.needs_identical_replays()
        filled = self.filled
        filled.fill(filled.backlog)
        life = filled.live()
        batches = self._read_uncommitted(life)
        for attempt in (1, 2):
            for batch in batches:
                again = life.read(batch.txid, batch.definition, attempt=attempt)
                filled.expect_same(again, batch.rows, f"batch {batch.txid}, read again")
            if filled.source.grows:
                filled.fill(filled.backlog)

    @promise(SpoutPromise.CUTS)
    def test_a_definition_has_the_same_rows_in_any_number_of_parts(self) -> None:
        """From 1 to 64, for as many tasks."""
        filled = self.filled
        filled.fill(filled.backlog)
        life = filled.live()
        self.needs(life.rereads, "a definition is read once")

        def cut(batch: FilledBatch) -> None:
            for parallelism in (2, 3, 7, 64):
                found = life.read(batch.txid, batch.definition, parallelism)
                filled.expect_same(found, batch.rows, f"batch {batch.txid} for {parallelism} tasks")

        filled.drain(life, each=cut)

    @promise(SpoutPromise.ELSEWHERE)
    def test_another_coordinator_reads_the_same_rows(self) -> None:
        """One of a new spout in this process, and one of the pickled spout in another process."""
        self.needs_identical_replays()
        filled = self.filled
        filled.fill(filled.backlog)
        batches = self._read_uncommitted(filled.live())
        other = filled.live()
        for batch in batches:
            again = other.read(batch.txid, batch.definition)
            filled.expect_same(again, batch.rows, f"batch {batch.txid}, read by a new coordinator")
        if filled.source.durable:
            defined = [(batch.txid, batch.definition) for batch in batches]
            for batch, rows in zip(batches, read_in_another_process(filled.source.spout(), defined), strict=True):
                filled.expect_same(rows, batch.rows, f"batch {batch.txid}, read in another process")

    @promise(SpoutPromise.AHEAD)
    def test_batches_may_be_defined_ahead(self) -> None:
        """Three are defined, each from the one before; then they are read and committed, the next ones meanwhile waiting."""
        filled = self.filled
        filled.fill(filled.backlog)
        life, tally, waiting, last = filled.live(), filled.tally(), list[FilledBatch](), None
        while tally.may_go_on:
            while len(waiting) < _AHEAD:
                following = self._defined_after(life, last, wait=not waiting and tally.is_short)
                if following is None:
                    break
                waiting.append(following)
                last = following
            if not waiting:
                break
            batch = waiting.pop(0)
            tally.add(life.read(batch.txid, batch.definition))
            life.succeeded(batch.txid, batch.definition)
        filled.expect_all(tally.rows, "batches that were defined before those before them were committed")

    @promise(SpoutPromise.RETRY)
    def test_a_failed_batch_is_defined_again_from_the_same_place(self) -> None:
        """Each batch is defined and read, given up, defined again from the same definition, read and committed."""
        self.needs_replays()
        filled = self.filled
        filled.fill(filled.backlog)
        life, tally, last = filled.live(), filled.tally(), None
        while tally.may_go_on:
            given_up = self._defined_after(life, last, wait=tally.is_short)
            if given_up is None:
                break
            life.read(given_up.txid, given_up.definition)
            last = self._defined_after(life, last, wait=tally.is_short)
            if last is None:
                broken(
                    f"{given_up.definition!r} was batch {given_up.txid}; asked again, the spout says that there is nothing"
                )
            tally.add(life.read(last.txid, last.definition, attempt=1))
            life.succeeded(last.txid, last.definition)
        filled.expect_all(tally.rows, "batches that were defined twice, committed once")

    @promise(SpoutPromise.RESTART)
    def test_a_new_coordinator_goes_on_from_the_last_definition(self) -> None:
        """Each batch has a driver of its own, with nothing but the definition of the batch before, as the log keeps it."""
        self.needs_replays()
        filled = self.filled
        filled.fill(filled.backlog)
        tally, last = filled.tally(), None
        while tally.may_go_on:
            life = filled.live()
            last = self._defined_after(life, last, wait=tally.is_short)
            if last is None:
                break
            tally.add(life.read(last.txid, last.definition))
            life.succeeded(last.txid, last.definition)
            filled.crash(life)
        filled.expect_all(tally.rows, "batches of one driver each")

    def _defined_after(self, life: Life, last: FilledBatch | None, wait: bool) -> FilledBatch | None:
        """Have the batch after another one defined; where there is nothing, wait a while if `wait`."""
        txid, previous = (1, None) if last is None else (last.txid + 1, last.definition)
        definition = self.filled.next(life, txid, previous) if wait else life.define(txid, previous)
        return None if definition is None else FilledBatch(txid, definition, [])

    def _read_uncommitted(self, life: Life) -> list[FilledBatch]:
        """Define and read the first batches, and commit none."""
        batches, last = list[FilledBatch](), None
        while len(batches) < _AHEAD and (last := self._defined_after(life, last, wait=not batches)) is not None:
            batches.append(last._replace(rows=life.read(last.txid, last.definition)))
        return batches

    def _many_batches(self) -> list[FilledBatch]:
        filled = self.filled
        limit = filled.source.limit
        self.needs(limit is not None or filled.source.grows, "it cannot be had to make many batches")
        filled.fill(_MANY_BATCHES * (limit or 1) if limit or not filled.source.grows else 1)
        life = filled.live()
        batches = filled.drain(life)
        for _ in range(0 if limit else _MANY_BATCHES - 1):
            filled.fill(1)
            batches += filled.drain(life, batches[-1], want=1)
        return batches


def _size(batch: FilledBatch) -> int:
    try:
        return len(encode(batch.definition))
    except ValueError:
        return len(repr(batch.definition))
