"""Drive: a topology that is open, and its loop, which a thread, the calls of a query or the steps of a test turn."""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal

from trident.channel import Clock
from trident.config import Config
from trident.errors import FencedError, StoreAwayError, describe
from trident.graph import Graph, JoinWithinNode, WindowNode, name_of_state
from trident.log.log_state import LogState
from trident.naming import amount
from trident.notebook import RunningGlance
from trident.observe.batch_committed import Placement, RecentBatches, sum_lags
from trident.observe.component_statistics import ComponentDescription, Edge, TopologyStatistics, statistics_of
from trident.observe.events import WHOLE_TOPOLOGY, ReportedError, TopologyStarted, TopologyTerminated
from trident.observe.health import AtWork
from trident.observe.monitoring import Monitoring
from trident.observe.topology_status import TopologyStatus
from trident.plan import Plan
from trident.read.views import StateView
from trident.redaction import redacted
from trident.run.batch import LOOP, Observer
from trident.run.dead_letters import ranges_by_batch, waiting
from trident.run.engine_choice import RunnerOf, is_given_up, open_runner
from trident.run.execution import LaneOf, lanes
from trident.run.loop import BatchLoop
from trident.run.opened_topology import OpenedTopology
from trident.run.placements import OpenLog
from trident.run.progress import Progress
from trident.run.retrying import Waiting, backoff_s
from trident.run.rewinding import rewind
from trident.spout.interfaces import Lag

if TYPE_CHECKING:
    from trident.stream import TridentState

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_STATES = {"running": "ACTIVE", "inactive": "INACTIVE", "stopped": "STOPPED", "failed": "FAILED"}
_OF_PAGE = ("message", "txid", "batches", "tuples", "share", "replays")
_OF_HEALTH = ("failures", "lastFailure", "deadLetters", "waiting")
_LETTERS_SHOWN = 200
_GUARANTEES = ("not exact", "unknown", "exact")  # the weakest first


def opened_to_last(
    graph: Graph, plan: Plan, config: Config, open_log: OpenLog, runner_of: RunnerOf = open_runner
) -> OpenedTopology:
    """Open a topology whose states outlast it: they may be rewound; one that is away is waited for, `store_wait_s` at most."""
    waiting: Waiting | None = None
    while True:
        try:
            return OpenedTopology(graph, plan, config, open_log, runner_of=runner_of, rewind=rewind)
        except StoreAwayError as error:
            waiting = Waiting.after(waiting, error.waits_for, Clock())
            if monotonic() - waiting.since >= config.store_wait_s or is_given_up():
                raise
            pause_s = backoff_s(config, waiting.tries)
            logger.warning("topology %s: %s: %s; trying again in %.1f s", graph.name, waiting, error, pause_s)
        until = monotonic() + pause_s
        while not is_given_up() and monotonic() < until:
            sleep(min(pause_s, _LOOK_S))


