"""`trident run`: one topology in this process, until it is done or asked to stop; `trident drpc`, `changes` beside it."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trident.cli.commands import (
    Conf,
    LogDir,
    Logs,
    StateName,
    Target,
    Token,
    TopologyOptions,
    command,
    feed_position,
    flag,
    from_environment,
    needs,
    option,
    port,
)
from trident.cli.console import EndingSignals, LineDisplay, LiveLines, StormLines, log_for_page, problems, say, say_page
from trident.config import Config, Engine, Recovery
from trident.errors import EnvironmentProblem, RewindError, StoreAwayError
from trident.naming import counted
from trident.servers.log_addresses import is_log_address
from trident.servers.server_thread import listening

if TYPE_CHECKING:
    from trident.drpc import DRPCServer, LocalDRPC
    from trident.run.running import RunningTopology
    from trident.storm import StormConfig, StormTopology
    from trident.topology import TridentTopology

Beside = Callable[[Any], AbstractContextManager[object]]
"""Returns a context that is open while a topology runs, which it is given."""

LEFT_OUT = 4  # the exit code of a run that has left tuples out, if that was asked for
_LOCAL = "127.0.0.1"
_OF_BATCHES = ("engine", "once", "fail_on_dead_letters", "takeover", "state_recovery", "log_dir", "drpc_port")
"""The options that say nothing to a topology of spouts and bolts."""
_OF_COMMITS = (
    "stopping after the commit under way (once more: at once)",
    "ended at once; the next run undoes and repeats what was not recorded",
)
_OF_BOLTS = (
    "stopping: spouts first, then what is pending (once more: at once)",
    "ended at once; what was pending is still with its queues",
)


app = typer.Typer()


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for.

    `engine`: What runs the stages: Spark, this process (no Java), or this process for small batches.
    `fail_on_dead_letters`: Exit with code 4 if tuples were left out as dead letters.
    `takeover`: Take the log from a driver that holds it; that driver is fenced out.
    `state_recovery`: When log and store do not belong together: refuse, and say what to do; rewind a store that was set
    back; keep the totals, if right or even if wrong; or discard them and count on.
    `drpc_token`: What DRPC requests must carry, as Authorization: Bearer TEXT. Use the variable: all users see arguments.
    `drpc_port`: Answer the DRPC functions here, over HTTP; 0 takes a free port.
    `metrics_port`: Serve metrics here, in OpenMetrics; 0 takes a free port.
    `ui_host`: The address to serve the page at; anyone who reaches it may read.
    `ui_token`: What actions on the page need. Use the variable: all users see arguments.
    """

    target: Target
    conf: Conf = None
    master: Annotated[str | None, option("The Spark master.", "URL", show_default="local[*]")] = None
    engine: Annotated[Engine | None, option("", None, show_default="spark")] = None
    once: Annotated[bool, flag("--once", "Commit all that the sources have now, then end.")] = False
    fail_on_dead_letters: Annotated[bool, flag("--fail-on-dead-letters", "")] = False
    takeover: Annotated[bool, flag("--takeover", "")] = False
    state_recovery: Annotated[Recovery | None, option("", None, show_default="refuse")] = None
    log_dir: LogDir = None
    drpc_port: Annotated[int | None, port("", show_default="they are not served")] = None
    drpc_host: Annotated[str | None, option("The address to answer at.", "HOST", show_default=_LOCAL)] = None
    drpc_token: Token = None
    metrics_port: Annotated[int | None, port("", show_default="they are not served")] = None
    metrics_host: Annotated[str | None, option("The address to serve metrics at.", "HOST", show_default=_LOCAL)] = None
    ui: Annotated[bool, flag("--ui", "Serve a page about the topology while it runs.")] = False
    ui_port: Annotated[int | None, port("The port of the page; 0 takes a free one.", show_default="8080")] = None
    ui_host: Annotated[str | None, option("", "HOST", show_default=_LOCAL)] = None
    ui_token: Annotated[str | None, from_environment("TRIDENT_TOKEN", "", "one is made and printed")] = None
    log_format: Logs = "text"


