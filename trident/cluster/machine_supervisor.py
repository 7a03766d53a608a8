"""`MachineSupervisor`, `trident supervisor`: watches its assignments, and starts, ends, restarts and adopts its drivers."""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from trident import __version__
from trident.cluster.code_store import CodeCache
from trident.cluster.driver_slot import DriverSlot, Wanted
from trident.cluster.machine_folder import MachineFolder, read_log
from trident.cluster_state.cluster_address import TOKEN_VARIABLE, cluster_at, open_cluster_state
from trident.cluster_state.cluster_records import DRIVER, DriverDeath, ErrorInfo, SupervisorInfo
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import ClusterError, NoLeader, NoSuchTopology
from trident.nodes.interface import NodeEvent
from trident.redaction import redacted
from trident.web.cluster_pages import ClusterPages, LogOf, Page, TopologyPages, client_of
from trident.web.rest import UIServer

logger = logging.getLogger(__name__)


_LOOK_S = 0.1  # how often it looks at its drivers
_READ_S = 1.0  # how often it reads its assignments, if no watch makes it read them earlier
_HEARTBEAT_S = 3.0  # how often it says that it is there
_TIDY_EVERY_S, _FETCH_TIMEOUT_S = 600.0, 60.0


class MachineSupervisor:
    """A supervisor, whose thread does all but the fetching of code. Nothing listens on `ports`."""

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
        with ExitStack() as opened:
            self.folder = MachineFolder(folder)
            opened.callback(self.folder.close)
            self.cluster = StormClusterState(open_cluster_state(address, session_timeout_s))
            opened.callback(self.cluster.disconnect)
            server = opened.enter_context(UIServer(MachinePages(self.folder), host, 0, token, token_for_all=True))
            self.id, self._name, self._meta = self.folder.id, socket.gethostname(), {"logs": server.url}
            self._code = CodeCache(self.folder.path, partial(_fetch, self.cluster, token))
            self._began = time.time()
            self._fetching = ThreadPoolExecutor(2, thread_name_prefix="trident-fetch")
            self._unreported: list[tuple[str, DriverDeath | ErrorInfo]] = []
            # An address that means the same in every working directory.
            shared = (self.folder, str(cluster_at(address)), host, self._code, self._fetching, self._unreported)
            self.slots = {port: DriverSlot(port, *shared) for port in ports}
            self._open = opened.pop_all()
        self._wanted: dict[int, Wanted] = {}
        self._read_at = self._beat_at = float("-inf")
        self._reported_used: list[int] = []
        self._tidied_at = time.monotonic()
        self._changed, self._stopped = threading.Event(), threading.Event()
        self.cluster.state.register(self._on_event)
        self._thread = threading.Thread(target=self._run, name="trident-supervisor", daemon=True)
        self._thread.start()

    def close(self, end_drivers: bool = False) -> None:
        """Stop supervising. Drivers go on and are adopted by the next supervisor, or end first (`end_drivers`)."""
        self._stopped.set()
        self._thread.join()
        if end_drivers:
            waiting, slots = threading.Event(), self.slots.values()
            for slot in slots:
                slot.end(time.monotonic())
            while any(slot.is_busy for slot in slots):
                for slot in slots:
                    slot.look(time.monotonic(), time.time())
                waiting.wait(_LOOK_S)
        self._fetching.shutdown(wait=True, cancel_futures=True)
        self._open.close()

    def _on_event(self, event: NodeEvent) -> None:
        if event.kind == "expired":
            self._beat_at = float("-inf")  # the ephemeral node is gone with the session
        self._changed.set()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self._round()
            except Exception:  # its drivers depend on it
                logger.exception("a round of the supervisor failed")

    def _round(self) -> None:
        now = time.monotonic()
        busy = [slot.is_busy for slot in self.slots.values()]
        for slot in self.slots.values():
            slot.look(now, time.time())
        if busy != [slot.is_busy for slot in self.slots.values()]:
            self._changed.set()  # a driver that was asked to end knows more than what was read last
        try:
            if self._changed.is_set() or now - self._read_at >= _READ_S:
                self._read(now)
            self._beat(now)
        except ClusterError as error:
            # What was assigned may have been moved meanwhile, so nothing is started; what runs, runs on.
            logger.debug("the cluster's state does not answer: %s", error)
            return
        for port, slot in self.slots.items():
            slot.want(now, self._wanted.get(port))
        if now - self._tidied_at > _TIDY_EVERY_S:
            self._tidied_at = now
            running = [slot.driver.order.code_hash for slot in self.slots.values() if slot.driver is not None]
            self._code.remove_unused({*running, *(each.assignment.code_hash for each in self._wanted.values())})
            self.folder.remove_old_logs(self.cluster.active_storms())

    def _read(self, now: float) -> None:
        # First, so that a change during the reading lets it be read again.
        self._changed.clear()
        # Only for the watch: a new one is no change of any that is watched below.
        self.cluster.assignments(watch=True)
        bases = self.cluster.all_bases(watch=True)
        mine = {
            assignment.slot.port: Wanted(storm_id, assignment)
            for storm_id, assignment in self.cluster.all_assignments().items()
            # Without a record it is of a topology that is forgotten, left by a Nimbus that did not know.
            if assignment.slot.node == self.id and storm_id in bases
        }
        # A killed topology is not started again; its driver, which knows, ends it.
        self._wanted = {
            port: wanted
            for port, wanted in mine.items()
            if bases[wanted.storm_id].status.kind != "killed" or self._runs(port, wanted)
        }
        for wanted in mine.values():
            self.cluster.assignment_info(wanted.storm_id, watch=True)
        self._read_at = now

    def _runs(self, port: int, wanted: Wanted) -> bool:
        slot = self.slots.get(port)
        return slot is not None and slot.driver is not None and wanted.is_of(slot.driver.order)

    def _beat(self, now: float) -> None:
        for storm_id, said in list(self._unreported):
            if isinstance(said, DriverDeath):
                self.cluster.report_death(storm_id, said)
                error = ErrorInfo(said.time_secs, said.reason, self._name, said.port)
            else:
                error = said
            self.cluster.report_error(storm_id, DRIVER, error)
            # Only now: the state may go away in between, and a death that is told twice counts once.
            self._unreported.remove((storm_id, said))
        used = [port for port, slot in self.slots.items() if slot.is_busy]
        if now - self._beat_at < _HEARTBEAT_S and used == self._reported_used:
            return
        now_secs, ports = time.time(), tuple(self.slots)
        info = SupervisorInfo(now_secs, self._name, self.id, used, ports, self._meta, now_secs - self._began)
        self.cluster.supervisor_heartbeat(self.id, info)
        self._beat_at, self._reported_used = now, used


