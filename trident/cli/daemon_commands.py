"""The daemons of a cluster as commands: `trident nimbus`, `trident supervisor`, `trident up`, `trident ui`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from trident.cli.arguments import ClusterAddress, ClusterToken, Debug, LogFormat, Logs, port
from trident.cli.console import reporting
from trident.extras import needs_package

Host = Annotated[
    str, typer.Option(metavar="HOST", help="The address to answer at, under which other machines reach this one.")
]
Port = Annotated[int, port("The port of the page; 0 takes a free one.")]
Slots = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many topologies may run on this machine.")]
Timeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=1.0, help="A driver without a heartbeat for this long is started elsewhere."),
]
Session = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=1.0,
        help="A daemon that is silent for this long counts as gone.",
    ),
]


def add_daemon_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    commands: dict[str, tuple[Callable[..., None], str]] = {
        "up": (up_command, "`trident up`, and in another terminal `trident submit word_count.py:topology`"),
        "nimbus": (nimbus_command, "`trident nimbus --cluster zookeeper://zk1,zk2,zk3/storm --code /shared/code`"),
        "supervisor": (supervisor_command, "`trident supervisor --cluster zookeeper://zk1,zk2,zk3/storm --slots 4`"),
    }
    for name, (function, example) in commands.items():
        app.command(name, epilog=f"Example: {example}", rich_help_panel="Clusters")(function)


def nimbus_command(
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    code: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the code of topologies is stored; several Nimbuses of a cluster share it.",
            show_default="code in the cluster's folder",
        ),
    ] = None,
    driver_timeout: Timeout = 15.0,
    max_deaths: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=100,
            help="A topology whose drivers die so often in half an hour, each within a minute, is marked as failed.",
        ),
    ] = 20,
    session_timeout: Session = 10.0,
    log_format: Logs = LogFormat.text,
    debug: Debug = False,
) -> None:
    """Run a Nimbus until Ctrl-C: it assigns topologies to supervisors and serves the page and the clients.

    Start two or more on different machines: one leads, the others stand by. While none of them runs, topologies go on,
    but nothing is submitted or moved.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    as_json = log_format is LogFormat.json
    with reporting(debug, as_json):
        exit_code = _daemons().run_nimbus(
            cluster, token, host, port, code, driver_timeout, max_deaths, session_timeout, as_json
        )
    raise typer.Exit(exit_code)


def supervisor_command(
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    host: Host = "127.0.0.1",
    slots: Slots = 4,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What it keeps on this machine: code, logs, its id.",
            show_default="supervisor in the cluster's folder, or trident-supervisor",
        ),
    ] = None,
    end_drivers: Annotated[
        bool,
        typer.Option(
            "--end-drivers", help="End the drivers with the supervisor, instead of leaving them to the next one."
        ),
    ] = False,
    session_timeout: Session = 10.0,
    log_format: Logs = LogFormat.text,
    debug: Debug = False,
) -> None:
    """Keep the topologies that are assigned to this machine running, until Ctrl-C.

    Each topology has a driver, a process of its own. Drivers keep running when the supervisor ends or is killed; the
    next supervisor with the same folder adopts them.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    as_json = log_format is LogFormat.json
    with reporting(debug, as_json):
        exit_code = _daemons().run_supervisor(
            cluster, token, host, slots, folder, end_drivers, session_timeout, as_json
        )
    raise typer.Exit(exit_code)


def up_command(
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    port: Port = 8080,
    slots: Slots = 4,
    log_format: Logs = LogFormat.text,
    debug: Debug = False,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C: Nimbus, a supervisor and the page in one process.

    Ctrl-C ends the drivers after their running commits. Topologies that were submitted go on with the next `trident up`.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    as_json = log_format is LogFormat.json
    with reporting(debug, as_json):
        exit_code = _daemons().run_up(cluster, token, port, slots, as_json)
    raise typer.Exit(exit_code)


def _daemons() -> ModuleType:
    with needs_package("a daemon of a cluster", "cluster"):
        from trident.cli import cluster_daemons
    return cluster_daemons


def add_ui_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    example = "Example: `trident ui --cluster zookeeper://zk1,zk2,zk3/storm`"
    app.command("ui", epilog=example, rich_help_panel="Clusters")(ui_command)


def ui_command(
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to serve at.")] = "127.0.0.1",
    port: Annotated[int, port("0 takes a free port.")] = 8080,
    log_format: Logs = LogFormat.text,
    debug: Debug = False,
) -> None:
    """Serve the page of a cluster until Ctrl-C. Every Nimbus serves it too; this is for another machine or port.

    Anyone who can reach it may read it; actions need the cluster's token.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    with reporting(debug, log_format is LogFormat.json):
        with needs_package("the page of a cluster", "cluster"):
            from trident.cli.page_serving import serve_cluster
        exit_code = serve_cluster(cluster, token, host, port, log_format is LogFormat.json)
    raise typer.Exit(exit_code)
