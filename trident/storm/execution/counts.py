"""What one task has done since it was opened. Only its own thread writes; other threads may read at any time."""

from __future__ import annotations

from dataclasses import dataclass

from trident.storm.storm_tuples import Origin
from trident.storm.streams import SYSTEM


@dataclass(slots=True, eq=False)
class InputCounts:
    """Totals of what one bolt task got from one origin.

    `collector`: the collector of the task; None in `ANSWERED`.
    `execute_s`: seconds within `execute`.
    `process_s`, `process_samples`: seconds from the start of `execute` to the ack, summed over some of the tuples, and of how
    many.
    """

    collector: object
    executed: int = 0
    acked: int = 0
    failed: int = 0
    execute_s: float = 0.0
    process_s: float = 0.0
    process_samples: int = 0

    def totals(self) -> dict[str, float]:
        """Return them by name."""
        return {
            "executed": self.executed,
            "acked": self.acked,
            "failed": self.failed,
            "execute_s": self.execute_s,
            "process_s": self.process_s,
            "process_samples": self.process_samples,
        }


ANSWERED = InputCounts(None)
"""The holder of every tuple that was acked or failed."""


class BoltCounts(dict[Origin, InputCounts]):
    """Totals of one bolt task, by origin."""

    def __init__(self, collector: object) -> None:
        super().__init__()
        self._collector = collector

    def __missing__(self, origin: Origin) -> InputCounts:
        counts = self[origin] = InputCounts(self._collector)
        return counts

    @property
    def answered(self) -> int:
        """How many tuples are acked or failed; ticks do not count."""
        return sum(each.acked + each.failed for each in self._without_ticks())

    @property
    def unanswered(self) -> int:
        """How many executed tuples are neither acked nor failed; ticks need no answer."""
        return sum(each.executed - each.acked - each.failed for each in self._without_ticks())

    def _without_ticks(self) -> list[InputCounts]:
        return [each for origin, each in self.items() if origin.component != SYSTEM]


@dataclass(slots=True, eq=False)
class OutputCounts:
    """Totals of the messages that one spout task emitted to one stream.

    `failed`: those that timed out among them.
    `complete_s`, `complete_samples`: seconds from the emit to the acknowledgement, summed over all acked messages that were
    tracked, and of how many.
    """

    acked: int = 0
    failed: int = 0
    complete_s: float = 0.0
    complete_samples: int = 0

    def totals(self) -> dict[str, float]:
        """Return them by name."""
        return {
            "acked": self.acked,
            "failed": self.failed,
            "complete_s": self.complete_s,
            "complete_samples": self.complete_samples,
        }


class SpoutCounts(dict[str, OutputCounts]):
    """Totals of one spout task, by stream.

    `busy_s`: seconds within `next_tuple`, `ack` and `fail`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy_s = 0.0

    def __missing__(self, stream: str) -> OutputCounts:
        counts = self[stream] = OutputCounts()
        return counts
