"""What the REST interface serves: `TopologyPages` of one topology, `ClusterPages` of all that there are.

`OneTopology` is a running topology as if it were a cluster, `HttpTopologyPages` are the pages that another process serves.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote

from trident import __version__
from trident.errors import (
    ClusterError,
    ClusterUnreachable,
    ConfigError,
    NoSuchTopology,
    NotAllowed,
    UnsupportedOperation,
)
from trident.extras import needs_package
from trident.roles import Closes
from trident.servers.server_thread import bearer

if TYPE_CHECKING:
    import httpx

Page = dict[str, Any]
"""Plain data, ready for JSON; names as Storm UI has them where it has them (`/api/v1/topology/<id>` …)."""

Action = str  # `activate`, `deactivate`, `kill`, `rebalance`; `dead-letters` puts some back, or discards them
LogOf = Literal["driver", "output"]
"""The log of a driver, or what its processes print, those of its workers on that machine too: only a cluster keeps that."""


_OF_ROW = (
    "id", "name", "kind", "status", "uptime", "uptimeSeconds", "workersTotal", "executorsTotal", "tasksTotal", "rates", "lags",
    "health", "verdict",
)  # fmt: skip
_TIMEOUT_S = 3.0
_ACTION_S = 30.0  # and what the action itself waits for
_PASSED_ON = (*ClusterError.__subclasses__(), ClusterError, KeyError, ValueError, ConfigError, UnsupportedOperation)
_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in _PASSED_ON}


class TopologyPages(Protocol):
    """The pages of one topology, made in the process that runs it. Any thread may ask.

    Windows are in seconds: 600, 10800, 86400, or 0 for all time. What does not exist (a component, a state) is a `KeyError`
    whose text says what there is.
    """

    def topology(self, window_s: int = 0) -> Page:
        """Return the whole: figures by window, components, states, sources with lag, errors, what Storm UI shows."""

    def view(self, name: str, window_s: int = 0) -> Page:
        """Return another page, by its name in the REST interface.

        `component/NAME`: an operation or state of Trident, a spout, a bolt. `visualization`: nodes and edges with rates.
        `series`: throughput, latency, lag and failures over time as columns; without any while no driver answers.
        `batches`: the last ones, oldest first, with the seconds of their phases. `dead-letters`: the newest of those that wait.
        """

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Return `{"state", "key", "value", "txid"}` of one key."""

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        """Do something to the topology. Raises `TridentError` if it cannot be done."""


class ClusterPages(Protocol):
    """The pages of a cluster, or of one topology that runs alone. Any thread may ask.

    A topology that does not exist is `NoSuchTopology`. `trident.errors` has what else is raised.
    """

    read_only: bool

    def cluster_summary(self) -> Page:
        """Return how many supervisors, slots, executors and topologies there are, and the version."""

    def nimbus_summary(self) -> Page:
        """Return every Nimbus and which of them leads."""
        return {"nimbuses": []}

    def supervisor_summary(self) -> Page:
        """Return every supervisor with its slots and uptime."""
        return {"supervisors": []}

    def topology_summary(self) -> Page:
        """Return every topology, one entry each."""

    def of_topology(self, topology_id: str) -> TopologyPages:
        """Return the pages of a topology, by its id or its name."""

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        """Return `{"text", "offset", "next"}`: the log of its driver from `offset` on, 64 KiB at most, or its last 64 KiB."""


class OneTopology(ClusterPages):
    """`ClusterPages` of a single topology; `log`: returns its log from an offset on."""

    read_only = False

    def __init__(self, topology_id: str, pages: TopologyPages, log: Callable[[int | None], Page] | None = None) -> None:
        self.topology_id, self._pages, self._log = topology_id, pages, log

    def cluster_summary(self) -> Page:
        row = self._row()
        return {
            "stormVersion": __version__,
            "oneTopology": self.topology_id,
            "topologies": 1,
            **dict.fromkeys(("supervisors", "slotsTotal", "slotsUsed", "slotsFree"), 0),
            **{name: row[name] for name in ("executorsTotal", "tasksTotal")},
        }

    def topology_summary(self) -> Page:
        return {"topologies": [self._row()]}

    def of_topology(self, topology_id: str) -> TopologyPages:
        self._check(topology_id)
        return self._pages

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        self._check(topology_id)
        return {"text": "", "offset": 0, "next": 0} if self._log is None or of != "driver" else self._log(offset)

    def _row(self) -> Page:
        return {**topology_row(self._pages.topology(600)), "id": self.topology_id}

    def _check(self, topology_id: str) -> None:
        if topology_id != self.topology_id:
            raise NoSuchTopology(f"there is no topology {topology_id!r} here, only {self.topology_id!r}")


