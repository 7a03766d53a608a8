"""`trident run`: one topology in this process, until it is done or asked to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self

import typer

from trident.cli.arguments import (
    Conf,
    Debug,
    Engine,
    LogDir,
    LogFormat,
    Logs,
    MetricsHost,
    MetricsPort,
    Recovery,
    Target,
    Token,
    Ui,
    UiHost,
    UiPort,
    UiToken,
    port,
)
from trident.cli.console import Signals, ending_signals, problems, reporting, say, say_page
from trident.errors import EnvironmentProblem, RewindError, StoreAwayError
from trident.naming import counted
from trident.servers.log_addresses import is_log_address

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trident.config import Config
    from trident.runtime.running import RunningTopology
    from trident.storm import StormConfig, StormTopology
    from trident.topology import TridentTopology

Beside = Callable[[Any], AbstractContextManager[object]]
"""Returns a context that is open while a topology runs, which it is given."""

LEFT_OUT = 4
"""The exit code of a run that has left tuples out, if that was asked for."""

_LOOK_S = 0.1
_OF_BATCHES = ("engine", "once", "fail_on_dead_letters", "takeover", "state_recovery", "log_dir", "drpc_port")
"""The options that say nothing to a topology of spouts and bolts."""

Master = Annotated[str | None, typer.Option(metavar="URL", help="The Spark master.", show_default="local[*]")]
RunEngine = Annotated[
    Engine | None,
    typer.Option(
        help="What runs the stages: Spark, this process (no Java), or this process for small batches.",
        show_default="spark",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Commit all that the sources have now, then end.")]
FailOnDeadLetters = Annotated[
    bool, typer.Option("--fail-on-dead-letters", help="Exit with code 4 if tuples were left out as dead letters.")
]
Takeover = Annotated[
    bool, typer.Option("--takeover", help="Take the log from a driver that holds it; that driver is fenced out.")
]
StateRecovery = Annotated[
    Recovery | None,
    typer.Option(
        help="When log and store do not belong together: refuse, and say what to do; rewind a store that was set back; "
        "keep the totals, if right or even if wrong; or discard them and count on.",
        show_default="refuse",
    ),
]
DrpcPort = Annotated[
    int | None,
    port("Answer the DRPC functions here, over HTTP; 0 takes a free port.", show_default="they are not served"),
]
DrpcHost = Annotated[str, typer.Option(metavar="HOST", help="The address to answer at.")]


def run_command(
    context: typer.Context,
    target: Target,
    conf: Conf = None,
    master: Master = None,
    engine: RunEngine = None,
    once: Once = False,
    fail_on_dead_letters: FailOnDeadLetters = False,
    takeover: Takeover = False,
    state_recovery: StateRecovery = None,
    log_dir: LogDir = None,
    drpc_port: DrpcPort = None,
    drpc_host: DrpcHost = "127.0.0.1",
    drpc_token: Token = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    ui: Ui = False,
    ui_port: UiPort = 8080,
    ui_host: UiHost = "127.0.0.1",
    ui_token: UiToken = None,
    log_format: Logs = LogFormat.text,
    debug: Debug = False,
) -> None:
    """Run a topology until Ctrl-C or, with --once, until everything that its sources have is committed.

    TOPOLOGY may be one of spouts and bolts (a TopologyBuilder). Then Ctrl-C deactivates the spouts and waits for what is
    pending.

    Ctrl-C and SIGTERM end it after the running commit; a second signal ends it at once, which is just as safe: either
    way the next run continues after the last recorded batch.

    Exit codes: 0 complete, 1 failed, 2 wrong usage, 3 replaced by another driver (--takeover), 4 complete but for tuples
    that were left out (--fail-on-dead-letters), 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    from trident.cli.target import load_runnable, settings, storm_settings
    from trident.storm import StormTopology

    as_json = log_format is LogFormat.json
    served = {"master": master, "metrics_port": metrics_port, "metrics_host": metrics_host}
    given = {
        **served,
        "engine": None if engine is None else engine.value,
        "takeover": takeover or None,
        "state_recovery": None if state_recovery is None else state_recovery.value,
        "log_dir": log_dir,
    }
    with reporting(debug, as_json), ExitStack() as opened:
        settings([], given)  # what is wrong here is reported before the module is imported
        beside = [_page(opened, ui_host, ui_port, ui_token)] if ui else []
        topology = load_runnable(target)
        if isinstance(topology, StormTopology):
            _refuse_for_bolts(context)
            raise typer.Exit(_run_storm(topology, storm_settings(target, conf or [], served), beside, as_json))
        config = settings(conf or [], given, topology)
        if drpc_port is not None:
            from trident.cli.drpc import serving

            beside.append(lambda running: serving(running.local_drpc(), drpc_host, drpc_port, token=drpc_token))
        code = _run(topology, config, once, beside, as_json, fail_on_dead_letters)
    raise typer.Exit(code)


