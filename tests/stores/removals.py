"""Removals under replay, and listings while batches are being committed.

Random batches add to keys and remove keys; attempts stop at random chunks and are replayed as other batches; now and then
another process goes on. In the middle of commits and after each record, what a reader gets key by key and what it lists
must be the plain dict after the last committed batch. In the end everything is removed, and a store that can delete must
hold no trace of it some batches later.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.stores.catalog import Home
from tests.stores.drivers import KEYS, Driver, Model, apply, check, one_key_of_each, random_batch
from trident.errors import UnsupportedOperation
from trident.runtime.steps.key_columns import partitions_of
from trident.state import Key
from trident.state.map_commits import REMOVAL_LAG


class _Crash(Exception):
    """The attempt ends here."""


class _Course:
    """One state's history of adding and removing."""

    def __init__(self, home: Home, seed: int) -> None:
        self.rng = random.Random(seed)
        self.driver = Driver(home, home.fresh_name("removals"), reach=self._reach, cache=self.rng.choice([0, 100]))
        self.model, self.counts = Model(), Counter[str]()
        self._what = f"{home.store.name}, seed {seed}"
        self._look = self._crash = 0

    def commit(self, batch: dict[Key, int | None]) -> None:
        """Commit a batch and compare."""
        touched = self.driver.write(batch)
        self._look = 0
        self.driver.record(touched)
        apply(self.model, batch)
        self.counts["batches"] += 1
        check(self.driver, self.model, f"{self._what}, after batch {self.driver.log.state.txid}")

    def step(self) -> None:
        """Commit a random batch, after attempts that fail; look at it while it is under way."""
        while self.rng.random() < 0.4:
            self._crash = self.rng.randint(1, 8)
            try:
                self.driver.write(random_batch(self.rng, removals=0.5))
            except _Crash:
                self.counts["replays"] += 1
            self._crash = 0
            self.driver.fail()
            if self.rng.random() < 0.3:
                self.driver.close()
        self._look = self.rng.randint(0, 8)
        batch = random_batch(self.rng, removals=0.5)
        self.counts["removals"] += sum(number is None for number in batch.values())
        self.commit(batch)

    def _reach(self, point: str) -> None:
        if point != "chunk":
            return
        if self._look:
            self._look -= 1
            if self._look == 0:
                check(self.driver, self.model, f"{self._what}, within batch {self.driver.log.state.txid + 1}")
                self.counts["looks within a commit"] += 1
        if self._crash:
            self._crash -= 1
            if self._crash == 0:
                raise _Crash


def remove(home: Home, batches: int, seed: int) -> Counter[str]:
    """Run a history of so many batches; return what was done."""
    course = _Course(home, seed)
    try:
        for _ in range(batches):
            course.step()
        _remove_all(course)
    finally:
        course.driver.close()
    return course.counts


def _remove_all(course: _Course) -> None:
    """Remove all keys, let the lag pass, and look for traces in the store itself."""
    home, driver = course.driver.home, course.driver
    driver.close()  # one process removes and deletes
    course.commit(dict.fromkeys(KEYS, 1))
    course.commit(dict.fromkeys(KEYS, None))
    kept = one_key_of_each(home.store.partitions)
    for _ in range(REMOVAL_LAG + 1):
        course.commit(kept)
    if not home.store.limits.lists:
        _refuses_to_list(driver)
    left = _stored(driver)
    wanted = set(kept) if home.store.limits.removes else set(KEYS)
    assert left == wanted, f"{home.store.name}: the store holds {sorted(left)}, not {sorted(wanted)}"
    course.counts["deleted keys"] = len(KEYS) - len(left)


def _refuses_to_list(driver: Driver) -> None:
    view = driver.view()
    try:
        rows = list(view.get_tuples())
    except UnsupportedOperation as refusal:
        assert "cannot list" in str(refusal)  # noqa: PT017  the report runs this without pytest
    else:
        raise AssertionError(f"{driver.home.store.name} claims that it cannot list, and lists {rows}")
    finally:
        view.close()


def _stored(driver: Driver) -> set[Key]:
    """Return the keys that the store itself still has something of."""
    states: list[Any] = driver.home.open(driver.name)
    stored: set[Key] = set()
    for partition, places in partitions_of(KEYS, len(states)).items():
        keys = [KEYS[place] for place in places]
        found = states[partition].map_state.backing.multi_get(keys)
        stored |= {key for key, value in zip(keys, found, strict=True) if value is not None}
    for state in states:
        getattr(state, "close", lambda: None)()
    return stored
