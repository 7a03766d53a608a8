"""`trident supervisor`: one supervisor with what it serves, and what it fetches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from trident import __version__
from trident.cluster.client.cluster_token import TOKEN_VARIABLE
from trident.cluster.code.unpacked_code import CodeCache
from trident.cluster.machine.machine_folder import MachineFolder, read_log
from trident.cluster.machine.machine_supervisor import MachineSupervisor
from trident.cluster.nimbus.leadership import hosts_of, leader_of
from trident.cluster.state.cluster_address import folder_of, is_embedded, open_cluster_state
from trident.cluster.state.cluster_state import ClusterState
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterError, NoLeader, NoSuchTopology, NotAllowed
from trident.redaction import redacted
from trident.ui.cluster_pages import ClusterPages, LogOf, Page, TopologyPages
from trident.ui.ui_server import UIServer

_FETCH_TIMEOUT_S = 60.0


class SupervisorDaemon:
    """A supervisor that runs in this process.

    Parameters
    ----------
    folder
        What it keeps on this machine; one supervisor has it at a time.
    host
        Where others reach this machine: its drivers and logs are served there.
    ports
        The ports that name its slots. Nothing listens on them.

    Raises
    ------
    ClusterError, ConfigError, EnvironmentProblem
    """

    def __init__(
        self,
        address: str,
        token: str,
        folder: Path,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (6700, 6701, 6702, 6703),
        session_timeout_s: float = 10.0,
    ) -> None:
        os.environ[TOKEN_VARIABLE] = token  # drivers get it from here, not from their command line, which others see
        self._open = ExitStack()
        try:
            machine = MachineFolder(folder)
            self._open.callback(machine.close)
            cluster = StormClusterState(open_cluster_state(address, session_timeout_s))
            self._open.callback(cluster.disconnect)
            server = self._open.enter_context(UIServer(MachinePages(machine), host, 0, token, token_for_all=True))
            cache = CodeCache(machine.path, partial(_fetch, cluster.state, token))
            # An address that means the same in every working directory.
            where = str(folder_of(address)) if is_embedded(address) else address
            self.supervisor = MachineSupervisor(cluster, where, machine, host, ports, cache, {"logs": server.url})
        except BaseException:
            self._open.close()
            raise
        self.supervisor.start()

    def close(self, end_drivers: bool = False) -> None:
        """Stop; drivers go on unless they are to end."""
        self.supervisor.stop(end_drivers)
        self._open.close()


def _fetch(state: ClusterState, token: str, code_hash: str) -> bytes:
    """Fetch a package from the Nimbus that leads, or from another one."""
    leader = leader_of(state)
    urls = [*([] if leader is None else [leader["url"]]), *(each["url"] for each in hosts_of(state))]
    if not urls:
        raise NoLeader(f"the package {code_hash} cannot be fetched: no Nimbus is running")
    problems: list[str] = []
    for url in dict.fromkeys(urls):
        try:
            return _fetch_from(url, token, code_hash)
        except ClusterError as error:
            problems.append(str(error))
    raise ClusterError("; ".join(problems))


def _fetch_from(url: str, token: str, code_hash: str) -> bytes:
    import httpx

    try:
        answer = httpx.get(
            f"{url}/api/v1/code/{code_hash}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=_FETCH_TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise ClusterError(f"the package {code_hash} could not be fetched from {url}: {error!r}") from error
    if answer.status_code in (401, 403):
        raise NotAllowed(f"Nimbus at {url} refuses the token of this supervisor; all daemons need the same one")
    if answer.status_code == 404:
        raise ClusterError(f"Nimbus at {url} does not have the package {code_hash}")
    if answer.status_code != 200:
        raise ClusterError(f"Nimbus at {url} answered {answer.status_code} for the package {code_hash}")
    return answer.content


class MachinePages(ClusterPages):
    """`ClusterPages` of one machine, which a supervisor serves: the logs of its drivers, and nothing of topologies."""

    read_only = True

    def __init__(self, folder: MachineFolder) -> None:
        self._folder = folder

    def cluster_summary(self) -> Page:
        return {"stormVersion": __version__}

    def supervisor_summary(self) -> Page:
        return {"supervisors": [{"id": self._folder.id}]}

    def topology_summary(self) -> Page:
        return {"topologies": []}

    def of_topology(self, topology_id: str) -> TopologyPages:
        raise NoSuchTopology(f"a supervisor serves logs only; ask Nimbus for {topology_id!r}")

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        """Return a part of a topology's log, or of what it prints, which is told for the log too until it logs."""
        name = Path(topology_id).name  # no file beside those of the logs
        file = self._folder.log_file(name)
        if of == "driver" and file.exists():
            return read_log(file, offset)
        return _without_secrets(read_log(self._folder.output_file(name), offset))


def _without_secrets(page: Page) -> Page:
    """Return a page of what was printed without secrets, in whole lines: half of an address does not show what it is."""
    whole, end, rest = page["text"].rpartition("\n")
    if not end or "\ufffd" in rest:  # its length is not known
        return {**page, "text": redacted(page["text"])}
    return {**page, "text": redacted(whole + end), "next": page["next"] - len(rest.encode())}
