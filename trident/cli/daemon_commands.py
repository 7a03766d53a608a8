"""The daemons of a cluster as commands: `trident nimbus`, `trident supervisor`, `trident up`, `trident ui`."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from trident.cli.cluster_commands import PANEL
from trident.cli.commands import ClusterAndToken, Logs, command, flag, option, port
from trident.cli.console import EndingSignals, json_line, say, say_page
from trident.extras import needs_package
from trident.naming import counted

_LOCAL = "127.0.0.1"
_FIRST_PORT = 6700

Host = Annotated[str, option("The address to answer at, under which other machines reach this one.", "HOST")]
Port = Annotated[int, port("The port of the page; 0 takes a free one.")]
Slots = Annotated[int, option("How many topologies may run on this machine.", "N", min=1, max=1000)]
Session = Annotated[float, option("", "SECONDS", min=1.0)]


app = typer.Typer()


class Own(NamedTuple):
    """The cluster of a daemon: where its state is, in which folder if it is embedded, its token; and how the daemon speaks."""

    address: str
    folder: Path | None
    token: str
    as_json: bool

    def say(self, text: str) -> None:
        say(json_line(text) if self.as_json else text)

    def report_remains(self) -> None:
        """Say what is left of a cluster whose state is gone."""
        from trident.cluster.client import left_of

        if self.folder is not None and (left := left_of(self.folder)):
            self.say(f"warning: starting with an empty cluster: {left}")


@dataclass(frozen=True)
class DaemonOptions(ClusterAndToken):
    """The cluster of a daemon, and how the daemon speaks."""

    log_format: Logs = "text"

    def own(self) -> Own:
        from trident.cluster_state.cluster_address import default_address, folder_of, own_token

        address = self.cluster or default_address()
        folder = folder_of(address)
        return Own(address, folder, own_token(self.token, folder), self.log_format == "json")

    def begin(self, host: str = _LOCAL) -> Own:
        with needs_package("a daemon of a cluster", "cluster"):
            import trident.cluster.machine_supervisor
            import trident.cluster.nimbus  # noqa: F401
        from trident.errors import ClusterError

        logging.getLogger("trident.cluster").setLevel(logging.INFO)
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        if host in ("0.0.0.0", "::", ""):
            raise ClusterError(
                f"--host {host!r} is not a name under which other machines reach this one; give its name or its address. "
                "The daemon listens there, and tells the others"
            )
        return self.own()


@command(app, "nimbus", "`trident nimbus --cluster zookeeper://zk1,zk2,zk3/storm --code /shared/code`", PANEL)
def nimbus_command(
    of: DaemonOptions,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    code: Annotated[Path | None, option("", "DIR", show_default="code in the cluster's folder")] = None,
    driver_timeout: Annotated[float, option("", "SECONDS", min=1.0)] = 15.0,
    max_deaths: Annotated[int, option("", "N", min=1, max=100)] = 20,
    session_timeout: Session = 10.0,
) -> int:
    """Run a Nimbus until Ctrl-C: it assigns topologies to supervisors and serves the page and the clients.

    Start two or more on different machines: one leads, the others stand by. While none of them runs, topologies go on,
    but nothing is submitted or moved.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.

    `code`: Where the code of topologies is stored; several Nimbuses of a cluster share it.
    `driver_timeout`: A driver without a heartbeat for this long is started elsewhere.
    `max_deaths`: A topology whose drivers die so often in half an hour, each within a minute, is marked as failed.
    """
    own = of.begin(host)
    from trident.cluster.nimbus import NimbusDaemon

    own.report_remains()
    code_dir = code or (own.folder / "code" if own.folder else Path("trident-code"))
    times = {"driver_timeout_s": driver_timeout, "max_deaths": max_deaths}
    with (
        EndingSignals("stopping; topologies go on", "ended at once; topologies go on", own.as_json) as signals,
        NimbusDaemon(own.address, own.token, code_dir, host, port, session_timeout, **times) as nimbus,
    ):
        own.say(f"Nimbus of {own.address}: page and clients at {nimbus.url}, code in {code_dir}")
        return signals.wait()


@command(app, "supervisor", "`trident supervisor --cluster zookeeper://zk1,zk2,zk3/storm --slots 4`", PANEL)
def supervisor_command(
    of: DaemonOptions,
    host: Host = "127.0.0.1",
    slots: Slots = 4,
    folder: Annotated[
        Path | None, option("", "DIR", show_default="supervisor in the cluster's folder, or trident-supervisor")
    ] = None,
    end_drivers: Annotated[bool, flag("--end-drivers", "")] = False,
    session_timeout: Session = 10.0,
) -> int:
    """Keep the topologies that are assigned to this machine running, until Ctrl-C.

    Each topology has a driver, a process of its own. Drivers keep running when the supervisor ends or is killed; the
    next supervisor with the same folder adopts them.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.

    `folder`: What it keeps on this machine: code, logs, its id.
    `end_drivers`: End the drivers with the supervisor, instead of leaving them to the next one.
    """
    own = of.begin(host)
    from trident.cluster.machine_supervisor import MachineSupervisor

    place = folder or (own.folder / "supervisor" if own.folder else Path("trident-supervisor"))
    ports = range(_FIRST_PORT, _FIRST_PORT + slots)
    goes_on = "ending its drivers after their commits" if end_drivers else "its drivers go on"
    with EndingSignals(f"stopping; {goes_on}", "ended at once; its drivers go on", own.as_json) as signals:
        daemon = MachineSupervisor(own.address, own.token, place, host, ports, session_timeout_s=session_timeout)
        try:
            own.say(f"supervisor {daemon.id} of {own.address}: {counted(slots, 'slot')}, files in {place}")
            exit_code = signals.wait()
        finally:
            left = sum(slot.is_busy for slot in daemon.slots.values())
            daemon.close(end_drivers)
        if left and not end_drivers:
            own.say(f"drivers that go on: {left}; the next supervisor with {place} adopts them")
    return exit_code


@command(app, "up", "`trident up`, and in another terminal `trident submit word_count.py:topology`", PANEL)
def up_command(of: DaemonOptions, port: Port = 8080, slots: Slots = 4) -> int:
    """Run a whole cluster on this machine until Ctrl-C: Nimbus, a supervisor and the page in one process.

    Ctrl-C ends the drivers after their running commits. Topologies that were submitted go on with the next `trident up`.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    own = of.begin()
    from trident.cluster.machine_supervisor import MachineSupervisor
    from trident.cluster.nimbus import NimbusDaemon

    own.report_remains()
    place, ports = own.folder or Path("trident-supervisor"), range(_FIRST_PORT, _FIRST_PORT + slots)
    stopping = "stopping after the running commits (once more: at once)"
    with (
        EndingSignals(stopping, "ended at once; drivers go on", own.as_json) as signals,
        NimbusDaemon(own.address, own.token, place / "code", _LOCAL, port) as nimbus,
    ):
        daemon = MachineSupervisor(own.address, own.token, place / "supervisor", ports=ports)
        try:
            nimbus.wait_until_known()
            own.say(f"cluster in {own.address}: {counted(slots, 'slot')}, page at {nimbus.url}")
            if own.folder is not None:
                own.say(f"actions on the page need the token in {own.folder / 'token'}")
            own.say("submit a topology: trident submit FILE.py:TOPOLOGY (Ctrl-C ends all)")
            return signals.wait()
        finally:
            daemon.close(end_drivers=True)


@command(app, "ui", "`trident ui --cluster zookeeper://zk1,zk2,zk3/storm`", PANEL)
def ui_command(
    of: DaemonOptions,
    host: Annotated[str, option("The address to serve at.", "HOST")] = "127.0.0.1",
    port: Annotated[int, port("0 takes a free port.")] = 8080,
) -> int:
    """Serve the page of a cluster until Ctrl-C. Every Nimbus serves it too; this is for another machine or port.

    Anyone who can reach it may read it; actions need the cluster's token.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    with needs_package("the page of a cluster", "cluster"):
        from trident.cluster.client import check_is_there
        from trident.cluster.pages import open_cluster_pages
        from trident.web.rest import UIServer
    check_is_there(of.cluster)
    own = of.own()
    with (
        open_cluster_pages(own.address, own.token) as pages,
        EndingSignals("stopping", "ended at once", own.as_json) as signals,
        UIServer(pages, host, port, own.token) as server,
    ):
        say_page(f"cluster {own.address}", host, server.url)
        return signals.wait()
