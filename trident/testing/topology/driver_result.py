"""The result of a step of a `TopologyTestDriver`, its clock, and its events, which no one hears."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trident.observe.events import TopologyEvent
from trident.observe.monitoring import Monitoring
from trident.runtime.loop.batch import Clock
from trident.testing.topology.driver_capture import Row


class HandClock(Clock):
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time does not go back")
        self._now += seconds

    def monotonic(self) -> float:
        """Return the seconds set by hand, not those of the machine."""
        return self._now

    def wall_ms(self) -> int:
        return int(self._now * 1000)

    def cpu(self) -> float:
        """No time: what a step costs on this machine changes nothing."""
        return 0.0


class Unheard(Monitoring):
    """Tells and logs nothing of what happens: the test sees it."""

    def publish(self, event: TopologyEvent) -> None: ...


@dataclass(frozen=True)
class BatchResult:
    """The result of one attempt at a batch.

    Attributes
    ----------
    txid, attempt
        The batch, and the number of the attempt; later attempts have greater numbers.
    committed
        Whether it is committed. If not, the next step tries again.
    failed_at, failure
        The step that failed, or the point given to `fail_at`, and the cause; None if nothing failed.
    tuples
        How many tuples the spouts emitted (0 of a failed attempt).
    keys
        By state, how many keys it was given.
    new_values
        By state, the rows of its stream of new values: key and value.
    """

    txid: int
    attempt: int
    committed: bool
    failed_at: str | None = None
    failure: str | None = None
    tuples: int = 0
    keys: Mapping[str, int] = field(default_factory=dict)
    new_values: Mapping[str, list[Row]] = field(default_factory=dict)
