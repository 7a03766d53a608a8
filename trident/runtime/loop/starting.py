"""Says whether the next batch may be started now, and how long the loop may sleep."""

from __future__ import annotations

from collections.abc import Mapping

from trident.coordination.coordinator import MasterBatchCoordinator
from trident.runtime.engine.runners import PacesBatches, Runner
from trident.runtime.loop.activity import Activation
from trident.runtime.loop.batch import Batch
from trident.runtime.loop.polling import SpoutPoller
from trident.runtime.loop.retrying import RetryRule

__all__ = ["StartGate"]

_LONGEST_S = 1.0
"""The loop looks this often at the least, so that overdue attempts and a successor are noticed."""


class StartGate:
    """Brings together all that the start of a batch depends on.

    Parameters
    ----------
    batches
        Those in flight, by txid; the loop changes them.
    runner
        Processes them; one that paces batches says how many it wants.
    activity
        Says whether batches are begun at all.
    """

    def __init__(
        self,
        coordinator: MasterBatchCoordinator,
        retrying: RetryRule,
        polling: SpoutPoller,
        batches: Mapping[int, Batch],
        runner: Runner,
        activity: Activation,
    ) -> None:
        self._coordinator, self._retrying, self._polling, self._batches = coordinator, retrying, polling, batches
        self._activity = activity
        self._wants = runner.wants if isinstance(runner, PacesBatches) else None

    def may_start(self, now: float) -> bool:
        """Whether the spouts may be asked for the next batch."""
        return self._polling.at <= now and not self._is_held() and self._coordinator.may_start(now)

    def wait_s(self, now: float) -> float:
        """Return how long nothing can be started, if there is no news."""
        start_time, wait = self._coordinator.start_time(), _LONGEST_S
        if not self._is_held() and (self._coordinator.may_start(now) or start_time > now):
            wait = min(wait, max(self._polling.at, start_time) - now)
        return max(0.0, wait)

    def _is_held(self) -> bool:
        """Whether the next batch waits: for good, for room, until reading says where it begins, or as all will end soon."""
        # Asked several times for each batch, so there is no call that is not needed.
        if self._retrying.fatal is not None and self._retrying.excludes(self._coordinator.next_txid):
            return True
        if self._activity.last is not None and self._activity.excludes(self._coordinator.next_txid):
            return True
        if self._wants is not None and not self._wants(len(self._batches)):
            return True
        brief = bool(self._batches)
        for batch in self._batches.values():
            if batch.undecided is not None:
                return True
            brief = brief and batch.lane.brief
        return brief
