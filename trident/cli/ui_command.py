"""`trident ui`: the page of a cluster, from any machine that reaches its state."""

from __future__ import annotations

from typing import Annotated

import typer

from trident.cli.arguments import Debug, LogFormat, Logs
from trident.cli.cluster_arguments import ClusterAddress, ClusterToken
from trident.cli.console import reporting
from trident.extras import needs_package

__all__ = ["add_ui_command"]


def add_ui_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    example = "Example: `trident ui --cluster zookeeper://zk1,zk2,zk3/storm`"
    app.command("ui", epilog=example, rich_help_panel="Clusters")(ui_command)


def ui_command(
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free port.")] = 8080,
    log_format: Logs = LogFormat.text,
    debug: Debug = False,
) -> None:
    """Serve the page of a cluster until Ctrl-C. Every Nimbus serves it too; this is for another machine or port.

    Whoever reaches it may read; actions need the cluster's token.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    with reporting(debug, log_format is LogFormat.json):
        with needs_package("the page of a cluster", "cluster"):
            from trident.cli.page_serving import serve_cluster
        exit_code = serve_cluster(cluster, token, host, port, log_format is LogFormat.json)
    raise typer.Exit(exit_code)
