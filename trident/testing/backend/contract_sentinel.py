"""The checks of `FencedMapContract` about the sentinel alone: all of it is stored, and it moves by comparison."""

from __future__ import annotations

from trident.errors import BackendError, FencedError, SecondRunError, StateLossDetected
from trident.state.backing_map import BackingMap
from trident.state.sentinel import fenced
from trident.testing.backend.contract import MapContract, rows
from trident.testing.backend.limits import Promise
from trident.testing.backend.store_under_test import Writer, sentinel_of
from trident.testing.checks.expecting import broken, expect, expect_error, promise

_REFUSED = (FencedError, SecondRunError, StateLossDetected, BackendError)


class SentinelContract(MapContract):
    """A sentinel is stored whole, and moves only from what its mover has read."""

    @promise(Promise.SENTINEL)
    def test_a_sentinel_keeps_the_name_of_its_state(self) -> None:
        """It distinguishes two states that share a place."""
        self.store.writer().commit(rows(1), 1)
        self._lay("contract/counts", sealed=True)
        found = fenced(self.store.map(), 0).read_sentinel()
        expect(found and found.place, "contract/counts", "the place in the sentinel, read by another instance")

    @promise(Promise.SENTINEL)
    def test_a_sentinel_tells_whether_its_commit_is_complete(self) -> None:
        """It is written unsealed, and sealed afterwards; in between no other instance must take it as complete."""
        if self.store.map().facts.commits_atomically:
            return
        self.store.writer().commit(rows(1), 1)
        mover = self._lay("contract/counts", sealed=False)
        found = fenced(self.store.map(), 0).read_sentinel()
        if found is not None and found == sentinel_of(2) and found.sealed:
            broken("a sentinel that was laid with sealed=False is read with sealed=True: keep all six fields")
        fenced(mover.backing, 0).move_sentinel(sentinel_of(2)._replace(place="contract/counts"))
        found = fenced(self.store.map(), 0).read_sentinel()
        expect(found and (*found[:2], found.sealed), (*sentinel_of(2)[:2], True), "the sentinel after its seal")

    @promise(Promise.SENTINEL, "fences")
    def test_a_sentinel_that_was_moved_since_it_was_read_is_not_moved(self) -> None:
        """Another writer was quicker; whether it is ahead does not matter."""
        if self.claims.fences == "no":
            return
        self.store.writer().commit(rows(1), 1)
        late = self._read()
        self.store.writer().commit(rows(1), 2)
        with expect_error(*_REFUSED, what="move a sentinel from batch 1 to 2 where another writer moved it meanwhile"):
            self._move(late, 2, attempt=5)
        expect(
            fenced(self.store.map(), 0).read_sentinel(), sentinel_of(2), "the sentinel after a move that was refused"
        )

    @promise(Promise.SENTINEL, "fences")
    def test_of_two_runs_of_one_commit_the_second_is_refused(self) -> None:
        """Spark may run a task twice, with other rows; both have read the same sentinel."""
        if self.claims.fences == "no":
            return
        self.store.writer().commit(rows(1), 1)
        first, second = self._read(), self._read()
        self._move(first, 2, run="first")
        with expect_error(*_REFUSED, what="move a sentinel to batch 2 where another run of batch 2 moved it meanwhile"):
            self._move(second, 2, run="second")
        found = fenced(self.store.map(), 0).read_sentinel()
        expect(found and found[:3], sentinel_of(2)[:3], "the sentinel after a second run")

    @promise(Promise.SENTINEL, "resets")
    def test_a_store_that_was_emptied_since_the_sentinel_was_read_gets_none(self) -> None:
        """Otherwise the next commit would continue from nothing, silently."""
        if self.claims.fences == "no" or not self.claims.resets:
            return
        self.store.writer().commit(rows(1), 1)
        late, other = self._read(), self.store.map()
        other.reset()
        with expect_error(*_REFUSED, what="move a sentinel from batch 1 to 2 in a store that was emptied meanwhile"):
            self._move(late, 2)
        expect(fenced(self.store.map(), 0).read_sentinel(), None, "the sentinel of a store that was emptied")

    @promise(Promise.SENTINEL, "fences")
    def test_a_first_sentinel_is_laid_by_one_writer_only(self) -> None:
        """Both have read that there is none."""
        if self.claims.fences == "no":
            return
        late = self._read()
        self.store.writer().commit(rows(1), 1)
        with expect_error(*_REFUSED, what="lay the first sentinel where another writer laid one meanwhile"):
            self._move(late, 2)

    def _lay(self, place: str, sealed: bool) -> Writer:
        writer = self.store.writer()
        guard = fenced(writer.backing, 0)
        guard.read_sentinel()
        # By force it is laid at once, also where it moves with the commit.
        guard.move_sentinel(sentinel_of(2)._replace(place=place, sealed=sealed), force=sealed)
        return writer

    def _read(self) -> BackingMap:
        late = self.store.map()
        late.read_sentinel()
        return late

    def _move(self, late: BackingMap, txid: int, attempt: int = 0, run: str = "") -> None:
        late.move_sentinel(sentinel_of(txid, attempt)._replace(run=run))
        if self.claims.moves_at_commit:
            writer = Writer(late, self.store.kind)
            writer.start(txid, attempt)
            writer.put(rows(1), txid, attempt)
            writer.end(txid, attempt)
