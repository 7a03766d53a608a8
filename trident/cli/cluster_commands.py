"""The commands for clusters: topologies are submitted, looked at and steered, and what is printed of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trident.cli.commands import (
    AsJson,
    ClusterAndToken,
    ClusterOptions,
    Conf,
    Target,
    Topology,
    Workers,
    command,
    flag,
    needs,
    option,
)
from trident.cli.console import is_wide, print_line, problems, results, say, show, show_facts, tell
from trident.naming import duration
from trident.redaction import shown_configuration

if TYPE_CHECKING:
    from trident.cli.submitting import Code
    from trident.cluster.client import ClusterClient
    from trident.cluster.topology_overviews import TopologyOverview

_MOST_NAMES = 5
_LOOK_S = 0.5

Pause = Annotated[float, option("How long what has begun may take.", "SECONDS", "--wait-secs", "-w", min=0.0)]

app = typer.Typer()
PANEL = "Clusters"


@dataclass(frozen=True)
class CodeOptions:
    """The code of a topology, with its settings, and how long its driver is awaited.

    `requirements`: What the topology needs, as pip reads it; supervisors install it.
    `include`: A file or folder beside the module that is packed too. Repeatable.
    `wait`: Wait until its driver runs; Ctrl-C ends only the wait.
    """

    target: Target
    conf: Conf = None
    requirements: Annotated[Path | None, option("", "FILE", exists=True, dir_okay=False)] = None
    include: Annotated[list[str] | None, option("", "PATH")] = None
    wait: Annotated[bool, flag("--wait", "")] = False
    timeout: Annotated[float | None, option("How long --wait waits.", "SECONDS", show_default="300", min=0.1)] = None

    def read(self) -> Code:
        from trident.cli.submitting import Code
        from trident.cli.target import conf_of

        needs("--wait", self.wait, timeout=self.timeout)
        wait_s = (self.timeout or 300.0) if self.wait else None
        return Code(self.target, self.include or [], self.requirements, conf_of(self.conf or []), wait_s)


@command(app, "submit", "`trident submit word_counts.py:topology --name words --wait`", PANEL)
def submit_command(
    of: ClusterAndToken,
    code: CodeOptions,
    name: Annotated[str, option("Names the topology and its log.", "NAME", show_default="that of the topology")] = "",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Submit a topology to a cluster, which keeps it running from then on.

    The package has the module and what it imports from its folder; packages are included whole, with their data files.
    It is loaded before it is sent. A topology that was killed and is submitted again under its name continues with its
    log; in the folder of a cluster on this machine that is the log of `trident run`.

    Exit codes: 0 submitted (with --wait: it runs), 1 failed, 2 wrong usage, 4 submitted, but it did not run within
    --timeout, 130 ended by Ctrl-C.
    """
    from trident.cli.submitting import submit

    packed = code.read()
    with of.client() as client:
        submit(client, packed, name, workers, as_json)


@command(app, "upgrade", "`trident upgrade words word_counts.py:topology --wait`", PANEL)
def upgrade_command(
    of: ClusterAndToken,
    topology: Topology,
    code: CodeOptions,
    rehearsed: Annotated[int | None, option("", "N", "--rehearse", min=1)] = None,
    as_json: AsJson = False,
) -> int | None:
    """Give a topology new code, on the same log: its counts go on.

    The new code is compared with the log before anything is changed: a state with a different key, value or aggregator
    is refused. With --conf all settings are replaced; without it they stay.

    Exit codes: as for `trident submit`; with --rehearse as for `trident rehearse`.

    `rehearsed`: Change nothing: run the last N batches through both codes, and show which totals would differ.
    """
    from trident.cli.submitting import rehearse_code, upgrade

    packed, keeps_conf = code.read(), code.conf is None
    with of.client() as client:
        if rehearsed is not None:
            return rehearse_code(client, topology, packed, keeps_conf, rehearsed, as_json)
        upgrade(client, topology, packed, keeps_conf, as_json)
    return None


