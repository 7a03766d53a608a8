"""FencedMapContract: the sentinel, and writers that were replaced, also in the middle of a call.

A store is most easily wrong when a writer is replaced while it writes, and no wait hits that moment twice. So the call runs
under a profiler that counts the calls inside it, and runs again with the event at one of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

from trident.errors import BackendError, FencedError, SecondRunError, StateLossDetected
from trident.state.backing_map import BackingMap
from trident.state.interfaces import Key
from trident.state.sentinel import fenced
from trident.state.txid import Sentinel
from trident.testing.backend.contract import MapContract, keys_of, rows, values_of
from trident.testing.backend.store_under_test import Writer, sentinel_of
from trident.testing.contract import Promise, broken, expect, expect_error, promise

_POINTS = 8
_ABSENT = rows(3, 10**6)
_REFUSED = (FencedError, SecondRunError, StateLossDetected, BackendError)


class FencedMapContract(MapContract):
    """What a map that keeps a sentinel must do, and how far it stops a writer that was replaced.

    A map without `read_sentinel` and `move_sentinel` has its sentinel under a reserved key: the checks of what is stored run
    on it all the same, the checks of fencing do not.
    """

    @promise(Promise.SENTINEL)
    def test_a_sentinel_keeps_the_name_of_its_state(self) -> None:
        self.store.writer().commit(rows(1), 1)
        self._lay("contract/counts", sealed=True)
        found = self._read_sentinel()
        expect(found and found.place, "contract/counts", "the place in the sentinel, read by another instance")

    @promise(Promise.SENTINEL)
    def test_a_sentinel_tells_whether_its_commit_is_complete(self) -> None:
        """It is written unsealed, and sealed afterwards; in between no other instance must take it as complete."""
        if self.store.map().facts.commits_atomically:
            return
        self.store.writer().commit(rows(1), 1)
        mover = self._lay("contract/counts", sealed=False)
        found = self._read_sentinel()
        if found is not None and found == sentinel_of(2) and found.sealed:
            broken("a sentinel that was laid with sealed=False is read with sealed=True: keep all six fields")
        fenced(mover.backing, 0).move_sentinel(sentinel_of(2)._replace(place="contract/counts"))
        found = self._read_sentinel()
        expect(found and (*found[:2], found.sealed), (*sentinel_of(2)[:2], True), "the sentinel after its seal")

    @promise(Promise.SENTINEL, "fences")
    def test_a_sentinel_that_was_moved_since_it_was_read_is_not_moved(self) -> None:
        """Another writer was quicker; whether it is ahead does not matter."""
        self.store.writer().commit(rows(1), 1)
        late = self._read()
        self.store.writer().commit(rows(1), 2)
        self._refuse(late, "move a sentinel from batch 1 to 2 where another writer moved it meanwhile", 5)
        expect(self._read_sentinel(), sentinel_of(2), "the sentinel after a move that was refused")

    @promise(Promise.SENTINEL, "fences")
    def test_of_two_runs_of_one_commit_the_second_is_refused(self) -> None:
        """Spark may run a task twice, with other rows; both have read the same sentinel."""
        self.store.writer().commit(rows(1), 1)
        first, second = self._read(), self._read()
        self._move(first, run="first")
        self._refuse(second, "move a sentinel to batch 2 where another run of batch 2 moved it meanwhile", run="second")
        found = self._read_sentinel()
        expect(found and found[:3], sentinel_of(2)[:3], "the sentinel after a second run")
        if not self.claims.moves_at_commit:
            self._commit_rows(first, 3)  # it goes on, until another attempt takes over
            self.expect_rows(rows(3), "read what the first run put after the second one was refused")
        self.store.writer().commit(rows(3, 10), 2, 1)
        self._refuse(second, "move a sentinel to batch 2 after another attempt committed it", run="second")
        self.expect_rows(rows(3, 10), "read what the attempt after two runs committed")

    @promise(Promise.SENTINEL, "resets", "fences")
    def test_a_store_that_was_emptied_since_the_sentinel_was_read_gets_none(self) -> None:
        """Otherwise the next commit would continue from nothing, silently."""
        self.store.writer().commit(rows(1), 1)
        late = self._read()
        self.store.map().reset()
        self._refuse(late, "move a sentinel from batch 1 to 2 in a store that was emptied meanwhile")
        expect(self._read_sentinel(), None, "the sentinel of a store that was emptied")

    @promise(Promise.SENTINEL, "fences")
    def test_a_first_sentinel_is_laid_by_one_writer_only(self) -> None:
        late = self._read()
        self.store.writer().commit(rows(1), 1)
        self._refuse(late, "lay the first sentinel where another writer laid one meanwhile")

    @promise(Promise.SENTINEL)
    def test_an_empty_partition_has_no_sentinel(self) -> None:
        self._expect_sentinel(None, "the sentinel of an empty partition")

    @promise(Promise.SENTINEL)
    def test_each_commit_leaves_its_sentinel(self) -> None:
        writer, reader = self.store.writer(), self.store.map(reads=True)
        for txid, attempt in ((1, 0), (2, 0), (2, 1), (3, 1), (3, 1 << 20), (1 << 40, 1 << 40)):
            writer.commit(rows(2), txid, attempt)
            self._expect_sentinel(sentinel_of(txid, attempt), "the sentinel after a commit", reader, writer.backing)

    @promise(Promise.SENTINEL)
    def test_an_instance_sees_the_sentinel_that_another_one_left(self) -> None:
        first, second = self.store.writer(), self.store.writer()
        for txid in range(1, 7):
            (first, second)[txid % 2].commit(rows(1), txid, txid)
            self._expect_sentinel(sentinel_of(txid, txid), "the sentinel", first.backing, second.backing)

    @promise(Promise.SENTINEL)
    def test_the_same_sentinel_may_come_again(self) -> None:
        """A task that is tried again, in this process or another, is the same writer."""
        for writer in (self.store.writer(), self.store.writer()):
            writer.commit(rows(3), 1)
            self.expect_rows(rows(3), "read after the same commit came again", writer)
        self._expect_sentinel(sentinel_of(1), "the sentinel")

    @promise(Promise.SENTINEL)
    def test_force_writes_the_sentinel_again(self) -> None:
        writer = self.store.writer()
        writer.commit(rows(3), 7, 7)
        guard = fenced(self.store.map(), 0)
        for sentinel in (sentinel_of(2), Sentinel("another log", 3, 4)):
            guard.move_sentinel(sentinel, True)
            self._expect_sentinel(sentinel, "the sentinel that was laid by force", writer.backing)
            self.expect_rows(rows(3), "read after the sentinel was laid by force")
        guard.move_sentinel(sentinel_of(3), True)
        again = self.store.writer()
        again.commit(rows(3, 5), 4)
        self.expect_rows([*rows(3), *rows(3, 5)], "read after commits under a sentinel laid by force", again)

    @promise(Promise.SENTINEL)
    def test_the_sentinel_is_no_key(self) -> None:
        self.store.writer().commit([], 1)
        self._expect_sentinel(sentinel_of(1), "the sentinel of a commit without rows")
        names: list[tuple[Key, Any]] = [(("sentinel",), 1), (("trident-sentinel",), 1), (("sentinel", 0), 1), ((0,), 1)]
        self.store.writer().commit(names, 2)
        self._expect_sentinel(sentinel_of(2), "the sentinel after keys with its name were put")

    @promise(Promise.PARTITIONS)
    def test_partitions_have_a_sentinel_each(self) -> None:
        if self.store.partitions == 1:
            return
        writers = [self.store.writer("state", number, 3) for number in range(3)]
        for number, writer in enumerate(writers):
            writer.commit(rows(2, number * 10), number + 1, number)
        for number in range(3):
            guard = fenced(self.store.map("state", number, 3), number)
            expect(guard.read_sentinel(), sentinel_of(number + 1, number), f"the sentinel of partition {number}")
        writers[0].commit(rows(2), 5, 5)  # moves no other writer's
        writers[1].commit(rows(2, 50), 3, 1)
        expect(writers[1].read([("key 50",), ("key 51",)]), [50, 51], "read what partition 1 put after partition 0")

    @promise(Promise.RESET, "resets")
    def test_an_emptied_partition_has_no_sentinel(self) -> None:
        self.store.writer().commit(rows(3), 5, 5)
        emptied = self.store.map()
        emptied.reset()
        self._expect_sentinel(None, "the sentinel after a reset", emptied)
        self.store.writer().commit(rows(1), 1)
        self._expect_sentinel(sentinel_of(1), "the sentinel of the first commit after a reset")

    @promise(Promise.SENTINEL, "fences")
    def test_the_sentinel_never_moves_back(self) -> None:
        self.store.writer().commit(rows(3), 5, 5)
        for txid, attempt in ((5, 4), (4, 5), (4, 4), (1, 0)):
            late = self.store.map()
            with expect_error(FencedError, what=f"move the sentinel of batch 5 attempt 5 to {txid} attempt {attempt}"):
                late.move_sentinel(sentinel_of(txid, attempt))
                if self.claims.moves_at_commit:
                    Writer(late, self.store.kind).commit([], txid, attempt)
            self._expect_sentinel(sentinel_of(5, 5), "the sentinel after a move that was refused", late)

    @promise(Promise.SENTINEL, "fences")
    def test_when_others_see_the_sentinel(self) -> None:
        """At once; or, where sentinel and puts are one transaction, with the end of the commit."""
        self.store.writer().commit([], 1)
        mover = self.store.writer()
        mover.begin(2, 1)
        seen = sentinel_of(1) if self.claims.moves_at_commit else sentinel_of(2, 1)
        self._expect_sentinel(seen, "the sentinel of a commit under way, read by another instance")
        mover.end(2, 1)
        self._expect_sentinel(sentinel_of(2, 1), "the sentinel after the commit")

    @promise(Promise.FENCING, "fences")
    def test_a_writer_that_was_replaced_before_its_put_writes_nothing(self) -> None:
        self._replace(lambda zombie: None)

    @promise(Promise.FENCING, "fences")
    def test_a_writer_that_was_replaced_between_two_puts_writes_no_more(self) -> None:
        """The first put was right; the fence must be looked at in the second one too."""
        self._replace(lambda zombie: zombie.put(rows(20), 2))

    @promise(Promise.FENCING, "fences")
    def test_a_sentinel_that_was_laid_by_force_replaces_the_writer_too(self) -> None:
        """As after the policy that adopts a store."""
        if self.claims.moves_at_commit:
            return
        zombie = self.store.writer()
        zombie.begin(5, 5)
        self.store.map().move_sentinel(sentinel_of(1), True)
        # Whoever laid it: to the writer an older sentinel is a store that was rolled back.
        with expect_error(FencedError, StateLossDetected, what="put after the sentinel was laid by force"):
            zombie.put(rows(3), 5, 5)
            zombie.end(5, 5)
        self.expect_rows([(key, None) for key in keys_of(rows(3))], "read after a put that was refused")

    @promise(Promise.FENCING, "fences", "removes")
    def test_a_writer_that_was_replaced_deletes_nothing(self) -> None:
        zombie, successor, pairs = self.store.writer(), self.store.writer(), rows(20)
        zombie.commit(pairs, 1)
        zombie.begin(2)
        successor.commit(pairs, 2, 1)
        with expect_error(FencedError, what="delete after another writer has taken over"):
            zombie.backing.multi_delete(keys_of(pairs))
            zombie.end(2)
        self.expect_rows(pairs, "read after a deletion that was refused")

    @promise(Promise.FENCING, "fences")
    def test_a_writer_that_is_replaced_in_the_middle_of_a_put_stops_there(self) -> None:
        """The successor begins and commits at several points inside of one put of many requests."""
        pairs = rows(3 * self.claims.chunk + 1)
        practice = self.store.writer("practice")
        practice.begin(1)
        points = points_inside(lambda: practice.put(pairs, 1))
        practice.end(1)
        began = time.monotonic()
        practice.commit(pairs[:2], 2)
        self.reader("practice").read(keys_of(pairs))
        grace_s = 0.1 + 5 * (time.monotonic() - began)  # what a successor needs if nothing is in its way
        taken, locked = 0, set[str]()
        for point in points[: 2 * _POINTS]:
            # Where the writer holds a lock, the successor has to wait; another point of that name shows nothing new.
            if taken < _POINTS and point.name not in locked:
                if self._replace_inside(f"inside {point.at}", pairs, point, grace_s):
                    taken += 1
                else:
                    locked.add(point.name)

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

    def _read_sentinel(self) -> Sentinel | None:
        return fenced(self.store.map(), 0).read_sentinel()

    def _move(self, late: BackingMap, attempt: int = 0, run: str = "") -> None:
        """Move the sentinel to batch 2; where it moves with the commit, commit."""
        late.move_sentinel(sentinel_of(2, attempt)._replace(run=run))
        if self.claims.moves_at_commit:
            self._commit_rows(late, 1, attempt)

    def _commit_rows(self, moved: BackingMap, number: int, attempt: int = 0) -> None:
        writer = Writer(moved, self.store.kind)
        writer.start(2, attempt)
        writer.put(rows(number), 2, attempt)
        writer.end(2, attempt)

    def _refuse(self, late: BackingMap, what: str, attempt: int = 0, run: str = "") -> None:
        with expect_error(*_REFUSED, what=what):
            self._move(late, attempt, run)

    def _replace_inside(self, state: str, pairs: list[tuple[Key, int]], point: Point, grace_s: float) -> bool:
        zombie, successor = self.store.writer(state), self.store.writer(state)
        own = [(pairs[0][0], -1), (pairs[-1][0], -2)]  # in the first request, and in the last
        seen: list[Any] = []
        zombie.begin(1)

        def take_over() -> None:
            successor.commit(own, 1, 1)
            seen.extend(self.reader(state).read(keys_of(pairs)))

        def put() -> None:
            with suppress(FencedError):
                zombie.put(pairs, 1)

        in_place = run_with(take_over, put, point, grace_s)
        with suppress(FencedError):
            zombie.end(1)
        after = self.reader(state).read(keys_of(pairs))
        expect([after[0], after[-1]], values_of(own), "read what the successor of a replaced writer wrote")
        if self.claims.fences == "all":
            written = sum(found != before for found, before in zip(after, seen, strict=True))
            expect(written, 0, f"keys that were written by a put in whose middle ({point.name}) a successor took over")
        return in_place

    def _replace(self, before: Callable[[Writer], None]) -> None:
        """Let a writer sleep in a commit, a successor commit, and the writer wake up."""
        zombie, successor, pairs = self.store.writer(), self.store.writer(), rows(20)
        zombie.commit(pairs, 1)
        zombie.begin(2)
        before(zombie)
        taken = [(key, value + 1000) for key, value in pairs]
        successor.commit(taken, 2, 1)
        late = [*[(key, -value - 1) for key, value in pairs], *_ABSENT]
        wanted = [*taken, *[(key, None) for key in keys_of(_ABSENT)]]
        for what in ("put after another writer has taken over", "put again, after the first put was refused"):
            with expect_error(FencedError, what=what):
                zombie.put(late, 2)
                zombie.end(2)
            # A store that fences by key lets new keys through: their attempt has lost, so the value rules undo them.
            self.expect_rows(wanted if self.claims.fences == "all" else taken, "read after a put that was refused")
            if self.claims.moves_at_commit:
                break  # its commit is over with the first refusal
        self._expect_sentinel(sentinel_of(2, 1), "the sentinel after a put that was refused")
        successor.commit(pairs, 3, 1)
        self.expect_rows(pairs, "read what the successor commits next", successor)

    def _expect_sentinel(self, wanted: Sentinel | None, what: str, *maps: BackingMap) -> None:
        for each in (*maps, self.store.map(), self.store.map(reads=True)):
            expect(fenced(each, 0).read_sentinel(), wanted, what)


class Point(NamedTuple):
    """A call inside of a call: its number, and what is called there."""

    at: int
    name: str


def points_inside(call: Callable[[], object]) -> list[Point]:
    """Run a call; return the points inside of it, those between its requests to the store first.

    What is called rarely, from the beginning of the call to its end, is called once per request, not per key.
    """
    places: dict[str, list[int]] = {}
    calls = count()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        name = _name(frame, event, arg)
        if name:
            places.setdefault(name, []).append(next(calls))

    _call_profiled(call, note)
    rare = {name: at for name, at in places.items() if len(at) <= 64} or places
    spread = sorted(rare, key=lambda name: rare[name][0] - rare[name][-1])
    # Of the calls of one name, the middle one first.
    points = (Point(rare[name][int(len(rare[name]) * part)], name) for part in (0.5, 0.25, 0.75) for name in spread)
    return list(dict.fromkeys(points))  # a name that is called once is at all parts


def run_with(event: Callable[[], None], call: Callable[[], object], point: Point, grace_s: float) -> bool:
    """Run a call and, at a point inside of it (else after it), an event in another thread, and wait for that `grace_s` seconds.

    If the call holds a lock that the event needs, that comes later. Returns whether the event ended before the call went on.
    """
    seen, in_place = count(), False
    with ThreadPoolExecutor(1) as thread:
        started: list[Future[None]] = []

        def note(frame: FrameType, kind: str, arg: Any) -> None:
            nonlocal in_place
            if _name(frame, kind, arg) and next(seen) == point.at:
                started.append(thread.submit(event))
                in_place = bool(wait(started, grace_s).done)

        try:
            _call_profiled(call, note)
        finally:
            (started or [thread.submit(event)])[0].result()
    return in_place


def _name(frame: FrameType, event: str, arg: Any) -> str:
    if event == "call":
        return f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
    return f"{frame.f_code.co_name} calls {getattr(arg, '__name__', '')}" if event == "c_call" else ""


def _call_profiled(call: Callable[[], object], note: Callable[[FrameType, str, Any], None]) -> None:
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
