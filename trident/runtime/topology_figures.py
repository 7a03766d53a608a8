"""TopologyFigures: what a running topology says about itself to a page, a REST interface, a heartbeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from trident.coordination.log_state import LogState
from trident.errors import FencedError, describe
from trident.graph import Graph, JoinWithinNode, WindowNode
from trident.observe.at_work import AtWork
from trident.observe.batch_committed import summed
from trident.observe.component_statistics import ComponentDescription, Edge, TopologyStatistics
from trident.observe.recent_batches import RecentBatches
from trident.observe.topology_status import TopologyStatus
from trident.redaction import redacted
from trident.runtime.clock import Clock
from trident.runtime.commit.dead_letters import ranges_by_batch
from trident.runtime.figures.operation_reading import read_statistics
from trident.runtime.figures.operation_totals import OperationTotals
from trident.runtime.loop.progress import Progress
from trident.runtime.start.opened_topology import OpenedTopology
from trident.runtime.start.placements import executors_of
from trident.spout.interfaces import Lag

_STATES = {"running": "ACTIVE", "inactive": "INACTIVE", "stopped": "STOPPED", "failed": "FAILED"}
_OF_PAGE = ("message", "txid", "batches", "tuples", "share", "replays")
_OF_HEALTH = ("failures", "lastFailure", "deadLetters", "waiting")
_LETTERS_SHOWN = 200
_GUARANTEES = ("not exact", "unknown", "exact")  # the weakest first


class TopologyFigures:
    """The statistics of a running topology, and its pages. Any thread may ask.

    `now`: returns `running`, `inactive`, `stopped` or `failed`; `RunningTopology.status`; what it works on; what ended it.
    """

    def __init__(
        self,
        graph: Graph,
        opened: OpenedTopology,
        totals: OperationTotals,
        progress: Progress,
        clock: Clock,
        run_id: str,
        now: Callable[[], tuple[str, Mapping[str, Any], AtWork, BaseException | None]],
    ) -> None:
        self._graph, self._opened, self._totals, self._progress = graph, opened, totals, progress
        self._clock, self._run_id, self._now = clock, run_id, now
        self._began = clock.monotonic()
        self._ended_at: float | None = None

    def end(self) -> None:
        """Let windows end now: what has ended is not idle."""
        self._ended_at = self._clock.monotonic()

    # ---- what does not change ---------------------------------------------------------------------------------------

    @cached_property
    def _operations(self) -> dict[str, ComponentDescription]:
        from trident.explain.operation_list import operations_of_plan

        opened = self._opened
        return operations_of_plan(
            self._graph, opened.plan, executors_of(opened.placements), max(1, opened.runner.parallelism)
        )

    @cached_property
    def _edges(self) -> list[Edge]:
        from trident.explain.operation_list import edges_of_plan

        return edges_of_plan(self._opened.plan)

    @cached_property
    def _described(self) -> list[dict[str, Any]]:
        from trident.explain.descriptions import describe

        return describe(self._graph)

    @cached_property
    def _over_time(self) -> list[str]:
        """The states of windows and of joins over time."""
        return [node.state for node in self._graph.nodes if isinstance(node, WindowNode | JoinWithinNode)]

    # ---- statistics and pages ---------------------------------------------------------------------------------------

    @property
    def statistics(self) -> TopologyStatistics:
        """What the operations did in the batches that were committed."""
        return read_statistics(self._totals, self._operations, self._edges, self._clock_now)

    def topology(self, window_s: int = 0) -> dict[str, Any]:
        """Return the whole, in the shape of Storm UI's `/api/v1/topology/<id>`."""
        return self.status().as_mapping(window_s)

    def component(self, component: str, window_s: int = 0) -> dict[str, Any]:
        """Return one operation or state, in the shape of Storm UI's `/api/v1/topology/<id>/component/<component>`."""
        return self.status().component_as_mapping(component, window_s)

    def visualization(self, window_s: int = 0) -> dict[str, Any]:
        """Return the picture: nodes, and edges with rates."""
        return self.status().visualization(window_s)

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return the newest dead letters that wait, as plain data."""
        letters = self._opened.letters.newest(self._opened.log.state, _LETTERS_SHOWN)
        return [
            {
                "id": letter.id,
                "step": letter.failure.step,
                "tuple": _shown(letter.failure.row),
                "error": redacted(letter.failure.cause),
            }
            for letter in letters
        ]

    def ask_for_letters(self, names: Sequence[str], reason: str | None) -> None:
        """Have dead letters put back, or for a reason discarded; `ValueError` if one of that id does not wait."""
        log, letters = self._opened.log.state, self._opened.letters
        letters.request(log, ranges_by_batch(letters.named(log, names)), reason=reason)

    def status(self) -> TopologyStatus:
        """Return the topology as it is now."""
        (word, status, at_work, error), config = self._now(), self._opened.config
        batches = RecentBatches(
            self._progress.events(),
            math.inf if self._ended_at is not None else self._clock.monotonic(),
            self._clock_now - self._began,
        )
        sources = batches.sources(status["sources"])
        more = {
            **{key: status[key] for key in _OF_PAGE},
            "workersTotal": 1,
            "engine": config.engine if config.workers == "jobs" else f"{config.engine}, resident workers",
            "runId": self._run_id,
            "deactivated": word == "inactive",
            "rates": batches.rates(),
            "phases": batches.phases(),
            "sources": sources,
            "lags": [each._asdict() for each in summed(Lag(**each["lag"]) for each in sources if each["lag"])],
            "lagTrend": self._totals.series.lag(self._clock_now),
            "health": {
                **{key: _shown(status[key]) for key in _OF_HEALTH},
                "leftOut": batches.left_out(self._over_time),
                "fenced": isinstance(error, FencedError),
                "error": None if error is None else redacted(describe(error)),
            },
        }
        return TopologyStatus(
            self._graph.name,
            "trident",
            _STATES[word],
            self._clock_now - self._began,
            config.message_timeout_s,
            len(self._operations),
            batches.tasks,
            at_work,
            self._progress.errors.all(),
            self.statistics,
            self._totals.series,
            self._clock_now,
            states=self._states(batches),
            more=more,
        )

    @property
    def _clock_now(self) -> float:
        return self._clock.monotonic() if self._ended_at is None else self._ended_at

    def _states(self, batches: RecentBatches) -> list[dict[str, Any]]:
        """Return what is known of the states now: how exact, where each commits, and which batch changed it last."""
        last = _last_commits(self._opened.log.state)
        entries = []
        for described in self._described:
            name = described["state"]
            placed, (txid, at_ms) = self._opened.placements.get(name), last.get(name, (None, None))
            streams = [each["guarantee"] for each in described["streams"].values()]
            guarantee = next((each for each in _GUARANTEES if each in streams), None)
            entries.append(
                {
                    **described,
                    "guarantee": guarantee,
                    "exact": {"exact": True, "not exact": False}.get(guarantee or ""),
                    "placement": None if placed is None else placed.where,
                    "placementWhy": None if placed is None else placed.why,
                    "lastTxid": txid,
                    "lastCommitTime": at_ms,
                    "canLookUp": name not in self._over_time,
                    **batches.keys(name),
                }
            )
        return entries


def _shown(value: Any) -> Any:
    return redacted(value) if isinstance(value, str) else value


def _last_commits(log: LogState) -> dict[str, tuple[int | None, int | None]]:
    """Return by state the last batch that changed it, and when; of one long ago only the batch."""
    touched = {name: partitions for name, partitions in list(log.touched.items()) if partitions}
    commits: dict[str, tuple[int | None, int | None]] = {
        name: (max(int(sentinel.txid) for sentinel in list(partitions.values())), None)
        for name, partitions in touched.items()
    }
    for commit in list(log.history):
        for name, partitions in commit.touched.items():
            if partitions:
                commits[name] = (commit.txid, commit.at_ms)
    return commits
