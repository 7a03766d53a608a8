"""What one task has done since it was opened. Only its own thread writes; other threads may read at any time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

_MEASURES = (
    "executed", "acked", "failed", "execute_s", "process_s", "process_samples", "complete_s", "complete_samples",
)  # fmt: skip
_measures_of = attrgetter(*_MEASURES)


@dataclass(slots=True, eq=False)
class Counts:
    """Totals of what one bolt task got from one origin, or of the messages that one spout task emitted to one stream.

    `collector`: the collector of the bolt's task that must answer; None in `ANSWERED`.
    `failed`: of a spout with those that timed out.
    `execute_s`: seconds within `execute`.
    `process_s`, `process_samples`: seconds from the start of `execute` to the ack, summed over some of the tuples, and of how
    many.
    `complete_s`, `complete_samples`: seconds from the emit to the acknowledgement, summed over all acked messages that were
    tracked, and of how many.
    """

    collector: object = None
    executed: int = 0
    acked: int = 0
    failed: int = 0
    execute_s: float = 0.0
    process_s: float = 0.0
    process_samples: int = 0
    complete_s: float = 0.0
    complete_samples: int = 0

    def totals(self) -> dict[str, float]:
        """Return those that are not 0, by name."""
        return {name: value for name, value in zip(_MEASURES, _measures_of(self), strict=True) if value}


ANSWERED = Counts()
"""The holder of every tuple that was acked or failed."""

K = TypeVar("K", bound=Hashable)


class TaskCounts(dict[K, Counts], Generic[K]):
    """Totals of one task: of a bolt by the origin of tuples, of a spout by stream, of an acker by "".

    `busy_s`: seconds within a spout's `next_tuple`.
    """

    def __init__(self, collector: object = None) -> None:
        super().__init__()
        self._collector = collector
        self.busy_s = 0.0

    def __missing__(self, source: K) -> Counts:
        counts = self[source] = Counts(self._collector)
        return counts