@command(app, "run", "`trident run examples/word_count.py:topology --once --master 'local[4]'`")
def run_command(of: RunOptions) -> int:
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

    needs("--ui", of.ui, ui_port=of.ui_port, ui_host=of.ui_host)
    needs("--drpc-port", of.drpc_port is not None, drpc_host=of.drpc_host)
    as_json = of.log_format == "json"
    served = {name: vars(of)[name] for name in ("master", "metrics_port", "metrics_host")}
    of_batches = {name: vars(of)[name] for name in ("engine", "state_recovery", "log_dir")}
    given = {**served, **of_batches, "takeover": of.takeover or None}
    with ExitStack() as opened:
        settings([], given)  # what is wrong here is reported before the module is imported
        beside = _beside(of, opened)
        topology = load_runnable(of.target)
        if isinstance(topology, StormTopology):
            for name in (name for name in _OF_BATCHES if vars(of)[name] not in (None, False)):
                said = "is for Trident topologies; this one has spouts and bolts, and no batches"
                raise typer.BadParameter(f"--{name.replace('_', '-')} {said}")
            conf = storm_settings(of.target, of.conf or [], served)
            needs("--metrics-port", conf.metrics_port is not None, metrics_host=of.metrics_host)
            return _run_storm(topology, conf, beside, as_json)
        config = settings(of.conf or [], given, topology)
        needs("--metrics-port", config.metrics_port is not None, metrics_host=of.metrics_host)
        if of.drpc_port is not None:
            from trident.drpc.local import check_functions

            check_functions(topology.graph())
        return _run(of, topology, config, beside, as_json)


def _beside(of: RunOptions, opened: ExitStack) -> list[Beside]:
    """Return what is served beside the run; ports that are taken, and missing packages, are known before it starts."""
    beside = [_page(opened, of.ui_host or _LOCAL, of.ui_port, of.ui_token)] if of.ui else []
    if of.drpc_port is not None:
        from trident.drpc import DRPCServer

        at = of.drpc_host or _LOCAL, of.drpc_port
        listening(DRPCServer.cannot, *at).close()
        beside.append(lambda running: serving(running.local_drpc(), *at, token=of.drpc_token))
    return beside


def _page(opened: ExitStack, host: str, port: int | None, token: str | None) -> Beside:
    """Open the page, which has its port before the topology starts; return what shows a topology there, and says where."""
    import secrets

    from trident.web.running_pages import TopologyPage

    made = secrets.token_hex(16) if token is None else None
    page = opened.enter_context(closing(TopologyPage(host, 8080 if port is None else port, token or made)))

    @contextmanager
    def show_page(running: Any) -> Iterator[None]:
        log_for_page()
        page.show(running)
        say_page(running.name, host, page.url)
        if made is not None:
            say(f"{running.name}: actions on the page need the token {made}")
        yield

    return show_page


def _run(of: RunOptions, topology: TridentTopology, config: Config, beside: Sequence[Beside], as_json: bool) -> int:
    def start() -> RunningTopology:
        running = topology.start(config)
        if running.ui_url is not None:
            say(f"{topology.name}: page at {running.ui_url}")
        return running

    running, code = drive(start, of.once, None if as_json else LineDisplay(problems(), topology.name), beside, as_json)
    if running is None:
        say("stopped before it had started; nothing was changed")
        return code
    status, seconds = running.status, running.seconds
    if code:
        say(f"stopped after batch {status['txid']}; the next run continues from there")
    elif status["batches"] == 0:
        say(f"complete: nothing new after batch {status['txid']}")
    else:
        say(
            f"complete: {counted(status['batches'], 'batch', 'batches')} with {counted(status['tuples'], 'tuple')} in "
            f"{seconds:.1f} s ({status['tuples'] / max(seconds, 1e-9):,.0f} tuples/s), the last is batch {status['txid']}"
        )
    if left_out := status["leftOut"]:
        say(_of_left_out(topology.name, config, left_out))
    return LEFT_OUT if of.fail_on_dead_letters and left_out and not code else code


