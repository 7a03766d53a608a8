"""What a definition is; what a batch is that is read again, elsewhere, by a new driver, or while partitions come and go."""

import copy
import time
from contextlib import suppress
from unittest import SkipTest

from trident.errors import SpoutError
from trident.log.framing import decode, encode
from trident.spout.interfaces import SpoutType
from trident.testing.contract import SpoutPromise, answer_in_another_process, broken, expect, promise
from trident.testing.spout.source_under_test import FilledBatch, FilledSource, Life, SpoutChecks, read_whole, rows_of

_MANY_BATCHES = 24
_AHEAD = 3


class DefinitionChecks(SpoutChecks):
    """The checks of definitions, replays and partitions."""

    @promise(SpoutPromise.PLAIN)
    def test_a_definition_is_plain_data(self) -> None:
        filled, life = self.begin()
        txid, previous = 1, None
        filled.define_next(life)  # which waits until there is something
        while txid <= _AHEAD + 1:
            before = copy.deepcopy(previous)
            definition = life.define_here(txid, previous)
            if definition is None:
                break
            expect(previous, before, f"the definition of batch {txid - 1}, after it was passed to define batch {txid}")
            try:
                expect(decode(encode(definition)), definition, f"the definition of batch {txid}, read from the log")
            except ValueError as error:
                broken(f"the definition of batch {txid}: {error}")
            before = copy.deepcopy(definition)
            life.read(FilledBatch(txid, definition))
            life.coordinator.success(txid, definition)
            expect(definition, before, f"the definition of batch {txid}, after the batch was read and committed")
            txid, previous = txid + 1, definition

    @promise(SpoutPromise.SMALL)
    def test_a_definition_does_not_grow_with_the_batches(self) -> None:
        filled, limit = self.filled, self.filled.source.limit
        self.needs(limit is not None or filled.source.grows, "it cannot be had to make many batches")
        filled.fill(_MANY_BATCHES * (limit or 1) if limit or not filled.source.grows else 1)
        life = filled.live()
        batches = filled.drain(life)
        for _ in range(0 if limit else _MANY_BATCHES - 1):
            filled.fill(1)
            batches += filled.drain(life, batches[-1], want=1)
        sizes, few = [_size(batch) for batch in batches], len(batches) // 4
        if few and max(sizes[few:]) > max(sizes[:few]) * 1.5 + 64:  # numbers become longer
            largest = sizes.index(max(sizes))
            broken(
                f"the first {few} definitions take at most {max(sizes[:few])} bytes, that of batch {largest + 1} takes "
                f"{sizes[largest]}: {batches[largest].definition!r}"
            )

    @promise(SpoutPromise.REPLAY, "identical replays")
    def test_a_definition_read_again_has_the_same_rows(self) -> None:
        filled, life = self.begin()
        batches = self._read_uncommitted(life)
        for attempt in (1, 2):
            for batch in batches:
                filled.expect_same(life.read(batch, attempt=attempt), batch.rows, f"batch {batch.txid}, read again")
            if filled.source.grows:
                filled.fill(filled.backlog)

    @promise(SpoutPromise.CUTS)
    def test_a_definition_has_the_same_rows_in_any_number_of_parts(self) -> None:
        filled, life = self.begin()
        self.needs(life.rereads, "a definition is read once")

        def cut(batch: FilledBatch) -> None:
            for parallelism in (2, 3, 7, 64):
                found = life.read(batch, parallelism)
                filled.expect_same(found, batch.rows, f"batch {batch.txid} for {parallelism} tasks")

        filled.drain(life, each=cut)

    @promise(SpoutPromise.ELSEWHERE, "identical replays")
    def test_another_coordinator_reads_the_same_rows(self) -> None:
        filled, life = self.begin()
        batches = self._read_uncommitted(life)
        other = filled.live()
        for batch in batches:
            filled.expect_same(other.read(batch), batch.rows, f"batch {batch.txid}, read by a new coordinator")
        if filled.source.durable:
            what, spout = "the spout cannot be read in another process", filled.source.spout()
            found = answer_in_another_process(what, read_whole, spout, batches)
            for batch, rows in zip(batches, found, strict=True):
                filled.expect_same(rows, batch.rows, f"batch {batch.txid}, read in another process")

    @promise(SpoutPromise.AHEAD)
    def test_batches_may_be_defined_ahead(self) -> None:
        filled, life = self.begin()
        waiting = list[FilledBatch]()

        def take(last: FilledBatch | None, wait: bool) -> FilledBatch | None:
            while len(waiting) < _AHEAD:
                following = filled.define_next(life, waiting[-1] if waiting else last, wait and not waiting)
                if following is None:
                    break
                waiting.append(following)
            return self._commit(life, waiting.pop(0)) if waiting else None

        rows = rows_of(filled.take_all(take))
        filled.expect_all(rows, "batches that were defined before those before them were committed")

    @promise(SpoutPromise.RETRY, "replays")
    def test_a_failed_batch_is_defined_again_from_the_same_place(self) -> None:
        filled, life = self.begin()

        def take(last: FilledBatch | None, wait: bool) -> FilledBatch | None:
            given_up = filled.read_next(life, last, wait)
            if given_up is None:
                return None
            again = filled.define_next(life, last, wait)
            if again is None:
                broken(f"{given_up.definition!r} was batch {given_up.txid}; asked again, the spout gives nothing")
            return self._commit(life, again, attempt=1)

        filled.expect_all(rows_of(filled.take_all(take)), "batches that were defined twice, committed once")

    @promise(SpoutPromise.RESTART, "replays")
    def test_a_new_coordinator_goes_on_from_the_last_definition(self) -> None:
        filled = self.filled
        filled.fill(filled.backlog)

        def take(last: FilledBatch | None, wait: bool) -> FilledBatch | None:
            life = filled.live()
            if (batch := filled.read_next(life, last, wait)) is not None:
                life.succeed(batch)
                filled.crash(life)
            return batch

        filled.expect_all(rows_of(filled.take_all(take)), "batches of one driver each")

    @promise(SpoutPromise.NEW_PARTITIONS, "adds_partitions")
    def test_a_partition_that_is_added_is_read_from_its_first_row(self) -> None:
        filled, life = self.begin()
        source, batches = filled.source, filled.drain(life)
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

    @promise(SpoutPromise.LOST_PARTITIONS, "replays", "lost")
    def test_the_rows_of_a_lost_partition_count_once(self) -> None:
        filled, life = self.begin()
        source, lost = filled.source, filled.source.partitions - 1
        batches, second = self._read_partition(life, lost)
        with source.lost(lost):
            if self.kind is SpoutType.TRANSACTIONAL:
                self._expect_whole_or_error(life, second)
            else:
                batches += self._drain_what_is_there(life, batches, lost)
        if self.kind is SpoutType.TRANSACTIONAL:
            filled.expect_same(life.read(second), second.rows, f"batch {second.txid}, read with partition {lost} back")
            life.succeed(second)
            batches.append(second)
        batches += filled.drain(life, batches[-1], want=len(filled.rows()) - len(rows_of(batches)))
        filled.expect_all(rows_of(batches), f"partition {lost} was lost and came back")

    @staticmethod
    def _commit(life: Life, batch: FilledBatch, attempt: int = 0) -> FilledBatch:
        batch = batch._replace(rows=life.read(batch, attempt=attempt), is_read=True)
        life.succeed(batch)
        return batch

    def _read_uncommitted(self, life: Life) -> list[FilledBatch]:
        batches, last = list[FilledBatch](), None
        while len(batches) < _AHEAD and (last := self.filled.read_next(life, last, wait=not batches)) is not None:
            batches.append(last)
        return batches

    def _read_partition(self, life: Life, partition: int) -> tuple[list[FilledBatch], FilledBatch]:
        """Commit batches up to the first with rows of a partition; return them, and the second, which is only read."""
        filled, batches = self.filled, list[FilledBatch]()
        names = set[str]()
        for _ in range(_MANY_BATCHES + 8 * filled.backlog):
            names.update(map(repr, filled.rows(partition)))
            batch = filled.read_next(life, batches[-1] if batches else None)
            if batch is None:
                self.needs(filled.source.grows and not names.isdisjoint(_names(filled, batches)), "too few batches")
                filled.fill(filled.backlog)
            elif not names.isdisjoint(_names(filled, [batch])) and not names.isdisjoint(_names(filled, batches)):
                return batches, batch
            else:
                batches.append(batch)
                life.succeed(batch)
        raise SkipTest("the rows of the partition are spread over too many batches")

    def _expect_whole_or_error(self, life: Life, batch: FilledBatch) -> None:
        try:
            again = life.read(batch, attempt=1)
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
                broken(f"partition {lost} is lost; {len(left)} rows of others do not come, the first is {left[0]!r}")
            batch = None
            with suppress(SpoutError):  # the attempt failed, and the next one is defined again
                batch = filled.read_next(life, [*done, *batches][-1], wait=False)
            if batch is not None:
                batches.append(batch)
                life.succeed(batch)
        return batches


def _names(filled: FilledSource, batches: list[FilledBatch]) -> set[str]:
    return {repr(filled.source.row_of(row)) for row in rows_of(batches)}


def _size(batch: FilledBatch) -> int:
    try:
        return len(encode(batch.definition))
    except ValueError:
        return len(repr(batch.definition))