@command(app, "list", "`trident list`", PANEL)
def list_command(of: ClusterOptions, as_json: AsJson = False) -> None:
    """List the topologies of a cluster, and why any of them is waiting."""
    with of.client() as client:
        overviews = client.topologies()
        tell([each.as_json() for each in overviews], as_json, lambda: print_list(overviews))


@command(app, "show", "`trident show words`", PANEL)
def show_command(of: ClusterOptions, topology: Topology, as_json: AsJson = False) -> None:
    """Show a topology: its status, where its driver runs, its code and settings."""
    with of.client() as client:
        overview = client.show(topology)
        tell(overview.as_json(), as_json, lambda: print_topology(overview))


@command(app, "activate", "`trident activate words`", PANEL)
def activate_command(of: ClusterAndToken, topology: Topology, as_json: AsJson = False) -> None:
    """Resume a topology that was deactivated, or that was marked as failed because its driver kept failing."""
    with of.client() as client:
        client.activate(topology)
        _say_done(client.show(topology), "is active", as_json)


@command(app, "deactivate", "`trident deactivate words`", PANEL)
def deactivate_command(of: ClusterAndToken, topology: Topology, as_json: AsJson = False) -> None:
    """Stop the sources of a topology; what has begun is finished, and its driver stays."""
    with of.client() as client:
        client.deactivate(topology)
        _say_done(client.show(topology), "is inactive: what has begun is finished", as_json)


@command(app, "kill", "`trident kill words -w 10`", PANEL)
def kill_command(of: ClusterAndToken, topology: Topology, wait_secs: Pause = 30.0, as_json: AsJson = False) -> None:
    """End a topology and forget it. Its log and its states stay: submitted again under its name, it continues."""
    with of.client() as client:
        _say_done(client.kill(topology, wait_secs), f"ends; what has begun may take {wait_secs:g} s", as_json)