def topology_row(page: Mapping[str, Any]) -> Page:
    """Return the entry of `/api/v1/topology/summary` for a topology's page, which may come from a heartbeat."""
    return {name: page.get(name) for name in _OF_ROW}


def key_texts(key: Sequence[Any]) -> list[str | None]:
    return [each if each is None or isinstance(each, str) else json.dumps(each, default=str) for each in key]


class HttpTopologyPages(Closes):
    """`TopologyPages` that asks a server of this package; `ClusterUnreachable` if it does not answer in time."""

    def __init__(self, url: str, token: str | None, topology_id: str, timeout_s: float = _TIMEOUT_S) -> None:
        self.url, self._timeout_s = url, timeout_s
        self._path = f"/api/v1/topology/{quote(topology_id, safe='')}"
        self._client = client_of(url, token, timeout_s)

    def topology(self, window_s: int = 0) -> Page:
        return self._get("", {"window": window_s})

    def view(self, name: str, window_s: int = 0) -> Page:
        return self._get("".join(f"/{quote(each, safe='')}" for each in name.split("/", 1)), {"window": window_s})

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        texts = key_texts(key)
        if None in texts:
            if len(texts) == 1:
                raise ValueError("the key None has no text to ask another process for; read it with `open_state`")
            texts = [json.dumps(texts)]
        return self._get("/lookup", {"state": state, "key": texts})

    def log(self, offset: int | None = None, of: LogOf = "driver") -> Page:
        return self._get("/log", {"of": of} if offset is None else {"of": of, "offset": offset})

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        wait_s = parameters.get("wait_s")
        path = f"/{action}" if wait_s is None else f"/{action}/{wait_s}"
        names = {"workers": "numWorkers", "executors": "executors"}
        options = {names[name]: value for name, value in parameters.items() if name in names}
        return self._ask("POST", path, json={"rebalanceOptions": options}, timeout=_ACTION_S + 2 * (wait_s or 0.0))

    def close(self) -> None:
        self._client.close()

    def _get(self, path: str, parameters: Mapping[str, Any]) -> Page:
        return self._ask("GET", path, params=dict(parameters), timeout=self._timeout_s)

    def _ask(self, method: str, path: str, **request: Any) -> Page:
        import httpx

        try:
            answer = self._client.request(method, self._path + path, **request)
        except httpx.HTTPError as error:
            late = f"it did not answer within {self._timeout_s:g} s"
            reason = late if isinstance(error, httpx.TimeoutException) else error
            raise ClusterUnreachable(f"the pages at {self.url} cannot be read: {reason}") from error
        if answer.is_success:
            with suppress(ValueError, TypeError):
                return dict(answer.json())
        raise error_of(self.url, answer)


def client_of(
    url: str, token: str | None, timeout_s: float, what: str = "asking another process", extra: str = "ui"
) -> httpx.Client:
    with needs_package(what, extra):
        import httpx
    headers = {} if token is None else {b"Authorization": bearer(token)}
    # Only https needs the system's certificates, and reading them takes as long as the rest of a command.
    verify = True if url.startswith("https") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Without the environment: the user's proxy is not for processes of the cluster.
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False, verify=verify)


def error_of(url: str, answer: httpx.Response) -> Exception:
    status = answer.status_code
    try:
        problem = dict(answer.json())
    except (ValueError, TypeError):
        return ClusterError(f"{url} does not answer as a server of Trident's pages does (status {status})")
    message = str(problem.get("errorMessage", f"{url} answered {status}"))
    of_status = {401: NotAllowed, 403: NotAllowed, 503: ClusterUnreachable}.get(status, ClusterError)
    return _KINDS.get(str(problem.get("kind")), of_status)(message)
