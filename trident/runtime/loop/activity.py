"""Whether batches are begun: `Activation`, which any thread may order, and when the next batch may start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trident.coordination.coordinator import MasterBatchCoordinator
from trident.runtime.loop.batch import Batch
from trident.runtime.loop.polling import SpoutPoller
from trident.runtime.loop.retrying import RetryRule
from trident.spout.interfaces import BatchCoordinator

logger = logging.getLogger(__name__)


class _Order(NamedTuple):
    active: bool
    rested: threading.Event  # set once the topology has come to rest


class Activation:
    """What was ordered, and up to which batch the loop may begin attempts.

    `spouts`: those that want to know whether they are asked.
    `active`: what is ordered at first.
    `last`: while inactive, the last batch of which attempts may begin: one that had begun before may fail. None while active.
    `is_obeyed`: whether it is active and `obey` has nothing to do.
    """

    def __init__(
        self,
        topology: str,
        coordinator: MasterBatchCoordinator,
        spouts: Sequence[BatchCoordinator],
        active: bool = True,
    ) -> None:
        self._topology, self._coordinator, self._spouts = topology, coordinator, spouts
        self._order = _Order(active, threading.Event())
        self._lock = threading.Lock()
        self.last: int | None = None
        self.is_obeyed = active

    # ---- for any thread ---------------------------------------------------------------------------------------------

    @property
    def is_ordered(self) -> bool:
        """Whether batches are to be begun."""
        return self._order.active

    @property
    def rested(self) -> threading.Event:
        """Set once no batch is in flight since the last order to rest; each such order has another one."""
        return self._order.rested

    def order(self, active: bool) -> None:
        """Let batches be begun, or no more."""
        with self._lock:
            if active is not self._order.active:
                self._order = _Order(active, threading.Event())
                self.is_obeyed = False

    # ---- for the loop -----------------------------------------------------------------------------------------------

    def obey(self) -> bool:
        """Do what was ordered; return whether batches are begun again since the last call."""
        with self._lock:
            active, rested = self._order
            self.is_obeyed = active
        if active:
            return self.last is not None and self._go_on()
        if self.last is None:
            self.last = self._coordinator.newest
            logger.info("topology %s: deactivated; batches up to %d are finished", self._topology, self.last)
        if self._coordinator.last_txid >= self.last and not rested.is_set():
            self._notify(False)  # not before: another attempt at a batch may ask a spout
            rested.set()
        return False

    def excludes(self, txid: int) -> bool:
        """Whether this batch is not to be begun now."""
        return self.last is not None and txid > self.last

    def had_nothing(self, txid: int) -> None:
        """Note that the spouts had nothing for batch `txid`, which had begun before and failed."""
        if self.last is not None:
            self.last = min(self.last, txid - 1)
            self.obey()

    def _go_on(self) -> bool:
        self.last = None
        self._notify(True)
        logger.info("topology %s: activated; it goes on after batch %d", self._topology, self._coordinator.last_txid)
        return True

    def _notify(self, active: bool) -> None:
        for spout in self._spouts:
            try:
                if active:
                    spout.activate()
                else:
                    spout.deactivate()
            except Exception:  # it is still asked, or not; what is wrong with it shows when it is asked
                logger.exception(
                    "topology %s: a spout raised when notified that it is active: %s", self._topology, active
                )


_LONGEST_S = 1.0
"""The loop looks this often at the least, so that overdue attempts and a successor are noticed."""


class StartGate:
    """Brings together all that the start of a batch depends on.

    `batches`: those in flight, by txid; the loop changes them.
    `activity`: says whether batches are begun at all.
    """

    def __init__(
        self,
        coordinator: MasterBatchCoordinator,
        retrying: RetryRule,
        polling: SpoutPoller,
        batches: Mapping[int, Batch],
        activity: Activation,
    ) -> None:
        self._coordinator, self._retrying, self._polling, self._batches = coordinator, retrying, polling, batches
        self._activity = activity

    def may_start(self, now: float) -> bool:
        """Whether the spouts may be asked for the next batch."""
        return self._polling.at <= now and not self._is_held() and self._coordinator.may_start(now)

    def wait_s(self, now: float) -> float:
        """Return how long nothing can be started, unless a message comes."""
        start_time, wait = self._coordinator.start_time(), _LONGEST_S
        if not self._is_held() and (self._coordinator.may_start(now) or start_time > now):
            wait = min(wait, max(self._polling.at, start_time) - now)
        return max(0.0, wait)

    def _is_held(self) -> bool:
        """Whether the next batch waits: for good, until it is known where it begins, or as all will end soon."""
        # Asked several times for each batch, so there is no call that is not needed.
        if self._retrying.fatal is not None and self._retrying.excludes(self._coordinator.next_txid):
            return True
        if self._activity.last is not None and self._activity.excludes(self._coordinator.next_txid):
            return True
        brief = bool(self._batches)
        for batch in self._batches.values():
            if batch.undecided is not None or batch.is_guess:
                return True
            brief = brief and batch.lane.brief
        return brief