def _fetch(cluster: StormClusterState, token: str, code_hash: str) -> bytes:
    import httpx

    # The leader first, but packages are in a folder that all Nimbuses may share, and it may be down.
    leader = cluster.leader()
    urls = [*([] if leader is None else [leader["url"]]), *(each["url"] for each in cluster.nimbuses())]
    if not urls:
        raise NoLeader(f"the package {code_hash} cannot be fetched: no Nimbus is running")
    problems = []
    for url in dict.fromkeys(urls):
        try:
            with client_of(url, token, _FETCH_TIMEOUT_S, extra="cluster") as client:
                answer = client.get(f"/api/v1/code/{code_hash}")
        except httpx.HTTPError as error:
            problems.append(f"the package {code_hash} could not be fetched from {url}: {error!r}")
            continue
        if answer.status_code == 200:
            return answer.content
        refused = "refuses the token of this supervisor; all daemons need the same one"
        said = {401: refused, 403: refused, 404: f"does not have the package {code_hash}"}
        answered = f"answered {answer.status_code} for the package {code_hash}"
        problems.append(f"Nimbus at {url} {said.get(answer.status_code, answered)}")
    raise ClusterError("; ".join(problems))


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
        # What it prints is told for the log too, until it logs.
        name = Path(topology_id).name  # no file beside those of the logs
        file = self._folder.log_file(name)
        if of == "driver" and file.exists():
            return read_log(file, offset)
        page = read_log(self._folder.output_file(name), offset)
        # In whole lines, without secrets: half of an address does not show what it is.
        whole, end, _ = page["text"].rpartition("\n")
        return {**page, "text": redacted(whole + end or page["text"]), "next": page["lineEnd" if end else "next"]}