class Drive:
    """An opened topology with its loop, which is for one thread; any thread may ask how it goes."""

    def __init__(
        self,
        graph: Graph,
        opened: OpenedTopology,
        monitoring: Monitoring,
        lane_of: LaneOf | None = None,  # None: in the thread that leads the loop
        observer: Observer | None = None,
        active: bool = True,
        clock: Clock | None = None,
        progress: Progress | None = None,  # of the one that this one follows, where both count together
    ) -> None:
        self.name, self.graph, self.config = graph.name, graph, opened.config
        self.opened, self.clock, self._monitoring = opened, clock or Clock(), monitoring
        self.placements, self.partitions, self.gate = opened.placements, opened.plan.partitions, opened.gate
        self.run_id = monitoring.run_id
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self.began = self.clock.monotonic()
        self._places: dict[str, Placement] = {name: placed.where for name, placed in opened.placements.items()}
        size, publish = self.config.progress_kept, monitoring.publish
        self.progress = progress or Progress(opened.plan, size, self.clock, self.run_id, self._places, publish)
        self.loop = BatchLoop(opened, lane_of or lanes(LOOP), self.progress, self.clock, observer, active)
        self.pages = TopologyFigures(self)
        monitoring.watch(self.pages.status)
        publish(TopologyStarted(self.name, self.run_id, self.clock.wall_ms(), self.txid, self._places))

    def end(self, error: BaseException | None = None) -> None:
        """Close everything and tell the listeners; what ended it, if anything did."""
        if error is not None:
            self._note(error)
        self.opened.close()
        self._tell_ended()
        self._ended.set()

    @property
    def is_active(self) -> bool:
        """Whether batches are (or may be) running."""
        return not self._ended.is_set()

    @property
    def is_deactivated(self) -> bool:
        """Whether it was asked to begin no more batches, and has not ended."""
        return not self.loop.start_gate.ordered.active and self.is_active

    def exception(self) -> BaseException | None:
        """Return what ended the topology, None if it runs or was stopped."""
        return self._error

    @property
    def word(self) -> Literal["running", "inactive", "stopped", "failed"]:
        if self.is_active:
            return "inactive" if self.is_deactivated else "running"
        return "stopped" if self._error is None else "failed"

    @property
    def status(self) -> dict[str, Any]:
        """What the topology does now: message, whether it is active, last committed txid, batches, failures, counters.

        `waiting` says which store or source does not answer, and since when; it is empty if all do.
        `deadLetters` counts those, of all runs, that wait to be put back, `leftOut` the tuples that this run has left out.
        `replays` counts the batches that were processed twice (`verify_replays`), could not be, and differed.
        `sources` has the rows of each source in this run, and its lag: an amount and a unit, None if it is not known. `share`
        is how much of their limits the sources may read. `listeners` has how many events each received and missed, and how
        many errors it raised.
        """
        log, progress, (sources, share) = self.log_state, self.progress, self.progress.sources()
        waits = self.loop.waiting if self.is_active else ""
        return {
            "message": f"failed: {self._error}" if self.word == "failed" else waits or self.word,
            "waiting": waits,
            "isActive": self.is_active,
            "txid": log.txid,
            "batches": progress.batches,
            "tuples": progress.tuples,
            "sources": sources,
            "share": share,
            "failures": progress.failures,
            "lastFailure": None if progress.last_failure is None else progress.last_failure.cause,
            "deadLetters": waiting(log),
            "leftOut": progress.left_out,
            "replays": progress.replays,
            "metrics": progress.metrics(),
            "listeners": self._monitoring.listeners(),
        }

    @property
    def at_work(self) -> AtWork:
        """Which batch runs, for how long and where it is; since when none was committed, and what is left to do."""
        if not self.is_active:
            return AtWork()
        moved, recent = max(self.progress.last_recorded, self.began), self.progress.events()
        usual_s = sum(each.phases.total for each in recent) / len(recent) if recent else 0.0
        batch = self.loop.at_work(moved)
        sources, _ = self.progress.sources()
        lags = sum_lags(Lag(**each["lag"]) for each in sources if each["lag"])
        left = " and ".join(amount(*each) for each in lags if each.amount)
        return AtWork(
            self.clock.monotonic() - moved,
            "committed",
            f"{left} to be read" if left and not self.is_deactivated else "",
            max(usual_s, self.config.batch_emit_interval_ms / 1000),
            self.config.message_timeout_s,
            None if batch is None else replace(batch, usual_s=usual_s),
        )

    @property
    def statistics(self) -> TopologyStatistics:
        """What each operation did in the committed batches of ten minutes, three hours, a day, and this run."""
        return self.pages.statistics

    @property
    def errors(self) -> list[ReportedError]:
        """The last ten errors of each operation, oldest first: failed attempts, tuples that were left out, what ended it."""
        return self.progress.errors.all()

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last committed batch; None before the first."""
        last = self.progress.events()[-1:]
        return last[0].as_dict() if last else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last `progress_kept` committed batches, oldest first."""
        return [event.as_dict() for event in self.progress.events()]

    @property
    def txid(self) -> int:
        """The last committed txid, 0 if there is none."""
        return self.log_state.txid

    @property
    def log_state(self) -> LogState:
        """What the log says now: an object that changes as batches are committed."""
        return self.opened.log.state

    @property
    def seconds(self) -> float:
        """Seconds from the first define to the last commit of this run."""
        return self.progress.seconds

    def state(self, state: TridentState | str) -> StateView:
        """Return a state for reading, at the snapshot of the last committed batch."""
        return self.opened.view(name_of_state(state))

    def _repr_html_(self) -> str:
        return self._glance()._repr_html_()

    def _glance(self) -> RunningGlance:
        return RunningGlance(self.name, self.status, self.last_progress, self.seconds, self._places)

    def _note(self, error: BaseException) -> None:
        if self._error is None:
            text = "".join(traceback.format_exception(error))
            self.progress.errors.add(WHOLE_TOPOLOGY, text, self.clock.wall_ms() / 1000)
        self._error = self._error or error

    def _tell_ended(self) -> None:
        error, at_ms = self._error, self.clock.wall_ms()
        cause = (None, None) if error is None else (str(error), type(error).__name__)
        self.pages.end()
        self._monitoring.close(TopologyTerminated(self.name, self.run_id, at_ms, self.txid, *cause))