def _of_left_out(topology: str, config: Config, count: int) -> str:
    log, folder = config.log_folder(topology), config.dead_letter_folder(topology)
    shown = f"they are in {folder}"  # of a log in memory nothing is left to read
    if is_log_address(log) or any(Path(log).glob("*.log")):
        where = () if config.dead_letter_dir is None else ("--dead-letter-dir", str(folder))
        words = shlex.join(["trident", "dead-letters", "list", str(log), *where])  # an address may have a ? and an &
        shown = f"`{words}` shows {'it' if count == 1 else 'them'}"
    left_out = "was left out as a dead letter" if count == 1 else "were left out as dead letters"
    return f"{counted(count, 'tuple')} {left_out}; {shown}"


def drive(
    start: Callable[[], Any],
    once: bool,
    display: LiveLines | None,
    beside: Sequence[Beside] = (),
    as_json: bool = False,
    said: tuple[str, str] = _OF_COMMITS,
) -> tuple[Any, int]:
    """Start a topology of either kind, show its progress, and stop it: when all is committed (`once`), or at a signal.

    `said`: at the first signal, and at the second.
    Returns what ran, None if it ended in the start; and 0, or 128 and the number of the signal, as shells have it.
    Raises what ended the topology, if that was an error.
    """
    from trident.run.engine_choice import giving_up_if  # after the messages of a declaration that is wrong

    with EndingSignals(*said, as_json) as signals:
        try:
            with giving_up_if(lambda: signals.received is not None, awaits_batch=once):
                running = start()
        except (StoreAwayError, RewindError, EnvironmentProblem):  # a signal to the group of processes ends Spark's JVM
            if signals.received is None:
                raise
            return None, 128 + signals.received
        wait = running.process_all_available if once else running.await_termination
        error = _until_ended(running, wait, signals, display, beside)
    if error is not None and not (signals.received and isinstance(error, EnvironmentProblem)):
        raise error
    return running, 0 if signals.received is None else 128 + signals.received


def _until_ended(
    running: Any,
    wait: Callable[[], object],
    signals: EndingSignals,
    display: LiveLines | None,
    beside: Sequence[Beside],
) -> BaseException | None:
    """Show a topology until `wait` returns or a signal comes, and stop it; returns the error that ended it."""
    from concurrent.futures import ThreadPoolExecutor

    if running.metrics_url is not None:
        say(f"{running.name}: metrics at {running.metrics_url}")
    done = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="trident-wait") as waiter:
        ended = waiter.submit(wait)
        ended.add_done_callback(lambda _: done.set())
        try:
            with ExitStack() as opened:
                for each in beside:
                    opened.enter_context(each(running))
                if display is not None:
                    opened.enter_context(display)
                over = False
                while not over:
                    over = bool(signals.received) or done.wait(0.1)
                    if display is not None:  # also once at the end
                        display.update(running)
        finally:
            running.stop()
    error: BaseException | None = running.exception()
    return error or (None if signals.received else ended.exception())


def _run_storm(topology: StormTopology, config: StormConfig, beside: Sequence[Beside], as_json: bool) -> int:
    from trident.storm.builder import start_on_spark

    display = None if as_json else StormLines(problems(), config.name)
    running, code = drive(lambda: start_on_spark(topology, config), False, display, beside, as_json, _OF_BOLTS)
    if running is None:
        say(f"{config.name}: stopped before it had started")
        return code
    left = running.pending
    ended = f"; {left:,} were still pending and are with their queues" if left else "; nothing was pending"
    say(f"{config.name}: stopped after {running.status.statistics.over().figures.acked:,} acknowledged messages{ended}")
    return code


