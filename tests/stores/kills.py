"""Kills in the middle of commits: of the server, or of the process that writes an embedded store.

After each kill the batch is tried again, with higher attempts, until it is committed. Then either every value is as if
each batch had come once, or the store has *named* its loss on the way (`StateMismatchError`, `StateLossDetected`) and
the state began anew. Nothing else may be: a wrong value fails, and so does a loss named by a store that keeps its data.
"""

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.harness.forked import die, exit_code_of
from tests.harness.proxy import Point
from tests.stores.catalog import STORES, Home
from tests.stores.drivers import Batch, Driver, Model, apply, check, everything, random_batch
from tests.stores.interruptions import POINTS
from trident.errors import BackendError, StateLossDetected, StateMismatchError
from trident.log.log_interface import MemoryLog
from trident.log.log_state import LogState

NAMED = (StateMismatchError, StateLossDetected)
WIRE_POINTS: tuple[Point, ...] = ("half request", "reply")
RECOVERY_S, BACKOFF_S = 60.0, 0.02


def kill(home: Home, kills: int, seed: int) -> Counter[str]:
    """Run batches, most of them with a kill; return how many ended exact, and which losses were named."""
    return _kill_server(home, kills, seed) if home.store.server is not None else _kill_process(home, kills, seed)


class Fuse:
    """Kills the server once: at the n-th time that a commit comes to a point, or on the wire after that."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._point, self._left = "", 0
        self._wire: Point | None = None
        self.fired = 0

    def arm(self, rng: random.Random) -> str:
        """Choose where; return it as text."""
        self._point = rng.choice([*POINTS, "chunk", "chunk"])
        self._left = rng.randint(1, 4) if self._point == "chunk" else rng.randint(1, 2)
        self._wire = rng.choice([None, *WIRE_POINTS]) if self._point in ("begin", "chunk") else None
        return f"{self._point} {self._left} {self._wire or ''}"

    def reach(self, point: str) -> None:
        """Called by the seams."""
        if point == self._point and self._left:
            self._left -= 1
            if self._left == 0 and self._wire is not None:
                self._home.proxy.arm(self._wire, self._kill)
            elif self._left == 0:
                self._kill()

    def disarm(self) -> None:
        """The attempt is over. A kill that found no time happens now: between two batches."""
        if self._left or self._home.proxy.disarm():
            self._kill()

    def _kill(self) -> None:
        self._left, self.fired = 0, self.fired + 1
        self._home.bounce()


def _kill_server(home: Home, kills: int, seed: int) -> Counter[str]:
    rng, counts, model = random.Random(seed), Counter[str](), Model()
    fuse = Fuse(home)
    driver = Driver(home, home.fresh_name("kills"), None, fuse.reach, proxied=True, cache=rng.choice([0, 100]))
    _commit(driver, fuse, model, rng, all_keys=True)
    for _ in range(kills):
        where = fuse.arm(rng)
        named = _commit(driver, fuse, model, rng)
        if not home.store.keeps:
            # A loss right after the last write of a batch is found when the next one begins.
            named += _commit(driver, fuse, model, rng, all_keys=True)
        _check(driver, model, f"{home.store.name}, seed {seed}, batch {driver.log.state.txid}, {where}")
        counts["kills"] += 1
        counts["loss named" if named else "exact"] += 1
    driver.close()
    assert fuse.fired == kills
    return counts


def _commit(driver: Driver, fuse: Fuse, model: Model, rng: random.Random, all_keys: bool = False) -> list[str]:
    """Commit one batch, however many attempts it takes; return the losses that were named."""
    named: list[str] = []
    deadline = time.monotonic() + RECOVERY_S
    while True:
        # A replay may be another batch: the state is opaque.
        batch = everything(rng) if all_keys else random_batch(rng)
        failure = _try(driver, batch)
        fuse.disarm()
        if failure is None:
            apply(model, batch)
            return named
        assert time.monotonic() < deadline, f"{driver.home.store.name} does not recover: {failure}"
        driver.fail()
        if isinstance(failure, BackendError):
            assert failure.retryable, f"a server that was killed comes back: {failure}"
            time.sleep(BACKOFF_S)  # as the batch loop backs off
        else:
            _name_loss(driver, failure, model, named)
        if rng.random() < 0.5:
            driver.close()  # the next attempt is another process's


def _try(driver: Driver, batch: Batch) -> Exception | None:
    try:
        driver.commit(batch)
    except (BackendError, *NAMED) as error:
        return error
    return None


def _check(driver: Driver, model: Model, what: str) -> None:
    """Compare; a reader whose connection died with the server is told, and reads again."""
    deadline = time.monotonic() + RECOVERY_S
    while True:
        try:
            return check(driver, model, what)
        except BackendError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
            time.sleep(BACKOFF_S)


def _name_loss(driver: Driver, error: Exception, model: Model, named: list[str]) -> None:
    assert not driver.home.store.keeps, f"{driver.home.store.name} keeps its data, but: {error}"
    named.append(type(error).__name__)
    if isinstance(error, StateMismatchError):  # else the replay meets it, if anything committed was lost
        driver.restart_state()
        model.clear()


def _kill_process(home: Home, kills: int, seed: int) -> Counter[str]:
    rng, counts, model = random.Random(seed), Counter[str](), Model()
    driver = Driver(home, home.fresh_name("kills"))
    for batch in [False, *[True] * kills]:
        if batch:
            point, times = rng.choice([*POINTS, "chunk"]), rng.randint(1, 2)
            _victim(driver, random_batch(rng), point, times)
            check(driver, model, f"{home.store.name}, seed {seed}, a process killed at {point} {times}")
            driver.fail()
            counts.update(["kills", "exact"])
        new = random_batch(rng)
        driver.commit(new)
        apply(model, new)
        check(driver, model, f"{home.store.name}, seed {seed}, batch {driver.log.state.txid}")
        if rng.random() < 0.5:
            driver.close()
    driver.close()
    return counts


def _victim(driver: Driver, batch: Batch, point: str, times: int) -> None:
    """Let another process try the batch, and die of SIGKILL on the way."""
    task = driver.home.store.name, driver.home.work, driver.name, driver.log.state.to_data(), driver.attempt
    code = exit_code_of(try_a_batch, *task, batch, point, times)
    assert code == -signal.SIGKILL, f"{point} {times}: exit code {code}"


def try_a_batch(
    store: str, work: Path, name: str, log_data: Any, attempt: int, batch: Batch, point: str, times: int
) -> None:
    """Try a batch on an embedded store; die at the n-th time that the point is reached, or right after the commit."""
    log, left = MemoryLog("campaign"), times
    log.state = LogState.from_data(log_data)

    def reach(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if left == 0:
            die()

    driver = Driver(Home(STORES[store], work), name, log, reach)
    driver.attempt = attempt
    driver.write(batch)
    die()  # all is written and nothing recorded
