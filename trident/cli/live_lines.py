"""How a run goes, in lines: a live one on a terminal, plain ones elsewhere; several sources have a line each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rich.console import Console
from rich.text import Text

from trident.cli.console import say
from trident.naming import amount, counted

if TYPE_CHECKING:
    from rich.status import Status

    from trident.runtime.running import RunningTopology
    from trident.storm.spark.running_storm import RunningStormTopology


class _Seen(NamedTuple):
    """How many tuples there were at a moment, of each source and in all."""

    at: float
    tuples: int
    rows: Mapping[str, int]


class LineDisplay:
    """Live lines on a terminal; elsewhere plain lines every few seconds in which something was committed.

    `console`: where to.
    `name`: the topology's name, which begins the line.
    `every_s`: seconds between two plain lines.
    """

    first = "starting"

    def __init__(self, console: Console, name: str, every_s: float = 5.0) -> None:
        self._console, self._name, self._every_s = console, name, every_s
        self._status: Status | None = None
        self._seen: deque[_Seen] = deque()
        self._line_at = 0.0
        self._line_of: int | None = None  # the batch that was shown last

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(f"{self._name}: {self.first}")
            self._status.start()
        self._line_at = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, running: RunningTopology) -> None:
        now, status = time.monotonic(), running.status
        if self._line_of is None:
            self._line_of = status["txid"]
        if self._status is not None:
            lines = self._lines(running, now, status)
            self._status.update(Text("\n".join([lines[0], *_align(lines[1:])])))
        elif now - self._line_at >= self._every_s and status["txid"] != self._line_of:
            for number, line in enumerate(self._lines(running, now, status)):
                # Each line by itself says of which topology it is: they stand between the lines of a log.
                say(f"{self._name}/{line}" if number else line, console=self._console)
            self._line_at, self._line_of = now, status["txid"]

    def _lines(self, running: RunningTopology, now: float, status: dict[str, Any]) -> list[str]:
        """Return the line of the topology; after it one for each source, if there are several."""
        sources, since = status["sources"], self._look(now, status)
        rate = _rate(status["tuples"], since.tuples, now - since.at, running.seconds)
        total = [f"batch {status['txid']:,}", counted(status["tuples"], "tuple")]
        total += [f"{rate:,.0f} tuples/s" if rate else "waiting for tuples"]
        if len(sources) == 1:
            total += _behind(sources[0])
        last = running.last_progress
        if last is not None:
            total.append(f"commit lag {last['durationMs']['wait'] + last['durationMs']['commit']:,.0f} ms")
        lines = [f"{self._name}: {', '.join([*total, *_troubles(status)])}"]
        if len(sources) > 1:
            lines += [f"{each['description']}: {', '.join(_of_source(each, now, since, running))}" for each in sources]
        return lines

    def _look(self, now: float, status: dict[str, Any]) -> _Seen:
        """Note the tuples of this moment; return the ones noted some seconds ago."""
        rows = {source["description"]: source["numInputRows"] for source in status["sources"]}
        self._seen.append(_Seen(now, status["tuples"], rows))
        while len(self._seen) > 2 and now - self._seen[1].at > 5.0:  # the seconds that a rate is over
            self._seen.popleft()
        return self._seen[0]


class StormLines(LineDisplay):
    """The same of spouts and bolts: one line, whether or not something was acknowledged."""

    first = "running"
    _acked = 0

    def update(self, running: RunningStormTopology) -> None:  # type: ignore[override]
        now = time.monotonic()
        seconds = now - self._line_at
        if seconds < (self._every_s if self._status is None else 1.0):
            return
        self._line_at, line = now, self._line(running, seconds)
        if self._status is not None:
            self._status.update(Text(line))
        else:
            say(line, console=self._console)

    def _line(self, running: RunningStormTopology, seconds: float) -> str:
        status = running.status
        figures, recent = status.statistics.over().figures, status.statistics.over(600).figures
        rate, self._acked = max(0, figures.acked - self._acked) / seconds, figures.acked
        parts = [f"{figures.acked:,} messages acknowledged", f"{rate:,.0f}/s", f"{status.pending:,} pending"]
        if recent.complete_latency_ms is not None:
            parts.append(f"{recent.complete_latency_ms:,.1f} ms on average")
        if figures.failed:
            parts.append(f"{figures.failed:,} failed")
        if running.deaths:
            parts.append(f"workers have died {running.deaths} times")
        return f"{running.name}: {', '.join(parts)}"


def _of_source(source: dict[str, Any], now: float, since: _Seen, running: RunningTopology) -> list[str]:
    rows, before = source["numInputRows"], since.rows.get(source["description"], 0)
    return [f"{_rate(rows, before, now - since.at, running.seconds):,.0f} tuples/s", *_behind(source)]


def _rate(tuples: int, before: int, in_s: float, run_s: float) -> float:
    """Return the tuples per second of the last seconds, at first of the whole run."""
    count, seconds = (tuples - before, in_s) if in_s >= 1 else (tuples, run_s)
    return count / max(seconds, 1e-3)


def _behind(source: dict[str, Any]) -> list[str]:
    """Say how much of a source is still to be read, if that is known."""
    lag = source["lag"]
    if lag is None:
        return []
    if not lag["amount"]:
        return ["up to date"]
    return [f"{amount(lag['amount'], lag['unit'])} behind"]


def _troubles(status: dict[str, Any]) -> list[str]:
    troubles = []
    if status["share"] < 1:
        troubles.append(f"batches cut to {max(1, round(100 * status['share']))} % because they take long")
    if status["failures"]:
        troubles.append(f"{status['failures']} failures (the last: {status['lastFailure']})")
    if status["waiting"]:
        troubles.append(status["waiting"])
    if status["deadLetters"]:
        troubles.append(f"{status['deadLetters']:,} dead letters")
    return troubles


def _align(lines: list[str]) -> list[str]:
    names, figures = zip(*(line.split(": ", 1) for line in lines), strict=True) if lines else ((), ())
    rates = [each.partition(", ")[0] for each in figures]
    rest = [each.partition(", ")[2] for each in figures]
    wide, wide_rate = max(map(len, names), default=0), max(map(len, rates), default=0)
    columns = zip(names, rates, rest, strict=True)
    return [f"  {name:<{wide}}  {rate:>{wide_rate}}  {more}".rstrip() for name, rate, more in columns]
