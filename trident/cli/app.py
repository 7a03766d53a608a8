"""The commands, their arguments and their help."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trident import __version__
from trident.cli import cluster_commands, dead_letter_commands
from trident.cli.arguments import (
    AsJson,
    Conf,
    Debug,
    Engine,
    LogDir,
    LogFormat,
    Logs,
    MetricsHost,
    MetricsPort,
    Recovery,
    SubmittedName,
    Target,
    Token,
    Ui,
    UiHost,
    UiPort,
    UiToken,
    existing_log,
    local_folder,
    log_named,
)
from trident.cli.console import reporting, say
from trident.cli.daemon_commands import add_daemon_commands, add_ui_command
from trident.extras import needs_package

if TYPE_CHECKING:
    from trident.cli.page_serving import PageServing

__all__ = ["app", "main"]

app = typer.Typer(
    name="trident",
    help="Storm Trident's exactly-once topologies on Apache Spark: run them, read their states, look into their logs.",
    epilog="First steps: `trident demo`, then `trident demo --crash`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(dead_letter_commands.app, name="dead-letters")


def _version(asked: bool) -> None:
    if asked:
        spark = importlib.metadata.version("pyspark")
        say(f"trident {__version__} (PySpark {spark}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def _trident(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


@app.command("run", epilog="Example: `trident run examples/word_count.py:topology --once --master 'local[4]'`")
def run_command(
    target: Target,
    conf: Conf = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The Spark master.", show_default="local[*]")
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="What runs the stages: Spark, this process (no Java), or this process for small batches.",
            show_default="spark",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Commit all that the sources have now, then end.")] = False,
    fail_on_dead_letters: Annotated[
        bool, typer.Option("--fail-on-dead-letters", help="Exit with code 4 if tuples were left out as dead letters.")
    ] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Take the log from a driver that holds it; that driver is fenced out.")
    ] = False,
    state_recovery: Annotated[
        Recovery | None,
        typer.Option(
            help="What to do when log and store do not belong together: refuse, adopt the store as it is, or restart "
            "with empty states.",
            show_default="refuse",
        ),
    ] = None,
    log_dir: LogDir = None,
    drpc_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Answer the DRPC functions here, over HTTP; 0 takes a free port.",
            show_default="they are not served",
        ),
    ] = None,
    drpc_host: Annotated[str, typer.Option(metavar="HOST", help="The address to answer at.")] = "127.0.0.1",
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
    """Run a topology until Ctrl-C, or with --once until all that its sources have is committed.

    TOPOLOGY may be one of spouts and bolts (a TopologyBuilder). Then Ctrl-C deactivates the spouts and waits for what is
    pending.

    Ctrl-C and SIGTERM end it after the running commit; a second one ends it at once, which is as safe: in both cases the
    next run continues after the last recorded batch.

    Exit codes: 0 complete, 1 failed, 2 wrong usage, 3 replaced by another driver (--takeover), 4 complete but for tuples
    that were left out (--fail-on-dead-letters), 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    from trident.cli.run import all_beside, run
    from trident.cli.storm_run import run_storm
    from trident.cli.target import load_runnable, settings, storm_settings
    from trident.storm import StormTopology

    as_json = log_format is LogFormat.json
    with reporting(debug, as_json):
        given = {
            "master": master,
            "engine": None if engine is None else engine.value,
            "takeover": takeover or None,
            "state_recovery": None if state_recovery is None else state_recovery.value,
            "log_dir": log_dir,
            "metrics_port": metrics_port,
            "metrics_host": metrics_host,
        }
        settings([], given)  # what is wrong here is told before the module is imported
        page = _page_of(ui_host, ui_port, ui_token) if ui else None
        topology = load_runnable(target)
        if isinstance(topology, StormTopology):
            _refuse_for_bolts(
                engine=engine,
                once=once,
                fail_on_dead_letters=fail_on_dead_letters,
                takeover=takeover,
                state_recovery=state_recovery,
                log_dir=log_dir,
                drpc_port=drpc_port,
            )
            served = {"master": master, "metrics_port": metrics_port, "metrics_host": metrics_host}
            config_of_bolts = storm_settings(target, conf or [], served)
            raise typer.Exit(run_storm(topology, config_of_bolts, as_json, None if page is None else page.of_storm))
        config = settings(conf or [], given)
        beside = [] if page is None else [page.of_trident]
        if drpc_port is not None:
            from trident.cli.drpc import Serving

            beside.append(Serving(drpc_host, drpc_port, drpc_token).beside)
        code = run(topology, config, once, all_beside(beside), as_json, fail_on_dead_letters)
    raise typer.Exit(code)


def _page_of(host: str, port: int, token: str | None) -> PageServing:
    with needs_package("the page", "ui"):
        from trident.cli.page_serving import PageServing
    return PageServing(host, port, token)


def _refuse_for_bolts(**options: object) -> None:
    """Refuse options that say nothing to a topology of spouts and bolts."""
    for name, value in options.items():
        if value not in (None, False):
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is for Trident topologies; this one is of spouts and bolts, which has no batches"
            )


