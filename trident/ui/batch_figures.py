"""`BatchFigures`: rates, phases and sources, from the batches that a topology remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from trident.ui.cluster_pages import Page

__all__ = ["PHASES", "BatchFigures"]

PHASES = ("define", "process", "wait", "commit", "record")
_RECENT_S = 10.0
_SHORTEST_S = 1e-3


class BatchFigures:
    """Figures of the batches of the last ten seconds; where these are more than are remembered, of those.

    Parameters
    ----------
    batches
        As of `RunningTopology.recent_progress`.
    now
        On the clock of `recordedAt`.
    age_s
        How long the topology has been looked at.
    """

    def __init__(self, batches: Sequence[Mapping[str, Any]], now: float, age_s: float) -> None:
        self._all = batches
        self._recent = [each for each in batches if each["recordedAt"] > now - _RECENT_S]
        span = min(_RECENT_S, age_s)
        if self._recent and len(self._recent) == len(batches):
            first = batches[0]
            span = now - first["recordedAt"] + first["durationMs"]["total"] / 1000
        self._span_s = max(span, _SHORTEST_S)

    def rates(self) -> Page:
        """Return what is committed per second."""
        return {
            "tuplesPerSecond": self.per_second(sum(each["numInputRows"] for each in self._recent)),
            "batchesPerSecond": self.per_second(len(self._recent)),
            "overSeconds": self._span_s,
        }

    def per_second(self, amount: float) -> float:
        """Return an amount of the recent batches by second."""
        return amount / self._span_s

    def phases(self) -> Page:
        """Return the mean milliseconds of each phase of the remembered batches."""
        count = len(self._all)
        means = {
            phase: sum(each["durationMs"][phase] for each in self._all) / count if count else None
            for phase in (*PHASES, "total")
        }
        return {"batches": count, "meanMs": means}

    def sources(self, told: Sequence[Mapping[str, Any]]) -> list[Page]:
        """Return the sources with rows and lag; `secondsBehind` is how long the lag takes at the rate of now."""
        found = []
        for each in told:
            lag, rate = each["lag"], self.per_second(self.rows.get(each["description"], 0))
            found.append(
                {
                    "source": each["description"],
                    "tuples": each["numInputRows"],
                    "tuplesPerSecond": rate,
                    "lag": lag,
                    "secondsBehind": lag["amount"] / rate if lag and lag["unit"] == "records" and rate else None,
                }
            )
        return found

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The rows of the recent batches by source."""
        return _summed(
            (each["description"], each["numInputRows"]) for batch in self._recent for each in batch["sources"]
        )

    @cached_property
    def keys(self) -> Mapping[str, int]:
        """The keys that the recent batches updated, by state."""
        return _summed(pair for batch in self._recent for pair in batch["stateKeysUpdated"].items())

    def tasks(self) -> int:
        """Return into how many parts the last batch was cut."""
        return int(self._all[-1]["numTasks"]) if self._all else 0


def _summed(pairs: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, amount in pairs:
        found[name] = found.get(name, 0) + amount
    return found
