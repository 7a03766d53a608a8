"""Takeovers: a writer sleeps in the middle of a commit, is replaced, wakes up and goes on.

It sleeps between two chunks of a put, or one of its requests is held back on the way to the server. Meanwhile its
successor commits the same batch by a higher attempt, and the next one. What the sleeper writes then must change nothing
that a reader sees, now or after later batches, and it must be told: `FencedError`, or what the store promises instead.
All in one order of events: the successor works in the call that the sleeper is in.
"""

import random
from collections import Counter

from tests.stores.catalog import Home
from tests.stores.drivers import Batch, Driver, Model, apply, check, everything, one_key_of_each, random_batch
from trident.errors import StateError
from trident.state import Key


class Harm(AssertionError):
    """A writer that was replaced has changed what readers see, or was not told."""


def take_over(home: Home, takeovers: int, seed: int) -> Counter[str]:
    """Let so many writers be replaced; return which errors they got. Raises `Harm`."""
    counts: Counter[str] = Counter()
    rng = random.Random(seed)
    for number in range(takeovers):
        one = random.Random(rng.random())
        counts["takeovers"] += 1
        counts[_take_over(home, one, f"{home.store.name}, seed {seed}, takeover {number}")] += 1
    return counts


def harms(home: Home, takeovers: int, seed: int) -> int:
    """Return in how many takeovers the sleeper does harm; for a store that cannot fence."""
    done = 0
    for number in range(takeovers):
        try:
            take_over(home, 1, seed + number)
        except Harm:
            done += 1
    return done


class _Nap:
    """Runs the successor at one chunk of the sleeper's commit."""

    def __init__(self, home: Home, rng: random.Random) -> None:
        self._chunk = rng.randint(1, 4)
        self._proxy = home.proxy if home.store.server is not None and rng.random() < 0.5 else None
        self.awake = True  # until it is put to bed
        self.slept = False
        self.went_on = False  # with the partition that it slept in, to the end of its commit
        self.failed: BaseException | None = None

    def reach(self, point: str) -> None:
        """Called by the sleeper's seams."""
        self.went_on = self.went_on or (self.slept and point == "ended")
        if self.awake or point != "chunk":
            return
        self._chunk -= 1
        if self._chunk == 0 and self._proxy is not None:
            self._proxy.arm("held request", self._sleep)
        elif self._chunk == 0:
            self._sleep()

    def meanwhile(self) -> None:
        raise NotImplementedError

    def _sleep(self) -> None:
        self.slept = True
        try:
            self.meanwhile()
        except BaseException as error:  # noqa: BLE001  the sleeper would take it for its own
            self.failed = error


def _take_over(home: Home, rng: random.Random, what: str) -> str:
    model, nap = Model(), _Nap(home, rng)
    name = home.fresh_name("zombies")
    sleeper = Driver(home, name, None, nap.reach, proxied=home.store.server is not None)
    successor: list[Driver] = []

    def commit(driver: Driver, batch: dict[Key, int | None]) -> None:
        driver.commit(batch)
        apply(model, batch)

    def replace() -> None:
        successor.append(sleeper.takeover())
        # The same batch with other keys, some of every partition; and maybe the next one.
        commit(successor[0], {**random_batch(rng), **one_key_of_each(home.store.partitions)})
        if rng.random() < 0.5:
            commit(successor[0], random_batch(rng))

    nap.meanwhile = replace  # type: ignore[method-assign]
    try:
        commit(sleeper, everything(rng))
        nap.awake = False
        error = _go_on(sleeper, nap, everything(rng), what)
        _unharmed(successor[0], model, what)
        try:
            commit(successor[0], random_batch(rng))
            commit(successor[0], everything(rng))
        except StateError as error:
            raise Harm(f"{what}: the successor cannot go on: {error}") from error
        _unharmed(successor[0], model, f"{what}, two batches later")
        return error
    finally:
        for driver in (sleeper, *successor):
            driver.close()


def _go_on(sleeper: Driver, nap: _Nap, batch: Batch, what: str) -> str:
    """Let the sleeper work, sleep and wake up; return the name of the error that ended it."""
    before = sleeper.log.state.txid
    try:
        sleeper.write(batch)  # and no record: the store itself must tell, before the log does
    except sleeper.home.store.told as error:
        told = type(error).__name__
    except Exception as error:
        if sleeper.home.store.fences and nap.failed is None:
            raise
        told = type(error).__name__
    else:
        told = "nothing"  # which `went_on` says as well
    if nap.failed is not None:
        raise AssertionError(f"{what}: the successor could not commit") from nap.failed
    assert nap.slept, f"{what}: it never slept"
    assert sleeper.log.state.txid > before
    if nap.went_on:
        raise Harm(f"{what}: the replaced writer was not told by the partition that it slept in")
    return told


def _unharmed(successor: Driver, model: Model, what: str) -> None:
    try:
        check(successor, model, what)
    except AssertionError as wrong:
        raise Harm(str(wrong)) from wrong
