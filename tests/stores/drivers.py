"""A driver without its loop: the log, the partitions of one state, and a plain dict fed each committed batch once."""

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.stores.catalog import TOPOLOGY, Home
from tests.stores.interruptions import Reach, SeamedState, go_on
from trident.log.log_interface import MemoryLog
from trident.log.records import CommitRecord, ResetRecord
from trident.read.views import StateView
from trident.state import Key, OpaqueMap, Txid
from trident.state.txid import RETRY_BITS
from trident.steps.key_columns import partitions_of
from trident.testing.backend.schedules import Add

KEYS: list[Key] = [(f"key {number:02}",) for number in range(20)]
Batch = Mapping[Key, int | None]
"""What a batch adds to each key; None removes it."""
Model = dict[Key, int]


class Driver:
    """Tries batches as the batch loop does: one attempt after the other, each with a higher number, one log.

    Parameters
    ----------
    log
        The log to go on with; a new one if there is none.
    proxied
        Whether writers and readers go through the proxy.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        log: MemoryLog | None = None,
        reach: Reach = go_on,
        proxied: bool = False,
        cache: int = 0,
    ) -> None:
        self.home, self.name = home, name
        self.log = MemoryLog(TOPOLOGY) if log is None else log
        self.attempt = self.log.epoch << RETRY_BITS
        self._reach, self._proxied, self._cache = reach, proxied, cache
        self._states: list[Any] = []

    def open(self) -> list[SeamedState]:
        if not self._states:
            self._states = self.home.open(self.name, proxied=self._proxied)
            self._seamed = [
                SeamedState(state, self._reach, self.name, partition, self._cache)
                for partition, state in enumerate(self._states)
            ]
        return self._seamed

    def write(self, batch: Batch) -> list[int]:
        """Try the next batch once, all partitions; return those that had input."""
        state = self.log.state
        keys = list(batch)
        places = partitions_of(keys, self.home.store.partitions)
        for partition, at in places.items():
            txid = Txid(
                state.txid + 1, self.attempt, state.winners_of(self.name), state.incarnation,
                state.expected_sentinel(self.name, partition),
            )  # fmt: skip
            part = {keys[place]: batch[keys[place]] for place in at}
            self.open()[partition].run(txid, partial(_update, part))
        return list(places)

    def commit(self, batch: Batch) -> None:
        """Try the next batch once, and record it: it is committed."""
        self.record(self.write(batch))

    def record(self, touched: list[int]) -> None:
        """Record the batch that was written."""
        self.log.append(CommitRecord(self.log.state.txid + 1, self.attempt, {}, {self.name: touched}, {}, 0))

    def fail(self) -> None:
        """The attempt is over; the next one has a higher number."""
        self.attempt += 1

    def takeover(self) -> "Driver":
        """Return a driver that takes the log over, with instances of its own."""
        return Driver(
            self.home, self.name, self.log.reopen(takeover=True), go_on, self._proxied and self.home.store.by_address
        )

    def restart_state(self) -> None:
        """Start anew, as another process does with `state_recovery="discard_totals"`."""
        self.close()
        self.open()
        for state in self._states:
            state.reset()
        self.log.append(ResetRecord(self.name))

    def view(self) -> StateView:
        """Return what a reader sees: its own instances, at the committed snapshot."""
        instances = self.home.open(self.name, True, self._proxied)
        return StateView(instances, lambda: self.log.state.snapshot(self.name), self.name)

    def close(self) -> None:
        """Close the writers; the next attempt opens others."""
        for state in self._states:
            state.close() if hasattr(state, "close") else None
        self._states = []


def _update(part: Batch, state: OpaqueMap) -> None:
    adds = {key: number for key, number in part.items() if number is not None}
    removes = [key for key, number in part.items() if number is None]
    if removes:
        state.multi_remove(removes)
    state.multi_update(list(adds), [Add(number) for number in adds.values()])


def apply(model: Model, batch: Batch) -> None:
    """Feed a batch to a plain dict."""
    for key, number in batch.items():
        if number is None:
            model.pop(key, None)
        else:
            model[key] = model.get(key, 0) + number


def random_batch(rng: random.Random) -> dict[Key, int | None]:
    """Return a batch of up to all keys; a number is as good as unique, so a batch that came twice shows."""
    keys = rng.sample(KEYS, rng.randint(1, len(KEYS)))
    return {key: rng.randint(1, 1 << 40) for key in keys}


def everything(rng: random.Random) -> dict[Key, int | None]:
    """Return a batch of all keys."""
    return {key: rng.randint(1, 1 << 40) for key in KEYS}


def one_key_of_each(partitions: int) -> dict[Key, int | None]:
    return {KEYS[places[0]]: 1 for places in partitions_of(KEYS, partitions).values()}


def check(driver: Driver, model: Model, what: str) -> None:
    """Compare what a reader sees, key by key and as a list if the store can list, with the plain dict."""
    view = driver.view()
    try:
        found = view.multi_get(KEYS)
        wanted = [model.get(key) for key in KEYS]
        assert found == wanted, f"{what}: {differences(found, wanted)}"
        if driver.home.store.limits.lists:
            rows = sorted(view.get_tuples())
            assert rows == sorted((*key, value) for key, value in model.items()), f"{what}: listed {rows}"
    finally:
        view.close()


def differences(found: list[Any], wanted: list[Any]) -> str:
    """Say which keys are wrong."""
    return ", ".join(f"{k[0]} is {f}, not {w}" for k, f, w in zip(KEYS, found, wanted, strict=True) if f != w)
