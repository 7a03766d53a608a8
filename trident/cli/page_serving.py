"""The page of `trident run` and `trident ui`: one topology, or a cluster."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from trident.cli.console import ending_signals, problems, say
from trident.cluster_errors import NoLeader
from trident.http.strangers import is_loopback
from trident.ui.cluster_pages import Action, Page, TopologyPages
from trident.ui.running_pages import StormPages, TridentPages
from trident.ui.topology_page import TopologyPage
from trident.ui.ui_server import UIServer

if TYPE_CHECKING:
    from trident.runtime.running import RunningTopology
    from trident.storm.spark.running_storm import RunningStormTopology

_LOOK_S = 0.2


class RunPage(TopologyPage):
    """The page of `trident run`: it says where it is, and which token its actions need, if that was made here."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._made = secrets.token_hex(16) if token is None else None
        super().__init__(host, port, token or self._made)

    def of_trident(self, running: RunningTopology) -> AbstractContextManager[None]:
        """Serve the page of a running topology while the context lasts."""
        return self._of(running.name, TridentPages(running))

    def of_storm(self, running: RunningStormTopology) -> AbstractContextManager[None]:
        """Serve the page of a running topology of spouts and bolts while the context lasts."""
        return self._of(running.name, StormPages(running))

    @contextmanager
    def _of(self, name: str, pages: TopologyPages) -> Iterator[None]:
        with _logged_for_page():
            self.serve(name, pages)
            _say_where(name, self.host, self.url)
            if self._made is not None:
                say(f"{name}: actions on the page need the token {self._made}")
            yield


def _say_where(name: str, host: str, url: str) -> None:
    say(f"{name}: page at {url}")
    if not is_loopback(host):
        text = f"anyone who reaches {url} may read the page, values of states included; only actions need the token"
        say(f"warning: {text}", "yellow", problems())


def serve_cluster(address: str | None, token: str | None, host: str, port: int, as_json: bool) -> int:
    """Serve the page of a cluster until a signal; returns the exit code."""
    from trident.cluster.client.cluster_token import own_token
    from trident.cluster.pages import ClusterOverview
    from trident.cluster.state.cluster_address import default_address, folder_of, is_embedded, open_cluster_state
    from trident.cluster.state.storm_cluster_state import StormClusterState

    address = address or default_address()
    secret = own_token(token, folder_of(address) if is_embedded(address) else None)
    cluster = StormClusterState(open_cluster_state(address))
    try:
        pages = ClusterOverview(cluster, secret, _through_leader(cluster, secret))
        with (
            ending_signals("stopping", "ended at once", as_json) as signals,
            UIServer(pages, host, port, secret) as server,
        ):
            _say_where(f"cluster {address}", host, server.url)
            waiting = threading.Event()
            while signals.received is None:
                waiting.wait(_LOOK_S)
            return 128 + signals.received
    finally:
        cluster.disconnect()


def _through_leader(cluster: Any, token: str) -> Callable[[str, Action, Mapping[str, Any]], Page]:
    from trident.cluster.nimbus.leadership import leader_of
    from trident.ui.http_pages import HttpTopologyPages

    def act(storm_id: str, action: Action, parameters: Mapping[str, Any]) -> Page:
        leader = leader_of(cluster.state)
        if leader is None:
            raise NoLeader("no Nimbus leads the cluster just now; try again")
        with HttpTopologyPages(leader["url"], token, storm_id) as pages:
            return pages.act(action, parameters)

    return act


@contextmanager
def _logged_for_page() -> Iterator[None]:
    """Log from INFO on, for the page; what goes to standard error stays as it is."""
    root, ours = logging.getLogger(), logging.getLogger("trident")
    before = [(handler, handler.level) for handler in root.handlers]
    quiet, level = ours.getEffectiveLevel() > logging.INFO, ours.level
    if quiet:
        events = logging.getLogger("trident.events")
        for handler, at in before:
            handler.addFilter(_Only(max(at, root.level), () if events.level == logging.NOTSET else (events.name,)))
        ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(level)
        for handler, _ in before:
            for each in [filter_ for filter_ in handler.filters if isinstance(filter_, _Only)]:
                handler.removeFilter(each)


class _Only(logging.Filter):
    """Accepts records from a level on, and all of some loggers."""

    def __init__(self, level: int, always: tuple[str, ...]) -> None:
        super().__init__()
        self._level, self._always = level, always

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is accepted."""
        return record.levelno >= self._level or record.name in self._always
