"""How far sources are ahead, and how much spouts may read: less while batches take longer than `target_batch_s`.

A batch takes a fixed time plus a time for what it reads, and only the latter becomes less when less is read. So the share
follows from a line through the last batch and the last one of another size. Where the fixed time alone is longer than the
target, a batch is left so large that half of its time goes into what it reads.

A batch of which a stage spills to disk is too large whatever time it took: the next ones read half of it. Later ones grow
again, slowly beyond the size that spilled. A commit that lags makes batches wait, because `max_spout_pending` counts them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from trident.errors import describe
from trident.runtime.spouts.batch_spouts import SpoutHandle
from trident.runtime.steps.failures import failing_at
from trident.spout.interfaces import Definition, Lag

_LEAST = 0.001
_SHRINK = 0.25  # at most to this share of a batch that took too long, because it may have been an exception
_GROW = 1.25
_OTHER_SIZE = 1.5
_KEPT = 16
_TRUST = 0.3  # how much a single line through two batches is believed
_SPILLED = 0.5
_FORGIVE = 1.005  # by how much a batch that did not spill raises what the next may read
_SAME = 0.1  # a change of less than this is noise


class BackPressure:
    """Computes the share from the batches so far: arithmetic only.

    `target_s`: how many seconds a batch may take.
    `share`: how much of their limits the spouts may use, from 0.001 to 1.
    """

    def __init__(self, target_s: float) -> None:
        self.share = self._most = 1.0
        self._target_s, self._fixed_s = target_s, 0.0
        self._seen: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def took(self, share: float, seconds: float) -> None:
        """Note how long a batch took that was defined with `share`.

        That may be another share than the present one: several batches are in flight. So each step goes from the share of
        the batch, and a slow store is not answered once for each batch in flight.
        """
        if share == self.share == 1.0 and seconds <= self._target_s:  # as nearly all are
            self._seen.append((share, seconds))
            return
        wanted, self._most = self._wanted(share, seconds), min(self._most * _FORGIVE, 1.0)
        self._seen.append((share, seconds))
        if wanted < share:
            chosen = min(self.share, max(wanted, share * _SHRINK, _LEAST))
        else:
            chosen = max(self.share, min(wanted, share * _GROW, self._most))
        if chosen == 1.0 or abs(chosen / self.share - 1) > _SAME:
            self.share = chosen

    def timed_out(self, share: float) -> None:
        """Note that a batch that was defined with `share` was not done in time, whatever the target is."""
        self.share = min(self.share, max(share * _SHRINK, _LEAST))

    def spilled(self, share: float) -> None:
        """Note that a stage of a batch that was defined with `share` had more rows than memory, and wrote them to disk."""
        self._most = min(self._most, share * (1 - _SAME))
        self.share = min(self.share, max(share * _SPILLED, _LEAST))

    def _wanted(self, share: float, seconds: float) -> float:
        """Return the share with which a batch would take the target's time, at least 1 if less would not help."""
        self._fixed_s += _TRUST * (self._fixed(share, seconds) - self._fixed_s)
        fixed = min(self._fixed_s, seconds)
        slope = (seconds - fixed) / share
        return max(self._target_s - fixed, fixed) / slope if slope > 0 else 1.0

    def _fixed(self, share: float, seconds: float) -> float:
        """Return the seconds of a batch that do not depend on its size, 0 while all were of about one size."""
        for other, took in reversed(self._seen):
            if max(share, other) >= _OTHER_SIZE * min(share, other):
                slope = (took - seconds) / (other - share)
                return min(max(seconds - slope * share, 0.0), seconds)
        return 0.0


class Throttle:
    """Tells the spouts of a topology that can be throttled how much they may read.

    `target_s`: `Config.target_batch_s`; with 0 they always read all they may.
    """

    def __init__(self, spouts: Mapping[str, SpoutHandle], target_s: float) -> None:
        throttled = {name: spout.coordinator for name, spout in spouts.items()} if target_s else {}
        self._spouts = {name: one for name, one in throttled.items() if one.offers("throttle")}
        self._pressure = BackPressure(target_s)
        self._sent = 1.0

    @property
    def share(self) -> float:
        """How much the spouts may read of what they would, from 0.001 to 1."""
        return self._pressure.share

    def send(self) -> None:
        """Send the spouts their share, if it has changed; `StepFailed` if one of them raises."""
        if self._pressure.share != self._sent:
            for name, coordinator in self._spouts.items():
                with failing_at(name):
                    coordinator.throttle(self._pressure.share)
            self._sent = self._pressure.share

    def took(self, share: float | None, seconds: float, bytes_spilled: int = 0) -> None:
        """Note how long a batch took, and whether it spilled; `share` is None if it was defined before this driver's share."""
        if self._spouts and share is not None:
            self._pressure.took(share, seconds)
            if bytes_spilled:
                self._pressure.spilled(share)

    def timed_out(self, share: float | None) -> None:
        """Note that a batch was not processed within `message_timeout_s`."""
        if self._spouts and share is not None:
            self._pressure.timed_out(share)


logger = logging.getLogger(__name__)


class Lags:
    """Asks the spouts that know their lag, and keeps what they said last.

    `known`: by spout; None if a spout does not know it, or has not been asked yet.
    """

    def __init__(self, spouts: Mapping[str, SpoutHandle]) -> None:
        self.known: dict[str, Lag | None] = dict.fromkeys(spouts)
        coordinators = {name: spout.coordinator for name, spout in spouts.items()}
        self._lag_of = {name: each.lag for name, each in coordinators.items() if each.offers("lag")}

    def ask(self, spout: str, definition: Definition) -> None:
        """Ask one spout, if it can say, for its lag behind a batch that was just committed."""
        if spout not in self._lag_of:
            return
        try:
            self.known[spout] = self._lag_of[spout](definition)
        except Exception as error:  # noqa: BLE001  a figure for display is no reason to end a topology
            logger.warning("spout %s: its lag is not known any more: %s", spout, describe(error))
            self.known[spout] = None
            del self._lag_of[spout]