def _refuse_for_bolts(context: typer.Context) -> None:
    """Refuse options that say nothing to a topology of spouts and bolts."""
    for name in _OF_BATCHES:
        if context.params[name] not in (None, False):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is for Trident topologies; this one has spouts and bolts, and no batches"
            )


def _page(opened: ExitStack, host: str, port: int, token: str | None) -> Beside:
    """Open the page, which has its port before the topology starts; return what shows a topology there, and says where."""
    import secrets

    from trident.ui.ui_server import TopologyPage

    made = secrets.token_hex(16) if token is None else None
    page = opened.enter_context(closing(TopologyPage(host, port, token or made)))

    @contextmanager
    def shown(running: Any) -> Iterator[None]:
        with _logged_for_page():
            page.show(running)
            say_page(running.name, host, page.url)
            if made is not None:
                say(f"{running.name}: actions on the page need the token {made}")
            yield

    return shown


@contextmanager
def _logged_for_page() -> Iterator[None]:
    """Log from INFO on, for the page; what goes to standard error stays as it is."""
    root, ours = logging.getLogger(), logging.getLogger("trident")
    before = [(handler, handler.level) for handler in root.handlers]
    quiet, level = ours.getEffectiveLevel() > logging.INFO, ours.level
    if quiet:
        events = logging.getLogger("trident.events")
        for handler, at in before:
            handler.addFilter(_Only(max(at, root.level), () if events.level == logging.NOTSET else (events.name,)))
        ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(level)
        for handler, _ in before:
            for each in [filter_ for filter_ in handler.filters if isinstance(filter_, _Only)]:
                handler.removeFilter(each)


class _Only(logging.Filter):
    """Accepts records from a level on, and all of some loggers."""

    def __init__(self, level: int, always: tuple[str, ...]) -> None:
        super().__init__()
        self._level, self._always = level, always

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is accepted."""
        return record.levelno >= self._level or record.name in self._always


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


def _run(
    topology: TridentTopology,
    config: Config,
    once: bool,
    beside: Sequence[Beside],
    as_json: bool,
    fail_on_left_out: bool,
) -> int:
    """Run a topology and say how it ended; returns the exit code.

    The first SIGINT or SIGTERM ends it after the running commit, the second one at once. `as_json`: what goes to standard
    error is JSON. `fail_on_left_out`: a run that is complete but for tuples that it left out gives `LEFT_OUT`.
    """
    from trident.cli.live_lines import LineDisplay

    display = None if as_json else LineDisplay(problems(), topology.name)
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
    display: Display | None,
    beside: Sequence[Beside] = (),
    as_json: bool = False,
) -> RunOutcome:
    """Start a topology, show its progress, and stop it: when all is committed (`once`), or at a signal.

    Raises what ended the topology, if that was an error.
    """
    from concurrent.futures import ThreadPoolExecutor

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
                with _all_of(beside, display, running):
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


def _watch(running: RunningTopology, ended: Future[Any], signals: Signals, display: Display | None) -> None:
    update = (lambda running: None) if display is None else display.update
    done = threading.Event()
    ended.add_done_callback(lambda _: done.set())
    while not signals.received and not done.wait(_LOOK_S):
        update(running)
    update(running)


@contextmanager
def _all_of(
    beside: Sequence[Beside], display: AbstractContextManager[object] | None, running: object
) -> Iterator[None]:
    """Have open what is open while a topology runs, and its display."""
    with ExitStack() as opened:
        for each in beside:
            opened.enter_context(each(running))
        if display is not None:
            opened.enter_context(display)
        yield


def _run_storm(topology: StormTopology, config: StormConfig, beside: Sequence[Beside], as_json: bool) -> int:
    """Run a topology of spouts and bolts and say how it ended; returns the exit code.

    The first SIGINT or SIGTERM deactivates the spouts, waits for what is pending and ends it; the second one ends it at once.
    """
    from trident.cli.live_lines import StormLines
    from trident.storm.builder import start_on_spark

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
            display = None if as_json else StormLines(problems(), running.name)
            with _all_of(beside, display, running):
                while not signals.received and not running.await_termination(_LOOK_S):
                    if display is not None:
                        display.update(running)
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
