"""What `trident nimbus`, `trident supervisor` and `trident up` do."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import NamedTuple

from trident.cli.console import Signals, ending_signals, json_line, say
from trident.cluster.client.cluster_token import own_token
from trident.cluster.lost_state import left_of
from trident.cluster.machine.supervisor_daemon import SupervisorDaemon
from trident.cluster.nimbus.nimbus import NimbusSettings
from trident.cluster.nimbus.nimbus_daemon import NimbusDaemon
from trident.cluster.state.cluster_address import default_address, folder_of, is_embedded
from trident.cluster_errors import ClusterError

_LOCAL = "127.0.0.1"
_FIRST_PORT = 6700
_LOOK_S = 0.2


def run_nimbus(
    address: str | None,
    token: str | None,
    host: str,
    port: int,
    code: Path | None,
    driver_timeout_s: float,
    max_deaths: int,
    session_timeout_s: float,
    as_json: bool,
) -> int:
    """Run a Nimbus until a signal; returns the exit code."""
    cluster = _cluster(address, token, host)
    _report_remains(cluster, as_json)
    code_dir = code or (cluster.folder / "code" if cluster.folder else Path("trident-code"))
    settings = NimbusSettings(driver_timeout_s=driver_timeout_s, max_deaths=max_deaths)
    with (
        ending_signals("stopping; topologies go on", "ended at once; topologies go on", as_json) as signals,
        NimbusDaemon(cluster.address, cluster.token, code_dir, host, port, None, settings, session_timeout_s) as nimbus,
    ):
        _say(f"Nimbus of {cluster.address}: page and clients at {nimbus.url}, code in {code_dir}", as_json)
        return _wait(signals)


def run_supervisor(
    address: str | None,
    token: str | None,
    host: str,
    slots: int,
    folder: Path | None,
    end_drivers: bool,
    session_timeout_s: float,
    as_json: bool,
) -> int:
    """Run a supervisor until a signal; returns the exit code."""
    cluster = _cluster(address, token, host)
    place = folder or (cluster.folder / "supervisor" if cluster.folder else Path("trident-supervisor"))
    ports = range(_FIRST_PORT, _FIRST_PORT + slots)
    goes_on = "ending its drivers after their commits" if end_drivers else "its drivers go on"
    with ending_signals(f"stopping; {goes_on}", "ended at once; its drivers go on", as_json) as signals:
        daemon = SupervisorDaemon(
            cluster.address, cluster.token, place, host, ports, session_timeout_s=session_timeout_s
        )
        try:
            _say(f"supervisor {daemon.supervisor.id} of {cluster.address}: {slots} slots, files in {place}", as_json)
            exit_code = _wait(signals)
        finally:
            left = sum(slot.is_busy for slot in daemon.supervisor.slots.values())
            daemon.close(end_drivers)
        if left and not end_drivers:
            _say(f"{left} drivers go on; the next supervisor with {place} adopts them", as_json)
    return exit_code


def run_up(address: str | None, token: str | None, port: int, slots: int, as_json: bool) -> int:
    """Run a cluster of one machine until a signal; returns the exit code."""
    cluster = _cluster(address, token)
    _report_remains(cluster, as_json)
    place = cluster.folder or Path("trident-supervisor")
    with (
        ending_signals(
            "stopping after the running commits (once more: at once)", "ended at once; drivers go on", as_json
        ) as signals,
        NimbusDaemon(cluster.address, cluster.token, place / "code", _LOCAL, port) as nimbus,
    ):
        ports = range(_FIRST_PORT, _FIRST_PORT + slots)
        daemon = SupervisorDaemon(cluster.address, cluster.token, place / "supervisor", ports=ports)
        try:
            nimbus.wait_until_known()
            _say(f"cluster in {cluster.address}: {slots} slots, page at {nimbus.url}", as_json)
            if cluster.folder is not None:
                _say(f"actions on the page need the token in {cluster.folder / 'token'}", as_json)
            _say("submit a topology: trident submit FILE.py:TOPOLOGY (Ctrl-C ends all)", as_json)
            exit_code = _wait(signals)
        finally:
            daemon.close(end_drivers=True)
    return exit_code


class _Cluster(NamedTuple):
    """Where its state is, in which folder if it is embedded, and its token."""

    address: str
    folder: Path | None
    token: str


def _cluster(address: str | None, token: str | None, host: str = _LOCAL) -> _Cluster:
    _log_daemons()
    _check_host(host)
    address = address or default_address()
    folder = folder_of(address) if is_embedded(address) else None
    return _Cluster(address, folder, own_token(token, folder))


def _check_host(host: str) -> None:
    if host in ("0.0.0.0", "::", ""):
        raise ClusterError(
            f"--host {host!r} is not a name under which other machines reach this one; give its name or its address. "
            "The daemon listens there, and tells the others"
        )


def _log_daemons() -> None:
    logging.getLogger("trident.cluster").setLevel(logging.INFO)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def _report_remains(cluster: _Cluster, as_json: bool) -> None:
    if cluster.folder is not None and (left := left_of(cluster.folder)):
        _say(f"warning: starting with an empty cluster: {left}", as_json)


def _wait(signals: Signals) -> int:
    waiting = threading.Event()
    while signals.received is None:
        waiting.wait(_LOOK_S)
    return 128 + signals.received


def _say(text: str, as_json: bool) -> None:
    if as_json:
        say(json_line(text))
    else:
        say(text)
