"""`trident run`: its options, and what they ask for."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

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
from trident.cli.console import reporting

if TYPE_CHECKING:
    from trident.cli.page_serving import RunPage
    from trident.cli.run import Beside

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


def add_run_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    example = "Example: `trident run examples/word_count.py:topology --once --master 'local[4]'`"
    app.command("run", epilog=example)(run_command)


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
    from trident.cli.run import run
    from trident.cli.storm_run import run_storm
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
        page = opened.enter_context(closing(_page_of(ui_host, ui_port, ui_token))) if ui else None
        topology = load_runnable(target)
        if isinstance(topology, StormTopology):
            _refuse_for_bolts(context)
            of_bolts = storm_settings(target, conf or [], served)
            raise typer.Exit(run_storm(topology, of_bolts, as_json, None if page is None else page.of_storm))
        config = settings(conf or [], given, topology)
        beside = _beside(page, drpc_port, drpc_host, drpc_token)
        code = run(topology, config, once, beside, as_json, fail_on_dead_letters)
    raise typer.Exit(code)


def _page_of(host: str, port: int, token: str | None) -> RunPage:
    from trident.cli.page_serving import RunPage

    return RunPage(host, port, token)


def _beside(page: RunPage | None, drpc_port: int | None, drpc_host: str, drpc_token: str | None) -> Beside:
    """Return what is open while a topology runs: its page, and the answers to DRPC requests."""
    from trident.cli.run import all_beside

    beside = [] if page is None else [page.of_trident]
    if drpc_port is not None:
        from trident.cli.drpc import Serving

        beside.append(Serving(drpc_host, drpc_port, drpc_token).beside)
    return all_beside(beside)


def _refuse_for_bolts(context: typer.Context) -> None:
    """Refuse options that say nothing to a topology of spouts and bolts."""
    for name in _OF_BATCHES:
        if context.params[name] not in (None, False):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is for Trident topologies; this one has spouts and bolts, and no batches"
            )