@app.command("drpc", epilog="Example: `trident drpc examples/word_count.py:topology --port 3774`")
def drpc_command(
    target: Target,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to answer at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free port.")] = 3774,
    token: Token = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="How long a request may take.")] = 30.0,
    max_request_bytes: Annotated[int, typer.Option(metavar="N", min=1, help="The longest request.")] = 1 << 20,
    max_concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many requests may be in flight; more are refused.")
    ] = 512,
    max_connections: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="How many connections may be open: at most half of the free file descriptors."
        ),
    ] = 1024,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="How many threads answer each function.")] = 1,
    conf: Conf = None,
    log_dir: LogDir = None,
    name: SubmittedName = None,
    debug: Debug = False,
) -> None:
    """Answer the DRPC functions of a topology over HTTP, beside the process that runs it, without Spark.

    States are read through the topology's log, at the last committed batch. Ctrl-C and SIGTERM end it after the requests
    in flight; a second one ends it at once.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    from trident.cli.target import load_topology, settings

    with reporting(debug):
        from trident.cli.drpc import Serving, serve

        config = settings(conf or [], {"log_dir": log_dir})
        serving = Serving(host, port, token, timeout, max_request_bytes, max_concurrency, max_connections)
        code = serve(load_topology(target, name), config, serving, threads)
    raise typer.Exit(code)


@app.command(
    "get",
    epilog="Example: `trident get examples/word_count.py:topology count the and`, or `… count --prefix th --limit 20`",
)
def get_command(
    target: Target,
    state: Annotated[str, typer.Argument(help="The name of the state.", show_default=False)],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...",
            help="Keys to read; a key of several fields is a JSON list. None for a state that is a single value.",
            show_default=False,
        ),
    ] = None,
    all_keys: Annotated[bool, typer.Option("--all", help="List all keys.")] = False,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="List the keys whose first field begins with TEXT, or with a JSON list those with these first fields.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="List N keys at most, in no order.", show_default=False),
    ] = None,
    conf: Conf = None,
    log_dir: LogDir = None,
    name: SubmittedName = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read keys of a state, or list them, whether its topology runs or not, without Spark; nothing is written.

    All keys are read at the same committed batch (a long listing of a server page by page). Values of states that
    are not opaque are those of the latest write. A store that does not belong to the log (moved away, an older copy,
    another topology's, without its last writes) is an error that says so.
    """
    from trident.cli.get import KeyListing, get
    from trident.cli.target import load_topology, settings

    with reporting(debug):
        config = settings(conf or [], {"log_dir": log_dir})
        if all_keys and limit is not None:
            raise typer.BadParameter("--all lists all keys, --limit some; not both")
        listing = KeyListing(prefix, limit) if all_keys or prefix is not None or limit is not None else None
        get(load_topology(target, name), config, state, keys or [], listing, as_json)


@app.command("log", epilog="Example: `trident log word-count --last 3`")
def log_command(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR|NAME",
            callback=existing_log,
            help="Folder of the log, or zookeeper://HOST:PORT/PATH; or the name of a topology.",
            show_default=False,
        ),
    ],
    last: Annotated[int, typer.Option(min=0, max=100, help="How many commits to show.")] = 10,
    wide: Annotated[bool, typer.Option("--wide", "-w", help="Shorten nothing, however long the lines get.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what a transaction log says: states, totals, the last commits and what is defined but not committed.

    The log is only read; its topology may be running.
    """
    from trident.cli.log import log

    with reporting(debug):
        log(log_named(directory), last, as_json, wide)


@app.command("explain", epilog="Example: `trident explain examples/word_count.py:topology`")
def explain_command(
    target: Target,
    dot: Annotated[bool, typer.Option("--dot", help="Draw the graph, in the language of Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Draw the graph, as a Mermaid flowchart.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the states and their guarantees as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Show what a topology does: its stages, what runs how and where, what is exchanged, what is exact.

    Nothing is run and no store is opened.
    """
    from trident.cli.explain import explain
    from trident.cli.target import load_topology

    with reporting(debug):
        explain(load_topology(target), dot, mermaid, as_json)


@app.command("demo", epilog="Example: `trident demo --crash`, or `trident demo ~/books --engine in_process`")
def demo_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Text files and folders of them. Default: the sources of Python's standard library.",
            show_default=False,
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=local_folder,
            help="Where the counts and the log are kept. Default: trident-demo, with --crash trident-demo-crash.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="What runs the stages; in_process needs no Java.")] = Engine.spark,
    crash: Annotated[
        bool, typer.Option("--crash", help="Start afresh, in a process that is killed (SIGKILL) and started again.")
    ] = False,
    crashes: Annotated[int, typer.Option(metavar="N", min=1, help="How often, with --crash.")] = 5,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier demo has counted.")] = False,
    debug: Debug = False,
) -> None:
    """Count the words of real text and compare every count with a plain Python program's.

    The counts are in a Delta table. A second run continues where the first one ended. With --crash the job is killed in
    the middle of its commits, and the counts must come out exact all the same; it always starts afresh.

    Exit codes: 0 exact, 1 not exact, killed less often than asked for, or failed, 2 wrong usage, 130 ended by Ctrl-C.
    """
    from trident.cli.demo import Demo

    with reporting(debug):
        folder = state_dir or Path("trident-demo-crash" if crash else "trident-demo")
        code = Demo(paths or [], folder, engine.value, crashes if crash else 0, fresh).run()
    raise typer.Exit(code)


add_daemon_commands(app)
add_ui_command(app)
cluster_commands.add_to(app)


def main() -> None:
    """Run the command line; the script `trident`."""
    app(prog_name="trident")