@command(app, "rebalance", "`trident rebalance words -w 10 -n 4 -e count=8`", PANEL)
def rebalance_command(
    of: ClusterAndToken,
    topology: Topology,
    wait_secs: Pause = 30.0,
    workers: Workers = None,
    executors: Annotated[list[str] | None, option("", "COMPONENT=N", "--executors", "-e")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a topology with other numbers of workers and executors.

    Spouts and bolts change over while they run. A Trident topology gets a new driver, and so does any topology for
    which no numbers are given.

    `executors`: Executors of a spout or bolt, at most its tasks. Repeatable. Not for Trident.
    """
    wanted = dict(map(_executors_of, executors or ()))
    with of.client() as client:
        client.rebalance(topology, wait_secs, workers, wanted)
        _say_done(client.show(topology), "is rebalanced", as_json)


@command(app, "errors", "`trident errors words`", PANEL)
def errors_command(of: ClusterOptions, topology: Topology, as_json: AsJson = False) -> None:
    """Show the last errors of a topology, newest first: ten of each component."""
    with of.client() as client:
        errors = client.errors(topology)
        tell(errors, as_json, lambda: print_errors(errors))


@command(app, "logs", "`trident logs words --follow`", PANEL)
def logs_command(
    of: ClusterAndToken,
    topology: Topology,
    follow: Annotated[bool, flag("--follow", "Go on with what is added, until Ctrl-C.", "-f")] = False,
) -> None:
    """Print the end of the log of a topology's driver, wherever it runs."""
    with of.client() as client:
        print_logs(client, topology, follow)


def _executors_of(given: str) -> tuple[str, int]:
    name, _, text = given.rpartition("=")
    if not (name and text.isascii() and text.isdigit() and int(text) >= 1):
        raise typer.BadParameter(f"-e {given!r}: expected COMPONENT=N with N at least 1, as in count=4")
    return name, int(text)


def _say_done(overview: TopologyOverview, done: str, as_json: bool) -> None:
    tell(overview.as_json(), as_json, lambda: say(f"{overview.base.storm_name} {done}"))


def print_list(overviews: Sequence[TopologyOverview]) -> None:
    if not overviews:
        say("no topologies; `trident submit MODULE:TOPOLOGY` adds one")
        return
    from trident.cluster.topology_overviews import first_line

    rows = [
        [each.base.storm_name, each.base.status.kind, _driver(each), _where(each), str(each.base.num_workers)]
        + [_utc(each.base.launch_time_secs), each.storm_id]
        for each in overviews
    ]
    columns = ["name", "status", "driver", "where", "workers", "submitted (UTC)", "id"]
    shown = len(columns) if is_wide(results()) else 5
    show([row[:shown] for row in rows], *columns[:shown], right=[4])
    reasons: dict[str, list[str]] = {}
    for each in overviews:
        if reason := first_line(each.base.status.reason) or each.why_waiting:
            reasons.setdefault(reason, []).append(each.base.storm_name)
        elif each.last_error is not None:
            reason = f"its driver does not run; the last error: {first_line(each.last_error.error)}"
            reasons.setdefault(reason, []).append(each.base.storm_name)
    for reason, names in reasons.items():  # topologies that wait for the same reason share one line
        others = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        say(f"{', '.join(names[:_MOST_NAMES])}{others}: {reason}")


def print_topology(overview: TopologyOverview) -> None:
    base = overview.base
    since = duration(time.time() - base.status.since_secs)
    status = f"{base.status.kind} for {since}" + (f": {base.status.reason}" if base.status.reason else "")
    if base.status.kind == "killed":
        status += f"; what has begun may take {base.status.wait_secs:g} s"
    before = f", before the upgrade {base.previous_code_hash[:12]}" if base.previous_code_hash else ""
    lines = {
        "topology": f"{base.storm_name} ({'Trident' if base.kind == 'trident' else 'spouts and bolts'})",
        "id": overview.storm_id,
        "status": status,
        "driver": _driver(overview) + (f": {overview.why_waiting}" if overview.why_waiting else ""),
        "verdict": "\n".join(each["text"] for each in overview.verdict["lines"]),
        "where": _where(overview),
        "workers": str(base.num_workers),
        "executors": ", ".join(f"{name} {count}" for name, count in base.component_executors.items()),
        "target": base.target,
        "code": f"{base.code_hash[:12]}{before}, generation {base.generation}",
        "settings": ", ".join(f"{key}={value}" for key, value in shown_configuration(base.conf).items()),
        "submitted": f"{_utc(base.launch_time_secs)} UTC",
        "page": overview.page,
    }
    show_facts({name: value for name, value in lines.items() if value})


def print_errors(errors: Sequence[Mapping[str, Any]]) -> None:
    if not errors:
        say("no errors")
    for each in errors:
        say(f"{_utc(each['time'])} UTC  {each['component']}  on {each['host']}:{each['port']}", "bold")
        say("\n".join(f"  {line}" for line in str(each["error"]).rstrip().splitlines()))


def _driver(overview: TopologyOverview) -> str:
    beat = overview.heartbeat
    if overview.driver in ("active", "inactive") and beat is not None:
        return f"{overview.driver} for {duration(beat.uptime_secs)}"
    if overview.driver == "silent" and overview.heard_s is not None:
        return f"silent for {duration(overview.heard_s)}"
    return overview.driver


def _where(overview: TopologyOverview) -> str:
    return "" if overview.assignment is None else overview.assignment.where


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def print_logs(client: ClusterClient, topology: str, follow: bool) -> None:
    """Print the end of a driver's log; `follow`: and what is added, also by another driver, until the topology has ended."""
    from trident.errors import ClusterUnreachable, NoLeader, NoSuchTopology

    log = client.log(topology)
    print_line(log["text"], nl=False)
    while follow:
        if not log["text"]:
            time.sleep(_LOOK_S)
        try:
            log = client.log(topology, log["next"])
        except NoSuchTopology:
            say(f"topology {topology!r} has ended", console=problems())
            return
        except (ClusterUnreachable, NoLeader) as error:
            say(f"{error}; trying again", console=problems())
            time.sleep(_LOOK_S)
            continue
        print_line(log["text"], nl=False)
