"""The commands for clusters: topologies are submitted, looked at and steered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trident.cli.arguments import (
    AsJson,
    ClusterAddress,
    ClusterToken,
    Conf,
    Debug,
    Include,
    Requirements,
    Target,
    Topology,
    Workers,
    conf_of,
    executors_of,
    option,
)
from trident.cli.console import print_json, reporting, say

if TYPE_CHECKING:
    from trident.cluster.client.cluster_client import ClusterClient
    from trident.cluster.client.topology_overviews import TopologyOverview

_WAITING = "Wait until its driver runs; Ctrl-C ends only the wait."
Wait = Annotated[bool, typer.Option("--wait", help=_WAITING)]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long --wait waits.")]
_REHEARSE = "Change nothing: run the last N batches through both codes, and show which totals would differ."
Rehearsal = Annotated[int | None, typer.Option("--rehearse", metavar="N", min=1, help=_REHEARSE)]
Pause = Annotated[
    float,
    typer.Option("--wait-secs", "-w", metavar="SECONDS", min=0.0, help="How long what has begun may take."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    commands: dict[str, tuple[Callable[..., None], str]] = {
        "submit": (_submit, "trident submit word_counts.py:topology --name words --wait"),
        "list": (_list, "trident list"),
        "show": (_show, "trident show words"),
        "activate": (_activate, "trident activate words"),
        "deactivate": (_deactivate, "trident deactivate words"),
        "kill": (_kill, "trident kill words -w 10"),
        "rebalance": (_rebalance, "trident rebalance words -w 10 -n 4 -e count=8"),
        "upgrade": (_upgrade, "trident upgrade words word_counts.py:topology --wait"),
        "errors": (_errors, "trident errors words"),
        "logs": (_logs, "trident logs words --follow"),
    }
    for name, (function, example) in commands.items():
        app.command(name, epilog=f"Example: `{example}`", rich_help_panel="Clusters")(function)


@contextmanager
def _client(cluster: str | None, token: str | None, debug: bool) -> Iterator[ClusterClient]:
    with reporting(debug):
        from trident.cluster.client.cluster_client import ClusterClient
        from trident.cluster.state.cluster_address import default_address

        with ClusterClient(cluster or default_address(), token) as client:
            yield client


def _submit(
    target: Target,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Names the topology and its log.", show_default="that of the topology")
    ] = "",
    conf: Conf = None,
    workers: Workers = None,
    requirements: Requirements = None,
    include: Include = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Submit a topology to a cluster, which keeps it running from then on.

    The package has the module and what it imports from its folder; packages are included whole, with their data files.
    It is loaded before it is sent. A topology that was killed and is submitted again under its name continues with its
    log; in the folder of a cluster on this machine that is the log of `trident run`.

    Exit codes: 0 submitted (with --wait: it runs), 1 failed, 2 wrong usage, 4 submitted, but it did not run within
    --timeout, 130 ended by Ctrl-C.
    """
    settings = conf_of(conf or [])
    with _client(cluster, token, debug) as client:
        from trident.cli.submitting import Code, submit

        code = Code(target, include or [], requirements, settings)
        with _waiting():
            submit(client, code, name, workers, timeout if wait else None, as_json)


def _upgrade(
    topology: Topology,
    target: Target,
    conf: Conf = None,
    requirements: Requirements = None,
    include: Include = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    rehearsed: Rehearsal = None,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Give a topology new code, on the same log: its counts go on.

    The new code is compared with the log before anything is changed: a state with a different key, value or aggregator
    is refused. With --conf all settings are replaced; without it they stay.

    Exit codes: as for `trident submit`; with --rehearse as for `trident rehearse`.
    """
    settings = conf_of(conf or [])
    with _client(cluster, token, debug) as client:
        from trident.cli.submitting import Code, rehearse, upgrade

        code = Code(target, include or [], requirements, settings)
        if rehearsed is not None:
            from trident.cli.proof_commands import print_rehearsed

            print_rehearsed(rehearse(client, topology, code, conf is None, rehearsed), as_json)
        with _waiting():
            upgrade(client, topology, code, conf is None, timeout if wait else None, as_json)


def _list(cluster: ClusterAddress = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the topologies of a cluster, and why any of them is waiting."""
    with _client(cluster, None, debug) as client:
        from trident.cli.cluster_output import print_list

        overviews = client.topologies()
        if as_json:
            print_json([each.as_json() for each in overviews])
        else:
            print_list(overviews)


def _show(topology: Topology, cluster: ClusterAddress = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show a topology: its status, where its driver runs, its code and settings."""
    with _client(cluster, None, debug) as client:
        from trident.cli.cluster_output import print_topology

        overview = client.show(topology)
        if as_json:
            print_json(overview.as_json())
        else:
            print_topology(overview)


def _activate(
    topology: Topology,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Resume a topology that was deactivated, or that was marked as failed because its driver kept failing."""
    with _client(cluster, token, debug) as client:
        client.activate(topology)
        _say_done(client.show(topology), "is active", as_json)


def _deactivate(
    topology: Topology,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Stop the sources of a topology; what has begun is finished, and its driver stays."""
    with _client(cluster, token, debug) as client:
        client.deactivate(topology)
        _say_done(client.show(topology), "is inactive: what has begun is finished", as_json)


def _kill(
    topology: Topology,
    wait_secs: Pause = 30.0,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End a topology and forget it. Its log and its states stay: submitted again under its name, it continues."""
    with _client(cluster, token, debug) as client:
        _say_done(client.kill(topology, wait_secs), f"ends; what has begun may take {wait_secs:g} s", as_json)


def _rebalance(
    topology: Topology,
    wait_secs: Pause = 30.0,
    workers: Workers = None,
    executors: Annotated[
        list[str] | None,
        option(
            "Executors of a spout or bolt, at most its tasks. Repeatable. Not for Trident.",
            "COMPONENT=N",
            "--executors",
            "-e",
        ),
    ] = None,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a topology with other numbers of workers and executors.

    Spouts and bolts change over while they run. A Trident topology gets a new driver, and so does any topology for
    which no numbers are given.
    """
    wanted = executors_of(executors or [])
    with _client(cluster, token, debug) as client:
        client.rebalance(topology, wait_secs, workers, wanted)
        _say_done(client.show(topology), "is rebalanced", as_json)


def _errors(topology: Topology, cluster: ClusterAddress = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the last errors of a topology, newest first: ten of each component."""
    with _client(cluster, None, debug) as client:
        from trident.cli.cluster_output import print_errors

        errors = client.errors(topology)
        if as_json:
            print_json(errors)
        else:
            print_errors(errors)


def _logs(
    topology: Topology,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, until Ctrl-C.")] = False,
    cluster: ClusterAddress = None,
    token: ClusterToken = None,
    debug: Debug = False,
) -> None:
    """Print the end of the log of a topology's driver, wherever it runs."""
    with _client(cluster, token, debug) as client:
        from trident.cli.cluster_output import print_logs

        print_logs(client, topology, follow)


@contextmanager
def _waiting() -> Iterator[None]:
    """Give a wait that was too long an exit code of its own."""
    from trident.cli.console import problems
    from trident.cli.submitting import WaitedTooLong

    try:
        yield
    except WaitedTooLong as error:
        say(f"error: {error}", "bold red", problems())
        raise typer.Exit(4) from None


def _say_done(overview: TopologyOverview, done: str, as_json: bool) -> None:
    if as_json:
        print_json(overview.as_json())
    else:
        say(f"{overview.base.storm_name} {done}")