class TopologyFigures:
    """What a drive says of itself to pages, metrics and heartbeats. Any thread may ask."""

    def __init__(self, drive: Drive) -> None:
        self._drive, self._opened = drive, drive.opened
        self._ended_at: float | None = None
        over_time = (node for node in drive.graph.nodes if isinstance(node, WindowNode | JoinWithinNode))
        self._over_time = [node.state for node in over_time]

    def end(self) -> None:
        """Let windows end now: what has ended is not idle."""
        self._ended_at = self._drive.clock.monotonic()

    @cached_property
    def _components(self) -> tuple[dict[str, ComponentDescription], list[Edge]]:
        from trident.drawing import edges_of_plan, operations_of_plan

        opened = self._opened
        slots = max(1, opened.runner.parallelism)
        return operations_of_plan(self._drive.graph, opened.plan, opened.executors, slots), edges_of_plan(opened.plan)

    @cached_property
    def _descriptions(self) -> list[dict[str, Any]]:
        from trident.explain import describe

        return describe(self._drive.graph)

    @property
    def statistics(self) -> TopologyStatistics:
        return statistics_of(self._drive.progress.totals.over_all(self._clock_now), *self._components)

    def dead_letters(self) -> list[dict[str, Any]]:
        letters = self._opened.letters.newest(self._opened.log.state, _LETTERS_SHOWN)
        return [
            {"id": each.id, "step": why.step, "tuple": _without_secrets(why.row), "error": redacted(why.cause)}
            for each in letters
            for why in [each.failure]
        ]

    def ask_for_letters(self, names: Sequence[str], reason: str | None) -> None:
        """Have dead letters put back, or for a reason discarded; `ValueError` if one of that id does not wait."""
        log, letters = self._opened.log.state, self._opened.letters
        letters.request(log, ranges_by_batch(letters.waiting_letters(log, names)), reason=reason)

    def status(self) -> TopologyStatus:
        drive, config = self._drive, self._drive.config
        word, status, error = drive.word, drive.status, drive.exception()
        batches = RecentBatches(
            drive.progress.events(),
            math.inf if self._ended_at is not None else drive.clock.monotonic(),
            self._clock_now - drive.began,
        )
        sources = batches.sources(status["sources"])
        more = {
            **{key: status[key] for key in _OF_PAGE},
            "workersTotal": 1,
            "engine": config.engine if config.workers == "jobs" else f"{config.engine}, resident workers",
            "runId": drive.run_id,
            "deactivated": word == "inactive",
            "rates": batches.rates(),
            "phases": batches.phases(),
            "sources": sources,
            "lags": [each._asdict() for each in sum_lags(Lag(**each["lag"]) for each in sources if each["lag"])],
            "lagTrend": drive.progress.totals.series.lag(self._clock_now),
            "health": {
                **{key: _without_secrets(status[key]) for key in _OF_HEALTH},
                "leftOut": batches.left_out(self._over_time),
                "fenced": isinstance(error, FencedError),
                "error": None if error is None else redacted(describe(error)),
            },
        }
        return TopologyStatus(
            drive.name,
            "trident",
            _STATES[word],
            self._clock_now - drive.began,
            config.message_timeout_s,
            len(self._components[0]),
            batches.tasks,
            drive.at_work,
            drive.errors,
            self.statistics,
            drive.progress.totals.series,
            self._clock_now,
            states=self._states(batches),
            more=more,
        )

    @property
    def _clock_now(self) -> float:
        return self._drive.clock.monotonic() if self._ended_at is None else self._ended_at

    def _states(self, batches: RecentBatches) -> list[dict[str, Any]]:
        """Return what is known of the states now: how exact, where each commits, and which batch changed it last."""
        log = self._opened.log.state
        last: dict[str, tuple[int | None, int | None]] = {  # of one long ago only the batch is known
            name: (max(int(sentinel.txid) for sentinel in list(partitions.values())), None)
            for name, partitions in list(log.touched.items())
            if partitions
        }
        for commit in list(log.history):
            last |= {name: (commit.txid, commit.at_ms) for name, partitions in commit.touched.items() if partitions}
        entries = []
        for described in self._descriptions:
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


def _without_secrets(value: Any) -> Any:
    return redacted(value) if isinstance(value, str) else value
