"""What the tests of the page share: topologies that run, servers of their pages, and requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.drpc_functions import LINES
from tests.harness.topology_runs import start
from tests.storm.components import word_count as bolts_word_count
from trident import TridentTopology
from trident.operations import Count, Split
from trident.runtime.running import RunningTopology
from trident.storm import LocalCluster
from trident.ui.cluster_pages import OneTopology
from trident.ui.log_pages import RecentLog
from trident.ui.running_pages import StormPages, TridentPages
from trident.ui.ui_server import UIServer

TOKEN = "a token of tests"
NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


def counting(cycle: bool = False, spout: Any = None) -> TridentTopology:
    """The tutorial's word count."""
    topology = TridentTopology("word-count")
    (
        topology.new_stream("lines", spout or FixedBatchSpout("line: string", 2, *LINES, cycle=cycle))
        .each("line", Split(), "word")
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), Count(), "count")
    )
    return topology


@contextmanager
def trident_server(
    topology: TridentTopology | None = None, token: str | None = TOKEN, **options: Any
) -> Iterator[tuple[RunningTopology, UIServer]]:
    """A word count in this process, and its page."""
    conf = options.pop("conf", {})
    running = start(topology or counting(), "in_process", **conf)
    try:
        with RecentLog() as log:
            pages = OneTopology(running.name, TridentPages(running), log.page)
            with UIServer(pages, port=0, token=token, **options) as server:
                yield running, server
    finally:
        running.stop()


@contextmanager
def storm_server(
    topology: Any = None, name: str = "bolts", token: str | None = TOKEN, **conf: Any
) -> Iterator[tuple[Any, UIServer]]:
    """A word count of spouts and bolts in this process, and its page."""
    declared = topology or bolts_word_count()
    with LocalCluster() as cluster:
        running = cluster.submit_topology(name, {**conf}, declared)
        pages = OneTopology(name, StormPages(running))
        with UIServer(pages, port=0, token=token) as server:
            yield running, server


def get(server: UIServer, path: str, **headers: str) -> Any:
    """Ask, and return what came; an error raises."""
    found = ask(server, "GET", path, **headers)
    found.raise_for_status()
    return found.json()


def ask(server: UIServer, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """Ask with any headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, server.url + path, headers=named, content=None if body is None else json.dumps(body))


def allowed(token: str = TOKEN) -> dict[str, str]:
    """The header with the token."""
    return {"Authorization": f"Bearer {token}"}


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it does not hold in time"
        threading.Event().wait(0.02)
