"""`ClusterClient`: submits topologies to a cluster and steers them. What can be read is read from the cluster's state."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trident import __version__
from trident.cluster.code_store import CodeStore
from trident.cluster.topology_overviews import TopologyOverview, overview, overviews, with_last_error
from trident.cluster.topology_package import TopologyPackage
from trident.cluster_state.cluster_address import STATE_FILE, default_address, find_token, folder_of, open_cluster_state
from trident.cluster_state.cluster_records import WantedStatus
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import ClusterError, ClusterUnreachable, NoLeader, NoSuchTopology, NotAllowed, TridentError
from trident.log.log_reader import exists
from trident.roles import Closes
from trident.web.cluster_pages import client_of, error_of

if TYPE_CHECKING:
    import httpx

_CODE = "/api/v1/code"
_PIECE = 1 << 16
_MOST_NAMES = 10
_TIMEOUT_S, _PAUSE_S = 30.0, 0.25
_AGAIN = (ClusterUnreachable, NoLeader)

Progress = Callable[[int], None]  # called with the number of bytes that were just sent


class ClusterClient(Closes):
    """A client of a cluster, for one thread; when no Nimbus answers it tries again for `patience_s`.

    `address`: as of `open_cluster_state`. `token`: what changes need; by default that in the folder of the cluster.
    """

    def __init__(self, address: str, token: str | None = None, patience_s: float = 20.0) -> None:
        check_is_there(address)
        token = find_token(folder_of(address), token)
        self._patience_s, self._has_token = patience_s, token is not None
        self._http = client_of("", token, _TIMEOUT_S, "asking a cluster", "cluster")
        self.cluster = StormClusterState(open_cluster_state(address, makes=False))  # a session: the last to fail

    def submit(
        self,
        package: TopologyPackage,
        name: str = "",
        conf: Mapping[str, str] | None = None,
        workers: int | None = None,
        submission: str | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Submit a topology, see `Submissions.submit`; returns its id. With the same `submission` it is one."""
        self._send(package, progress)
        wanted = {
            "sha256": package.sha256,
            "name": name,
            "submission": submission or secrets.token_hex(16),
            "conf": dict(conf or {}),
            "workers": workers,
        }
        return str(self._ask("POST", "/api/v1/topology", json=wanted).json()["id"])

    def upgrade(
        self,
        topology: str,
        package: TopologyPackage,
        conf: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Give a topology new code, see `Submissions.upgrade`; returns `generation`, `changed`, `compared` and `notes`."""
        _, before = self.cluster.find_storm(topology)
        path = self._path(topology)
        self._send(package, progress)
        wanted = {"sha256": package.sha256, "conf": None if conf is None else dict(conf)}
        done: dict[str, Any] = self._ask("POST", f"{path}/upgrade", json=wanted).json()
        # Not what Nimbus says of this request: an earlier try, whose answer was lost, may have changed it.
        return {**done, "changed": done["generation"] != before.generation}

    def package_of(self, topology: str) -> bytes:
        _, base = self.cluster.find_storm(topology)
        return self._ask("GET", f"{_CODE}/{base.code_hash}").content

    def activate(self, topology: str) -> None:
        self._ask("POST", f"{self._path(topology)}/activate")

    def deactivate(self, topology: str) -> None:
        self._ask("POST", f"{self._path(topology)}/deactivate")

    def kill(self, topology: str, wait_s: float = 30.0) -> TopologyOverview:
        """End a topology: what has begun may take `wait_s`. Returns it as it was last seen: it may be forgotten at once."""
        # By its id from here on: as soon as it is forgotten another topology may have the name.
        before = self.show(topology)
        with suppress(NoSuchTopology):  # forgotten already: an earlier try, whose answer was lost, has ended it
            self._ask("POST", f"{self._path(before.storm_id)}/kill/{wait_s}")
            return self.show(before.storm_id)
        return replace(before, base=replace(before.base, status=WantedStatus("killed", time.time(), wait_s)))

    def rebalance(
        self,
        topology: str,
        wait_s: float = 30.0,
        workers: int | None = None,
        executors: Mapping[str, int] | None = None,
    ) -> None:
        """Run a topology with other numbers of workers and executors where these are given; without, in a new driver."""
        options: dict[str, Any] = {} if workers is None else {"numWorkers": workers}
        if executors:
            options["executors"] = dict(executors)
        # A rebalance may be a new driver, so one whose answer was lost is not sent again.
        self._ask("POST", f"{self._path(topology)}/rebalance/{wait_s}", again=False, json={"rebalanceOptions": options})

    def topologies(self) -> list[TopologyOverview]:
        found = [with_last_error(self.cluster, each) for each in overviews(self.cluster)]
        return sorted(found, key=lambda each: (each.base.storm_name, each.base.launch_time_secs))

    def show(self, topology: str) -> TopologyOverview:
        return with_last_error(self.cluster, overview(self.cluster, *self.cluster.find_storm(topology)))

    def errors(self, topology: str) -> list[dict[str, Any]]:
        """Return the last errors of a topology, newest first: `component`, `time`, `host`, `port`, `error`."""
        storm_id, _ = self.cluster.find_storm(topology)
        found = [
            {"component": name, "time": each.time_secs, "host": each.host, "port": each.port, "error": each.error}
            for name, errors in self.cluster.all_errors(storm_id).items()
            for each in errors
        ]
        return sorted(found, key=lambda each: float(str(each["time"])), reverse=True)

    def log(self, topology: str, offset: int | None = None) -> dict[str, Any]:
        """Return `{"text", "offset", "next"}`: the log of a topology's driver from `offset` on, or its end."""
        asked = {} if offset is None else {"offset": offset}
        page: dict[str, Any] = self._ask("GET", f"{self._path(topology)}/log", params=asked).json()
        return page

    def close(self) -> None:
        self._http.close()
        self.cluster.disconnect()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        again: bool = True,
        content: Callable[[], Iterator[bytes]] | None = None,
        **request: Any,
    ) -> httpx.Response:
        """Return the answer of the leading Nimbus, a success; `again`: the request may be sent twice."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                # An iterator that a try has used up gives nothing to the next one.
                if content is not None:
                    request["content"] = content()
                # To whom the cluster's state names now, as another Nimbus may lead than before.
                return self._request_once(method, path, again, request)
            except _AGAIN as error:
                if time.monotonic() > until or isinstance(error, _Unknown):
                    raise
            time.sleep(_PAUSE_S)

    def _request_once(self, method: str, path: str, again: bool, request: Mapping[str, Any]) -> httpx.Response:
        import httpx

        # Asked for each try: another Nimbus may lead since the last one.
        url = leader_url(self.cluster)
        try:
            answer = self._http.request(method, url + path, **request)
        # Nothing has arrived, so that also what must not be done twice may be sent again.
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ClusterUnreachable(f"the Nimbus at {url} does not answer: {error}") from error
        except httpx.HTTPError as error:
            reason = f"within {_TIMEOUT_S:g} s" if isinstance(error, httpx.TimeoutException) else str(error)
            kind = ClusterUnreachable if again else _Unknown
            text = f"the Nimbus at {url} did not answer: {reason}"
            raise kind(
                text if again else f"{text}. It is not known whether that was done; check with `trident show`"
            ) from error
        if answer.is_success:
            return answer
        refused = error_of(url, answer)
        if isinstance(refused, NotAllowed) and not self._has_token:
            raise NotAllowed(f"{refused}; give it with --token or the variable TRIDENT_TOKEN")
        raise refused if isinstance(refused, TridentError) else ClusterError(str(refused.args[0]))

    def _path(self, topology: str) -> str:
        storm_id, _ = self.cluster.find_storm(topology)
        return f"/api/v1/topology/{quote(storm_id, safe='')}"

    def _send(self, package: TopologyPackage, progress: Progress | None) -> None:
        data = package.data
        report = progress or (lambda sent: None)

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(data), _PIECE):
                yield data[start : start + _PIECE]
                report(len(data[start : start + _PIECE]))

        # To ask also makes the package count as new, so it is not removed as unused before a topology has it.
        if not self._ask("GET", _CODE, params={"has": package.sha256}).json()["has"]:
            self._ask("PUT", f"{_CODE}/{package.sha256}", content=pieces, headers={"Content-Length": str(len(data))})


def leader_url(cluster: StormClusterState) -> str:
    """Return where the leading Nimbus is; `NoLeader`, or `ClusterError`: it is of another release."""
    leader = cluster.leader()
    if leader is None:
        raise NoLeader(
            "no Nimbus leads the cluster. Start one: `trident nimbus`, or `trident up` for all on this machine. Running "
            "topologies go on without it"
        )
    version = str(leader.get("version", __version__))
    if version.split(".")[:2] != __version__.split(".")[:2]:
        raise ClusterError(
            f"the Nimbus at {leader['url']} has Trident {version}, and this client {__version__}; install the version of the "
            "cluster"
        )
    return str(leader["url"])


class _Unknown(ClusterUnreachable):
    """An answer was lost, to a request that must not be sent twice."""


def check_is_there(address: str | None) -> None:
    """Raise `ClusterUnreachable` if `address`, or the default one, is a folder without a cluster: only its daemons make one."""
    folder = folder_of(address or default_address())
    if folder is not None and not (folder / STATE_FILE).is_file():
        raise ClusterUnreachable(
            left_of(folder)
            or f"there is no cluster in {folder}. Start one there (`trident up`), or name it: --cluster, or TRIDENT_CLUSTER"
        )


def left_of(folder: Path) -> str:
    """Say what is in the folder of a cluster whose state is not there; "" if it is there, or nothing else is."""
    if (folder / STATE_FILE).exists():
        return ""
    place, code = folder / "transactional", folder / "code"
    found = {each.name for each in place.iterdir() if exists(each)} if place.is_dir() else set()
    for sha256 in (store := CodeStore(code)).hashes() if code.is_dir() else ():
        with suppress(ClusterError):  # damaged
            found.add(store.manifest(sha256).name)
    if not (names := sorted(found)):
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    topologies = ", ".join(names[:_MOST_NAMES])
    return (
        f"the state of the cluster, {folder / STATE_FILE}, is gone, but not the code and the logs of {topologies}{more}. Bring "
        "the file back from a backup; or submit the topologies again under the names that they had: each goes on with its log, "
        "after its last recorded batch"
    )
