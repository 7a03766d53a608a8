"""HTTP to the Nimbus that leads: found through the cluster's state, asked again when it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trident import __version__, cluster_errors
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterError, ClusterUnreachable, NoLeader, NotAllowed
from trident.errors import ConfigError, TridentError
from trident.ui.http_pages import client_of

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 30.0
_PAUSE_S = 0.25
_ERRORS: dict[str, type[TridentError]] = {
    **{name: vars(cluster_errors)[name] for name in cluster_errors.__all__},
    "ConfigError": ConfigError,
}
_AGAIN = (ClusterUnreachable, NoLeader)


def leader_url(cluster: StormClusterState) -> str:
    """Return where the Nimbus that leads is.

    Raises `NoLeader`: none does.
    Raises `ClusterError`: it is of another release than this client.
    """
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


class NimbusHttp:
    """Asks Nimbus. A context manager: leaving it closes the connections.

    `patience_s`: for how long a request is tried again while no Nimbus answers: another one becomes the leader meanwhile.
    """

    def __init__(self, cluster: StormClusterState, token: str | None, patience_s: float) -> None:
        self._cluster, self._patience_s = cluster, patience_s
        self._has_token = token is not None
        self._client = client_of("", token, _TIMEOUT_S, "asking a cluster", "cluster")

    def ask(
        self,
        method: str,
        path: str,
        *,
        again: bool = True,
        content: Callable[[], Iterator[bytes]] | None = None,
        timeout_s: float = _TIMEOUT_S,
        **request: Any,
    ) -> httpx.Response:
        """Send a request and return its answer, which is a success.

        `again`: whether it may be sent again when it is not known whether it arrived: sent twice it does the same as once.
        Raises `ClusterUnreachable`, `NoLeader`: no Nimbus has answered for so long.
        Raises `TridentError`: what Nimbus said, as the class that it was there.
        """
        until = time.monotonic() + self._patience_s
        while True:
            try:
                if content is not None:
                    request["content"] = content()
                return self._sent(method, path, again, timeout_s, request)
            except _AGAIN as error:
                if time.monotonic() > until or isinstance(error, _Unknown):
                    raise
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _sent(
        self, method: str, path: str, again: bool, timeout_s: float, request: Mapping[str, Any]
    ) -> httpx.Response:
        import httpx

        url = leader_url(self._cluster)
        try:
            answer = self._client.request(method, url + path, timeout=timeout_s, **request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ClusterUnreachable(f"the Nimbus at {url} does not answer: {error}") from error
        except httpx.HTTPError as error:
            reason = f"within {timeout_s:g} s" if isinstance(error, httpx.TimeoutException) else str(error)
            kind = ClusterUnreachable if again else _Unknown
            text = f"the Nimbus at {url} did not answer: {reason}"
            raise kind(
                text if again else f"{text}. It is not known whether that was done; check with `trident show`"
            ) from error
        if answer.is_success:
            return answer
        raise self._error(url, answer)

    def _error(self, url: str, answer: httpx.Response) -> TridentError:
        try:
            problem = answer.json()
            message, kind = str(problem["errorMessage"]), str(problem.get("kind"))
        except (ValueError, KeyError, TypeError):
            return ClusterError(f"{url} does not answer as Nimbus does (status {answer.status_code})")
        if answer.status_code in (401, 403):
            hint = "" if self._has_token else "; give it with --token or the variable TRIDENT_TOKEN"
            return NotAllowed(f"{message}{hint}")
        if answer.status_code == 503:
            return ClusterUnreachable(message)
        return _ERRORS.get(kind, ClusterError)(message)


class _Unknown(ClusterUnreachable):
    """An answer was lost, to a request that must not be sent twice."""
