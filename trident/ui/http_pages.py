"""`HttpTopologyPages`: the pages of a topology that another process serves, asked over HTTP."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trident.cluster_errors import ClusterError, ClusterUnreachable, NotAllowed
from trident.errors import ConfigError, UnsupportedOperation
from trident.extras import needs_package
from trident.roles import Closes
from trident.ui.cluster_pages import Action, LogOf, Page

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 3.0
_ACTION_S = 30.0  # and what the action itself waits for
_OF_CLUSTERS: tuple[type[Exception], ...] = (ClusterError, *ClusterError.__subclasses__())
_PASSED_ON = (*_OF_CLUSTERS, KeyError, ValueError, ConfigError, UnsupportedOperation)
_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in _PASSED_ON}


class HttpTopologyPages(Closes):
    """`TopologyPages` that asks a server of this package. A context manager: leaving it closes the connections.

    `url`: of the server, as `UIServer.url`.
    `token`: what it wants; None if it wants none.
    `topology_id`: which topology, by its id or name there.
    `timeout_s`: how long an answer may take; an action may take longer.
    Raises `ClusterUnreachable`: by each page: the server does not answer, or not in time.
    """

    def __init__(self, url: str, token: str | None, topology_id: str, timeout_s: float = _TIMEOUT_S) -> None:
        self.url, self._timeout_s = url, timeout_s
        self._path = f"/api/v1/topology/{quote(topology_id, safe='')}"
        self._client = client_of(url, token, timeout_s)

    def topology(self, window_s: int = 0) -> Page:
        return self._get("", {"window": window_s})

    def component(self, component: str, window_s: int = 0) -> Page:
        return self._get(f"/component/{quote(component, safe='')}", {"window": window_s})

    def visualization(self, window_s: int = 0) -> Page:
        return self._get("/visualization", {"window": window_s})

    def series(self, window_s: int = 0) -> Page:
        return self._get("/series", {"window": window_s})

    def batches(self) -> Sequence[Page]:
        batches: Sequence[Page] = self._get("/batches", {})["batches"]
        return batches

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        texts = [each if isinstance(each, str) else json.dumps(each, default=str) for each in key]
        return self._get("/lookup", {"state": state, "key": texts})

    def dead_letters(self) -> Page:
        return self._get("/dead-letters", {})

    def log(self, offset: int | None = None, of: LogOf = "driver") -> Page:
        """Return the log, as `ClusterPages.log`."""
        return self._get("/log", {"of": of} if offset is None else {"of": of, "offset": offset})

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        wait_s = parameters.get("wait_s")
        path = f"/{action}" if wait_s is None else f"/{action}/{wait_s:g}"
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
            reason = (
                f"it did not answer within {self._timeout_s:g} s"
                if isinstance(error, httpx.TimeoutException)
                else error
            )
            raise ClusterUnreachable(f"the pages at {self.url} cannot be read: {reason}") from error
        try:
            read = answer.json()
        except ValueError as error:
            raise ClusterError(
                f"{self.url} does not answer as a server of these pages does (status {answer.status_code})"
            ) from error
        if answer.is_success and isinstance(read, dict):
            return read
        raise error_of(self.url, answer.status_code, read)


def client_of(
    url: str, token: str | None, timeout_s: float, what: str = "asking another process", extra: str = "ui"
) -> httpx.Client:
    """Return a client for processes of a cluster; `what` needs the packages of `extra`."""
    with needs_package(what, extra):
        import httpx
    headers = {} if token is None else {b"Authorization": f"Bearer {token}".encode()}
    # Only https needs the system's certificates, and reading them takes as long as the rest of a command.
    verify = True if url.startswith("https") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Without the environment: the user's proxy is not for processes of the cluster.
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False, verify=verify)


def error_of(url: str, status: int, read: Any) -> Exception:
    """Return the error that an answer tells, as the class that it was there."""
    problem = read if isinstance(read, dict) else {}
    message = str(problem.get("errorMessage", f"{url} answered {status}"))
    kind = _KINDS.get(str(problem.get("kind")))
    if kind is not None:
        return kind(message)
    if status in (401, 403):
        return NotAllowed(message)
    if status == 503:
        return ClusterUnreachable(message)
    return ClusterError(message)
