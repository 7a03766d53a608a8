"""`trident run`: one topology in this process, until it is done or told to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.console import Console

from trident.cli.console import problems, say
from trident.config import Config
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from rich.status import Status

    from trident.runtime.driver.running import RunningTopology

__all__ = ["Beside", "Display", "LineDisplay", "Outcome", "drive", "run"]

Beside = Callable[["RunningTopology"], AbstractContextManager[None]]
"""Returns a context that is open while a topology runs."""

_LOOK_S = 0.1
_LINE_EVERY_S = 5.0
_RATE_OVER_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    signum
        The signal that ended it, None if it ended by itself.
    batches, tuples, seconds, failures
        Of this run; seconds from the first definition to the last commit.
    txid
        The last committed batch.
    """

    signum: int | None
    batches: int
    tuples: int
    seconds: float
    failures: int
    txid: int

    @property
    def exit_code(self) -> int:
        """0, or 128 and the number of the signal, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.signum is None else 128 + self.signum


class Display(Protocol):
    """Shows how a run goes; a context manager that is told several times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, running: RunningTopology) -> None:
        """Read the topology's status and show it."""


def _nothing(running: RunningTopology) -> AbstractContextManager[None]:
    return nullcontext()


def run(topology: TridentTopology, config: Config, once: bool, beside: Beside = _nothing) -> int:
    """Run a topology and say how it ended; returns the exit code.

    The first SIGINT or SIGTERM ends it after the running commit, the second one at once.
    """
    outcome = drive(topology, config, once, LineDisplay(problems(), topology.name), beside)
    if outcome.signum is not None:
        say(f"stopped after batch {outcome.txid}; the next run continues from there")
    elif outcome.batches == 0:
        say(f"complete: nothing new after batch {outcome.txid}")
    else:
        say(
            f"complete: {outcome.batches:,} batches with {outcome.tuples:,} tuples in {outcome.seconds:.1f} s "
            f"({outcome.tuples / max(outcome.seconds, 1e-9):,.0f} tuples/s), the last is batch {outcome.txid}"
        )
    return outcome.exit_code


def drive(
    topology: TridentTopology, config: Config, once: bool, display: Display, beside: Beside = _nothing
) -> Outcome:
    """Start a topology, show its progress, and stop it: when all is committed (`once`), or at a signal.

    Raises what ended the topology, if that was an error.
    """
    with _signals() as signals:
        running = topology.start(config)
        with ThreadPoolExecutor(1, thread_name_prefix="trident-wait") as waiter:
            ended = waiter.submit(running.process_all_available if once else running.await_termination)
            try:
                with beside(running), display:
                    _watch(running, ended, signals, display)
            finally:
                running.stop()
        error = running.exception() or (None if signals.received else ended.exception())
    if error is not None:
        raise error
    status = running.status
    return Outcome(
        signals.received, status["batches"], status["tuples"], running.seconds, status["failures"], status["txid"]
    )


def _watch(running: RunningTopology, ended: Future[Any], signals: _Signals, display: Display) -> None:
    done = threading.Event()
    ended.add_done_callback(lambda _: done.set())
    while not signals.received and not done.wait(_LOOK_S):
        display.update(running)
    display.update(running)


class _Signals:
    """Notices SIGINT and SIGTERM. The handler only notes the first: it may run in the middle of anything."""

    def __init__(self) -> None:
        self.received: int | None = None

    def handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os.write(2, b"\nended at once; what was not recorded is undone and done again by the next run\n")
            os._exit(128 + signum)  # a crash like any other: exactness does not depend on a clean end
        self.received = signum
        os.write(2, b"\nstopping after the commit under way (once more: at once)\n")


@contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    before = {signum: signal.signal(signum, signals.handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        if signals.received is None:  # otherwise the process is about to end, and a second signal must end it at once
            for signum, handler in before.items():
                signal.signal(signum, handler)


class LineDisplay:
    """A live line on a terminal; elsewhere a plain line every few seconds in which something was committed.

    Parameters
    ----------
    console
        Where to.
    name
        The topology's name, which begins the line.
    every_s
        Seconds between two plain lines.
    """

    def __init__(self, console: Console, name: str, every_s: float = _LINE_EVERY_S) -> None:
        self._console, self._name, self._every_s = console, name, every_s
        self._status: Status | None = None
        self._seen: deque[tuple[float, int]] = deque()
        self._line_at = 0.0
        self._line_of: int | None = None  # the batch that was shown last

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(f"{self._name}: starting")
            self._status.start()
        self._line_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, running: RunningTopology) -> None:
        """Show the line of this moment."""
        now, status = time.monotonic(), running.status
        if self._line_of is None:
            self._line_of = status["txid"]
        if self._status is not None:
            self._status.update(self._line(running, now, status))
        elif now - self._line_at >= self._every_s and status["txid"] != self._line_of:
            say(self._line(running, now, status), console=self._console)
            self._line_at, self._line_of = now, status["txid"]

    def _line(self, running: RunningTopology, now: float, status: dict[str, Any]) -> str:
        last = running.last_progress
        lag = (
            "" if last is None else f", commit lag {last['durationMs']['wait'] + last['durationMs']['commit']:,.0f} ms"
        )
        failed = f", {status['failures']} failures (the last: {status['lastFailure']})" if status["failures"] else ""
        failed += f", {status['deadLetters']:,} dead letters" if status["deadLetters"] else ""
        return (
            f"{self._name}: batch {status['txid']:,}, {status['tuples']:,} tuples, "
            f"{self._speed(running, now, status)}{lag}{failed}"
        )

    def _speed(self, running: RunningTopology, now: float, status: dict[str, Any]) -> str:
        """Return the tuples per second of the last seconds (at first: of the whole run), or that no tuples come."""
        self._seen.append((now, status["tuples"]))
        while len(self._seen) > 2 and now - self._seen[1][0] > _RATE_OVER_S:
            self._seen.popleft()
        since, tuples = self._seen[0]
        if now - since >= 1:
            tuples, seconds = status["tuples"] - tuples, now - since
        else:
            tuples, seconds = status["tuples"], running.seconds
        return f"{tuples / max(seconds, 1e-3):,.0f} tuples/s" if tuples else "waiting for tuples"
