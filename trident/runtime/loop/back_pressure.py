"""How much spouts may read: less while batches take longer than `target_batch_s`.

A batch takes a fixed time plus a time for what it reads, and only the latter becomes less when less is read. So the share
follows from a line through the last batch and the last one of another size. Where the fixed time alone is longer than the
target, a batch is left so large that half of its time goes into what it reads.

A batch of which a stage spills to disk is too large whatever time it took: the next ones read half of it. Later ones grow
again, slowly beyond the size that spilled. A commit that lags makes batches wait, because `max_spout_pending` counts them.
"""

from __future__ import annotations

from collections import deque

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
