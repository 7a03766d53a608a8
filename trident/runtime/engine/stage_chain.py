"""The stages of a Spark job: what each of them reads, and what the driver gets of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trident.runtime.engine.hops import Routes
from trident.runtime.engine.shuffles import Shuffle, Shuffles

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

__all__ = ["Body", "KeptStages", "Placed", "Stages"]

Body = Callable[[int, Any], Iterator[Any]]
"""What a task of a stage does: takes its number and what it reads."""

Placed = Callable[[int, "RDD[Any]"], "RDD[Any]"]
"""Requests the cores of a stage, by its number (from 1), through its first RDD."""


class Stages:
    """Puts stages together, for jobs of the same routes."""

    def __init__(self, context: SparkContext, routes: Routes, placed: Placed) -> None:
        self.routes, self._placed = routes, placed
        self._shuffles = Shuffles(context, routes.count)

    def until(self, end: int, first: RDD[Any], body: Callable[[int], Body]) -> list[Shuffle]:
        """Return what the first stage and the levels before the `end`-th send."""
        return self._sent([self._shuffles.sent(first)], end, body)

    def told(self, sent: list[Shuffle]) -> RDD[Any]:
        """Return what some stages send to the driver."""
        return self._shuffles.read(sent, self.routes.driver)

    def rest(self, sent: list[Shuffle], body: Callable[[int], Body], told: int = 0) -> RDD[Any]:
        """Return what the last stage gives, and what others send to the driver; `told` stages have been asked before."""
        last = len(self.routes.levels)
        sent = self._sent(list(sent), last, body)
        rows = self._level(sent, last, body)
        return rows.union(self.told(sent[told:])) if self.routes.driver and sent[told:] else rows

    def _sent(self, sent: list[Shuffle], end: int, body: Callable[[int], Body]) -> list[Shuffle]:
        for stage in range(len(sent), end):
            sent.append(self._shuffles.sent(self._level(sent, stage, body)))
        return sent

    def _level(self, sent: list[Shuffle], stage: int, body: Callable[[int], Body]) -> RDD[Any]:
        at = stage - 1
        sources = [sent[source] for source in self.routes.sources[at]]
        arrived = self._shuffles.read(sources, self.routes.levels[at])
        return self._placed(stage + 1, arrived).mapPartitionsWithIndex(body(stage))


class KeptStages(NamedTuple):
    """The stages of a batch that is processed: the job that commits it reads what they sent, as long as this is kept.

    Attributes
    ----------
    sources
        By stage, the digest of its runs of which the driver was told.
    """

    stages: Stages
    sent: list[Shuffle]
    sources: Mapping[int, str]
