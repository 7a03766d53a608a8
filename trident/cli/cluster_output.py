"""What the commands for clusters print: topologies, one topology, errors, the log of a driver."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trident.cli.console import is_wide, problems, results, say, show, show_facts
from trident.cluster.client import ClusterClient
from trident.cluster.topology_overviews import TopologyOverview, first_line
from trident.cluster_errors import ClusterUnreachable, NoLeader, NoSuchTopology
from trident.naming import duration
from trident.redaction import shown_configuration

_MOST_NAMES = 5


def print_list(overviews: Sequence[TopologyOverview]) -> None:
    if not overviews:
        say("no topologies; `trident submit MODULE:TOPOLOGY` adds one")
        return
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
    code = base.code_hash[:12] + (
        f", before the upgrade {base.previous_code_hash[:12]}" if base.previous_code_hash else ""
    )
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
        "code": f"{code}, generation {base.generation}",
        "settings": ", ".join(f"{key}={value}" for key, value in shown_configuration(base.conf).items()),
        "submitted": f"{_utc(base.launch_time_secs)} UTC",
        "page": overview.page,
    }
    show_facts({name: value for name, value in lines.items() if value})


def print_errors(errors: Sequence[Mapping[str, Any]]) -> None:
    """Print errors, newest first, each with its place and its text."""
    if not errors:
        say("no errors")
    for each in errors:
        say(f"{_utc(each['time'])} UTC  {each['component']}  on {each['host']}:{each['port']}", "bold")
        say("\n".join(f"  {line}" for line in str(each["error"]).rstrip().splitlines()))


def _driver(overview: TopologyOverview) -> str:
    beat = overview.heartbeat
    if overview.driver in ("active", "inactive") and beat is not None:
        return f"{overview.driver} for {duration(beat.uptime_secs)}"
    if overview.driver == "silent" and beat is not None:
        return f"silent for {duration(time.time() - beat.time_secs)}"
    return overview.driver


def _where(overview: TopologyOverview) -> str:
    return "" if overview.assignment is None else overview.assignment.where


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


_LOOK_S = 0.5


def print_logs(client: ClusterClient, topology: str, follow: bool) -> None:
    """Print the end of a driver's log; `follow`: and what is added to it, until Ctrl-C or until the topology has ended.

    When the topology gets another driver, its log follows from the beginning.
    """
    log = client.log(topology)
    _print(log["text"])
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
        _print(log["text"])


def _print(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
