"""`trident run` of spouts and bolts: until Ctrl-C, or until it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from trident.cli.console import Signals, ending_signals, problems, say
from trident.errors import EnvironmentProblem
from trident.storm import StormConfig, StormTopology
from trident.storm.builder import start_on_spark

if TYPE_CHECKING:
    from rich.status import Status

    from trident.storm.spark.running_storm import RunningStormTopology

_LOOK_S = 0.1
_LINE_EVERY_S = 5.0
_LATENCY_OF_S = 600


def run_storm(
    topology: StormTopology,
    config: StormConfig,
    as_json: bool,
    beside: Callable[[RunningStormTopology], AbstractContextManager[None]] | None = None,
) -> int:
    """Run a topology of spouts and bolts and say how it ended; returns the exit code.

    The first SIGINT or SIGTERM deactivates the spouts, waits for what is pending and ends it; the second one ends it at once.
    """
    with ending_signals(
        "stopping: spouts first, then what is pending (once more: at once)",
        "ended at once; what was pending is still with its queues",
        as_json,
    ) as signals:
        try:
            running = start_on_spark(topology, config)
        except EnvironmentProblem:  # a signal to the group of processes ends Spark's JVM
            if signals.received is None:
                raise
            say(f"{config.name}: stopped before it had started")
            return 128 + signals.received
        if running.metrics_url is not None:
            say(f"{config.name}: metrics at {running.metrics_url}")
        try:
            with nullcontext() if beside is None else beside(running):
                _watch(running, signals, _Lines(running, as_json))
        finally:
            running.stop()
    error = running.exception()
    if error is not None:
        raise error
    left = running.pending
    ended = f"; {left:,} were still pending and are with their queues" if left else "; nothing was pending"
    acked = running.status.statistics.over().figures.acked
    say(f"{config.name}: stopped after {acked:,} acknowledged messages{ended}")
    return 0 if signals.received is None else 128 + signals.received


def _watch(running: RunningStormTopology, signals: Signals, lines: _Lines) -> None:
    with lines:
        while not signals.received and not running.await_termination(_LOOK_S):
            lines.update()


class _Lines:
    """A live line on a terminal; elsewhere a plain one every few seconds."""

    def __init__(self, running: RunningStormTopology, as_json: bool) -> None:
        self._running, self._silent = running, as_json
        self._status: Status | None = None
        self._at = time.monotonic()
        self._acked = 0

    def __enter__(self) -> None:
        console = problems()
        if console.is_terminal and not self._silent:
            self._status = console.status(f"{self._running.name}: running")
            self._status.start()

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self) -> None:
        now = time.monotonic()
        if self._silent or now - self._at < (1.0 if self._status is not None else _LINE_EVERY_S):
            return
        line = self._line(now - self._at)
        self._at = now
        if self._status is not None:
            self._status.update(line)
        else:
            say(line, console=problems())

    def _line(self, seconds: float) -> str:
        status = self._running.status
        figures, recent = status.statistics.over().figures, status.statistics.over(_LATENCY_OF_S).figures
        rate, self._acked = max(0, figures.acked - self._acked) / seconds, figures.acked
        parts = [f"{figures.acked:,} messages acknowledged", f"{rate:,.0f}/s", f"{status.pending:,} pending"]
        if recent.complete_latency_ms is not None:
            parts.append(f"{recent.complete_latency_ms:,.1f} ms on average")
        if figures.failed:
            parts.append(f"{figures.failed:,} failed")
        if self._running.deaths:
            parts.append(f"workers have died {self._running.deaths} times")
        return f"{self._running.name}: {', '.join(parts)}"
