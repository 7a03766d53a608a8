"""What one task has done since it was opened. Only its own thread writes; other threads may read at any time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trident.storm.storm_tuples import Origin
from trident.storm.streams import SYSTEM


def _zeros() -> dict[Origin, int]:
    return defaultdict(int)


def _zero_seconds() -> dict[Origin, float]:
    return defaultdict(float)


@dataclass(slots=True)
class BoltCounts:
    """Totals of one bolt task.

    Attributes
    ----------
    executed, acked, failed
        Tuples by where they came from.
    execute_s
        Seconds within `execute`. Those of a delivery are shared out over its origins by how many tuples each has.
    process_s, process_samples
        Seconds from the start of `execute` to the ack, summed over some of the tuples, and of how many.
    """

    executed: dict[Origin, int] = field(default_factory=_zeros)
    acked: dict[Origin, int] = field(default_factory=_zeros)
    failed: dict[Origin, int] = field(default_factory=_zeros)
    execute_s: dict[Origin, float] = field(default_factory=_zero_seconds)
    process_s: dict[Origin, float] = field(default_factory=_zero_seconds)
    process_samples: dict[Origin, int] = field(default_factory=_zeros)

    def add_executed(self, parts: Sequence[tuple[Origin, int]], seconds: float) -> None:
        """Count a delivery: how many tuples of which origin were executed, and the time for all of them."""
        each_s = seconds / max(1, sum(count for _, count in parts))
        for origin, count in parts:
            self.executed[origin] += count
            self.execute_s[origin] += count * each_s

    def add_sample(self, origin: Origin, seconds: float) -> None:
        """Count one tuple that was timed until its ack."""
        self.process_s[origin] += seconds
        self.process_samples[origin] += 1

    @property
    def answered(self) -> int:
        """How many tuples are acked or failed; ticks do not count."""
        return _without_ticks(self.acked) + _without_ticks(self.failed)

    @property
    def unanswered(self) -> int:
        """How many executed tuples are neither acked nor failed; ticks need no answer."""
        return _without_ticks(self.executed) - self.answered


def _without_ticks(counts: Mapping[Origin, int]) -> int:
    return sum(count for origin, count in counts.items() if origin.component != SYSTEM)


@dataclass(slots=True)
class SpoutCounts:
    """Totals of one spout task.

    Attributes
    ----------
    acked, failed
        Messages by stream; `failed` contains those that timed out.
    complete_s, complete_samples
        Seconds from the emit to the acknowledgement, summed over all acked messages of a stream that were tracked, and of
        how many.
    busy_s
        Seconds within `next_tuple`, `ack` and `fail`.
    """

    acked: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    complete_s: dict[str, float] = field(default_factory=dict)
    complete_samples: dict[str, int] = field(default_factory=dict)
    busy_s: float = 0.0
