"""The commands, their arguments and their help."""

import platform
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trident import __version__
from trident.cli import cluster_commands, crashtest_command, daemon_commands, dead_letters, run, state_commands
from trident.cli.commands import (
    AsJson,
    LogPlace,
    Target,
    Wide,
    argument,
    command,
    flag,
    local_folder,
    log_named,
    option,
)
from trident.cli.console import print_json, print_line, say
from trident.config import Engine
from trident.extras import pyspark_version

_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]
_DAILY = (
    "run", "get", "log", "explain", "dead-letters", "crashtest", "doctor", "verify", "why", "state", "diff", "up", "submit",
    "list", "show",
)  # fmt: skip


class _DailyFirst(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*_DAILY, *(name for name in self.commands if name not in _DAILY)]


app = typer.Typer(
    name="trident",
    cls=_DailyFirst,
    help="Storm Trident's exactly-once topologies on Apache Spark: run them, read their states, look into their logs.",
    epilog="First steps: `trident demo`, then `trident demo --crash`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(state_commands.state_app, name="state")
for _each in (run, state_commands, crashtest_command, daemon_commands, cluster_commands):
    app.add_typer(_each.app)


def _version(asked: bool) -> None:
    if asked:
        say(f"trident {__version__} (PySpark {pyspark_version() or 'none'}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def _trident(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


@command(app, "log", "`trident log word-count --last 3`")
def log_command(
    directory: LogPlace,
    last: Annotated[int | None, option("How many commits to show.", "N", min=0, show_default="10", max=100)] = None,
    history: Annotated[bool, flag("--history", "")] = False,
    since: Annotated[int | None, option("With --history: from this batch on.", "TXID", min=1)] = None,
    since_time: Annotated[datetime | None, option("", "TIME", formats=_TIMES)] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show what a transaction log says: states, totals, the last commits and what is defined but not committed.

    The log is only read; its topology may be running.

    `history`: List every batch that is kept (`history=`); with --json a line each.
    `since_time`: With --history: from this time (UTC) on.
    """
    from trident.cli.log import log, print_history

    if not history and (since or since_time):
        raise typer.BadParameter("is for --history", param_hint="--since" if since else "--since-time")
    if history and last is not None:
        raise typer.BadParameter("is not for --history: say --since, or --since-time", param_hint="--last")
    if history:
        print_history(log_named(directory), since or 1, since_time, as_json, wide)
    else:
        log(log_named(directory), 10 if last is None else last, as_json, wide)


@command(app, "explain", "`trident explain examples/word_count.py:topology`")
def explain_command(
    target: Target,
    mermaid: Annotated[bool, flag("--mermaid", "Draw the graph, as a Mermaid flowchart.")] = False,
    as_json: Annotated[bool, flag("--json", "Print the states and their guarantees as JSON.")] = False,
) -> None:
    """Show what a topology does: its stages, how and where each step runs, what is exchanged, and what is exact.

    Nothing is run and no store is opened.
    """
    from trident.cli.target import load_topology

    topology = load_topology(target)
    if mermaid and as_json:
        raise typer.BadParameter("--mermaid and --json exclude each other")
    if as_json:
        print_json(topology.describe())
    else:
        print_line(topology.to_mermaid() if mermaid else topology.explain(), nl=False)


@command(app, "demo", "`trident demo --crash`, or `trident demo ~/books --engine in_process`")
def demo_command(
    paths: Annotated[list[Path] | None, argument("", "PATH")] = None,
    state_dir: Annotated[Path, option("", "DIR", show_default=True, callback=local_folder)] = Path("trident-demo"),
    engine: Annotated[Engine, typer.Option(help="What runs the stages; in_process needs no Java.")] = "spark",
    crash: Annotated[bool, flag("--crash", "")] = False,
) -> int:
    """Count the words of real text and compare every count with a plain Python program's.

    The counts are in a Delta table; those of an earlier demo are forgotten. With --crash the job is killed in the middle
    of its commits, and the counts must come out exact all the same.

    Exit codes: 0 exact, 1 not exact, or failed, 2 wrong usage, 130 ended by Ctrl-C.

    `paths`: Text files and folders of them. Default: the sources of Python's standard library.
    `state_dir`: Where the counts and the log are stored.
    `crash`: In a process that is killed (SIGKILL) and started again, three times.
    """
    from trident.cli.demo import demo

    return demo(paths or [], state_dir, engine, crash)


@command(app, "doctor", "`trident doctor`, or `trident doctor --json`")
def doctor_command(as_json: AsJson = False) -> int:
    """Show what is installed: Python, Java, PySpark, and which states and spouts each extra or other package brings.

    For anything that is missing it prints the command that installs it. It starts no Java and connects to nothing.

    Exit codes: 0 topologies can run on Spark here, 1 they cannot, and the last lines say why.
    """
    from trident.cli.doctor import doctor

    return doctor(as_json)