@command(app, "drpc", "`trident drpc examples/word_count.py:topology --port 3774`")
def drpc_command(
    of: TopologyOptions,
    host: Annotated[str, option("The address to answer at.", "HOST")] = "127.0.0.1",
    port: Annotated[int, port("0 takes a free port.")] = 3774,
    token: Token = None,
    timeout: Annotated[float, option("How long a request may take.", "SECONDS", min=0.001)] = 30.0,
    max_request_bytes: Annotated[int, option("The longest request.", "N", min=1)] = 1 << 20,
    max_concurrency: Annotated[int, option("How many requests may be in flight; more are refused.", "N", min=1)] = 512,
    max_connections: Annotated[int, option("", "N", min=1)] = 1024,
    threads: Annotated[int, option("How many threads answer each function.", "N", min=1)] = 1,
) -> int:
    """Answer the DRPC functions of a topology over HTTP, beside the process that runs it, without Spark.

    States are read through the topology's log, at the last committed batch. Ctrl-C and SIGTERM end it once the requests
    in flight are answered; a second signal ends it at once.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.

    `max_connections`: How many connections may be open; with more, requests are refused.
    """
    from trident.drpc import LocalDRPC

    topology, config = of.load()
    limits = {"max_request_bytes": max_request_bytes, "max_concurrency": max_concurrency}
    more = {"token": token, "timeout_s": timeout, "max_connections": max_connections, **limits}
    stopping = "stopping after the requests in flight (a second signal ends it at once)"
    with (
        EndingSignals(stopping, "ended at once", as_json=False) as signals,
        LocalDRPC(topology, config, threads=threads) as drpc,
        serving(drpc, host, port, **more),
    ):
        return signals.wait()


@command(
    app, "changes", "`trident changes orders.py:topology revenue --since 41 --follow`, or `… --port 8090` for a browser"
)
def changes_command(
    of: TopologyOptions,
    state: StateName,
    since: Annotated[str | None, option("", "TXID", callback=feed_position)] = None,
    snapshot: Annotated[bool, flag("--snapshot", "Begin with the rows of the state.")] = False,
    follow: Annotated[bool, flag("--follow", "Wait for what is still to come.", "-f")] = False,
    host: Annotated[str | None, option("The address to serve events at.", "HOST", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, port("Serve events over HTTP; 0 takes a free port.", show_default=False)] = None,
    token: Token = None,
) -> int | None:
    """Print what each committed batch changed in a state, a line of JSON a batch; or serve it as server-sent events.

    The state must be declared with `changes=`. Each change comes once, in order, with the value before and after. To go
    on later, give `--since` the `position` of the last line: its txid alone would not show that the log was set back.

    `since`: Begin behind this batch, or position. Default: the last one.
    """
    from trident.cli.changes import print_changes, serve_changes
    from trident.reading import changes

    needs("--port", port is not None, host=host)
    if snapshot and since is not None:
        raise typer.BadParameter(
            "the rows are those after the last batch; say --since, or --snapshot", param_hint="--since"
        )
    if port is not None and (follow or snapshot or since is not None):
        raise typer.BadParameter("clients ask for events at /changes?since=TXID and /snapshot", param_hint="--port")
    if port is None and since is None and not snapshot and not follow:
        raise typer.BadParameter("say where to begin: --since TXID, --snapshot, or --follow for changes from now on")
    topology, config = of.load()
    if port is not None:
        what = f"{topology.name}: changes of {state}"
        return serve_changes(lambda since: changes(topology, state, since, config), what, host or _LOCAL, port, token)
    with changes(topology, state, since, config) as feed:
        print_changes(feed, snapshot, follow)
    return None


@contextmanager
def serving(drpc: LocalDRPC, host: str, port: int, **more: Any) -> Iterator[DRPCServer]:
    from trident.drpc import DRPCServer

    with DRPCServer(drpc, host, port, **more) as server:
        say(f"{drpc.name}: serving {', '.join(drpc.functions)} at {server.url}")
        yield server
