"""`trident run`: one topology in this process, until it is done or asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from trident.cli.console import Signals, ending_signals, problems, say
from trident.cli.live_lines import LineDisplay
from trident.config import Config
from trident.errors import EnvironmentProblem, RewindError, StoreAwayError
from trident.naming import counted
from trident.servers.log_addresses import is_log_address
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from trident.runtime.running import RunningTopology

Beside = Callable[["RunningTopology"], AbstractContextManager[None]]
"""Returns a context that is open while a topology runs."""

_LOOK_S = 0.1


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    `signum`: the signal that ended it, None if it ended by itself.
    `batches`, `tuples`, `seconds`, `failures`: of this run; seconds from the first definition to the last commit.
    `txid`: the last committed batch; None if it ended in the start, because a store was away or was being rewound, or while
    Spark started.
    `left_out`: how many tuples it has left out, as dead letters.
    """

    signum: int | None
    batches: int
    tuples: int
    seconds: float
    failures: int
    txid: int | None
    left_out: int = 0

    @property
    def exit_code(self) -> int:
        """0, or 128 and the number of the signal, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.signum is None else 128 + self.signum


class Display(Protocol):
    """Shows how a run goes; a context manager that is updated several times a second."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...

    def update(self, running: RunningTopology) -> None:
        """Read the topology's status and show it."""


def all_beside(each: Sequence[Beside]) -> Beside:
    """Return a context with all of these open."""

    @contextmanager
    def beside(running: RunningTopology) -> Iterator[None]:
        with ExitStack() as opened:
            for one in each:
                opened.enter_context(one(running))
            yield

    return beside


def _nothing(running: RunningTopology) -> AbstractContextManager[None]:
    return nullcontext()


class NoDisplay:
    """Shows nothing: the events of the topology are logged."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to do."""

    def update(self, running: RunningTopology) -> None:
        """Do nothing."""


LEFT_OUT = 4
"""The exit code of a run that has left tuples out, if that was asked for."""


def run(
    topology: TridentTopology,
    config: Config,
    once: bool,
    beside: Beside = _nothing,
    as_json: bool = False,
    fail_on_left_out: bool = False,
) -> int:
    """Run a topology and say how it ended; returns the exit code.

    The first SIGINT or SIGTERM ends it after the running commit, the second one at once. `as_json`: what goes to standard
    error is JSON. `fail_on_left_out`: a run that is complete but for tuples that it left out gives `LEFT_OUT`.
    """
    display = NoDisplay() if as_json else LineDisplay(problems(), topology.name)
    outcome = drive(topology, config, once, display, beside, as_json)
    if outcome.txid is None:
        say("stopped before it had started; nothing was changed")
    elif outcome.signum is not None:
        say(f"stopped after batch {outcome.txid}; the next run continues from there")
    elif outcome.batches == 0:
        say(f"complete: nothing new after batch {outcome.txid}")
    else:
        say(
            f"complete: {counted(outcome.batches, 'batch', 'batches')} with {counted(outcome.tuples, 'tuple')} in "
            f"{outcome.seconds:.1f} s "
            f"({outcome.tuples / max(outcome.seconds, 1e-9):,.0f} tuples/s), the last is batch {outcome.txid}"
        )
    if outcome.left_out:
        say(_of_left_out(topology.name, config, outcome.left_out))
    return LEFT_OUT if fail_on_left_out and outcome.left_out and not outcome.exit_code else outcome.exit_code


def _of_left_out(topology: str, config: Config, count: int) -> str:
    """Say how many tuples were left out, and where they are."""
    log, folder = config.log_folder(topology), config.dead_letter_folder(topology)
    shown = f"they are in {folder}"  # of a log in memory nothing is left to read
    if is_log_address(log) or any(Path(log).glob("*.log")):
        where = "" if config.dead_letter_dir is None else f" --dead-letter-dir {folder}"
        shown = f"`trident dead-letters list {log}{where}` shows {'it' if count == 1 else 'them'}"
    left_out = "was left out as a dead letter" if count == 1 else "were left out as dead letters"
    return f"{counted(count, 'tuple')} {left_out}; {shown}"


def drive(
    topology: TridentTopology,
    config: Config,
    once: bool,
    display: Display,
    beside: Beside = _nothing,
    as_json: bool = False,
) -> RunOutcome:
    """Start a topology, show its progress, and stop it: when all is committed (`once`), or at a signal.

    Raises what ended the topology, if that was an error.
    """
    from trident.runtime.loop.retrying import giving_up_if  # after the messages of a declaration that is wrong

    with ending_signals(
        "stopping after the commit under way (once more: at once)",
        "ended at once; the next run undoes and repeats what was not recorded",
        as_json,
    ) as signals:
        try:
            with giving_up_if(lambda: signals.received is not None, awaits_batch=once):
                running = topology.start(config)
        except (StoreAwayError, RewindError, EnvironmentProblem):  # a signal to the group of processes ends Spark's JVM
            if signals.received is None:
                raise
            return RunOutcome(signals.received, 0, 0, 0.0, 0, None)
        if running.metrics_url is not None:
            say(f"{topology.name}: metrics at {running.metrics_url}")
        if running.ui_url is not None:
            say(f"{topology.name}: page at {running.ui_url}")
        with ThreadPoolExecutor(1, thread_name_prefix="trident-wait") as waiter:
            ended = waiter.submit(running.process_all_available if once else running.await_termination)
            try:
                with beside(running), display:
                    _watch(running, ended, signals, display)
            finally:
                running.stop()
        error = running.exception() or (None if signals.received else ended.exception())
    if error is not None and not (signals.received and isinstance(error, EnvironmentProblem)):
        raise error
    status = running.status
    return RunOutcome(
        signals.received,
        status["batches"],
        status["tuples"],
        running.seconds,
        status["failures"],
        status["txid"],
        status["leftOut"],
    )


def _watch(running: RunningTopology, ended: Future[Any], signals: Signals, display: Display) -> None:
    done = threading.Event()
    ended.add_done_callback(lambda _: done.set())
    while not signals.received and not done.wait(_LOOK_S):
        display.update(running)
    display.update(running)
