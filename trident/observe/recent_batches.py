"""`RecentBatches`: rates, phases and sources of the batches that a topology remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trident.observe.batch_committed import BatchCommitted, Phases
from trident.state.key_counts import NO_KEYS

Entry = dict[str, Any]

_RECENT_S = 10.0
_SHORTEST_S = 1e-3


class RecentBatches:
    """Figures of the batches of the last ten seconds; where these are more than are remembered, of those.

    `batches`: oldest first.
    `now`: on the clock of `recorded_at`.
    `age_s`: how long the topology has run.
    """

    def __init__(self, batches: Sequence[BatchCommitted], now: float, age_s: float) -> None:
        self._all = batches
        self._recent = [each for each in batches if each.recorded_at > now - _RECENT_S]
        span = min(_RECENT_S, age_s)
        if self._recent and len(self._recent) == len(batches):
            span = now - batches[0].recorded_at + batches[0].phases.total
        self._span_s = max(span, _SHORTEST_S)

    @property
    def tasks(self) -> int:
        """Into how many parts the last batch was cut."""
        return self._all[-1].read.tasks if self._all else 0

    def rates(self) -> Entry:
        """Return what is committed per second."""
        return {
            "tuplesPerSecond": sum(each.tuples for each in self._recent) / self._span_s,
            "batchesPerSecond": len(self._recent) / self._span_s,
            "overSeconds": self._span_s,
        }

    def phases(self) -> Entry:
        """Return the mean milliseconds of each phase of the remembered batches."""
        count = len(self._all)
        means = [sum(column) / count * 1000 for column in zip(*(each.phases for each in self._all), strict=True)]
        of_phases = dict(zip((*Phases._fields, "total"), (*means, sum(means)), strict=True)) if count else {}
        return {"batches": count, "meanMs": {name: of_phases.get(name) for name in (*Phases._fields, "total")}}

    def sources(self, sources: Sequence[Mapping[str, Any]]) -> list[Entry]:
        """Return the sources with rows and lag; `secondsBehind` is how long that takes at the rate of now, None if unknown."""
        entries = []
        for each in sources:
            name, lag = each["description"], each["lag"]
            rate = sum(batch.read.rows.get(name, 0) for batch in self._recent) / self._span_s
            read = sum(_read(batch, name, lag["unit"]) for batch in self._recent) if lag else 0
            entries.append(
                {
                    "source": name,
                    "tuples": each["numInputRows"],
                    "tuplesPerSecond": rate,
                    "lag": lag,
                    "secondsBehind": lag["amount"] / read * self._span_s if read else None,
                }
            )
        return entries

    def left_out(self, states: Iterable[str]) -> list[Entry]:
        """Return the windows that half of the tuples of the remembered batches came to in vain: too late, without a time."""
        given, entries = sum(each.tuples for each in self._all), []
        for state in states:
            why = (f"{state}/late", f"{state}/no_event_time")
            count = sum(each.counters.get(name, 0) for each in self._all for name in why)
            if count and count * 2 >= given:
                entries.append({"state": state, "tuples": count, "of": given})
        return entries

    def keys(self, state: str) -> Entry:
        """Return how many keys of a state the remembered batches have read, found in a memory, and written."""
        counts = [each.key_counts.get(state, NO_KEYS) for each in self._all]
        read, cached, written = (sum(column) for column in zip(NO_KEYS, *counts, strict=True))
        return {"keysRead": read, "keysCached": cached, "keysWritten": written}


def _read(batch: BatchCommitted, source: str, unit: str) -> int:
    """Return how much of a source a batch has in the unit of its lag; 0 if that is not known."""
    return {"records": batch.read.rows, "bytes": batch.read.sizes}.get(unit, {}).get(source) or 0
