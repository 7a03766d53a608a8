"""What the tests of the page share: topologies that run, servers of their pages, and requests."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import httpx

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.drpc_functions import LINES
from tests.harness.topology_runs import start
from tests.storm.random_trees import word_count as bolts_word_count
from trident import TridentTopology
from trident.operations import Count, Split, Sum
from trident.run.running import RunningTopology
from trident.storm import (
    BaseBasicBolt,
    BaseRichSpout,
    BasicOutputCollector,
    LocalCluster,
    SpoutOutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from trident.web.cluster_pages import OneTopology
from trident.web.log_pages import RecentLog
from trident.web.rest import UIServer
from trident.web.running_pages import StormPages, TridentPages

TOKEN = "a token of tests"

NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


def counting(cycle: bool = False, spout: Any = None) -> TridentTopology:
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
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, server.url + path, headers=named, content=None if body is None else json.dumps(body))


def allowed(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


_CITIES = ("Bergen", "Lyon", "Porto", "Graz", "Turku")


def price(article: str) -> int:
    """Return the price of an order; one article has none, and fails."""
    if article == "unknown":
        raise ValueError("article 'unknown' has no price")
    return len(article) * 7


def orders() -> TridentTopology:
    """Orders and returns, counted and summed by city."""
    topology = TridentTopology("orders")
    rows = [[[f"article-{row}", _CITIES[(row + batch) % 5]] for row in range(40)] for batch in range(8)]
    rows[3][7] = ["unknown", "Lyon"]
    spout = FixedBatchSpout("article: string, city: string", 40, *chain.from_iterable(rows), cycle=True)
    sold = topology.new_stream("orders", spout)
    back = topology.new_stream("returns", FixedBatchSpout(["article: string", "city: string"], 5, *rows[0], cycle=True))
    priced = sold.each("article", price, "price: bigint")
    priced.group_by("city").persistent_aggregate(MemoryMapState(), "price", Sum(), "revenue", state_name="revenue")
    seen = topology.merge(sold, back).group_by("article")
    seen.persistent_aggregate(MemoryMapState(), Count(), "seen", state_name="seen")
    returned = back.aggregate(Count(), "returned")
    returned.persistent_aggregate(MemoryMapState(), "returned", Sum(), "all", state_name="returned")
    return topology


class Clicks(BaseRichSpout):
    """Emits a click about every millisecond."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("url: string")

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.number = collector, 0
        self.pause = threading.Event()

    def next_tuple(self) -> None:
        self.number += 1
        self.collector.emit([f"/page/{self.number % 17}"], self.number)
        self.pause.wait(0.001)


class Parse(BaseBasicBolt):
    """Splits a URL; some take longer."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("page: string")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([tuple["url"].rpartition("/")[2]])


class Keep(BaseBasicBolt):
    """Reads, and emits nothing."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        pass


def busy_bolts() -> StormTopology:
    """Clicks, parsed and counted in several ways."""
    builder = TopologyBuilder()
    builder.set_spout("clicks", Clicks(), 2)
    builder.set_bolt("parse", Parse(), 3).shuffle_grouping("clicks")
    builder.set_bolt("by-page", Keep(), 2).fields_grouping("parse", "page")
    builder.set_bolt("alarms", Keep()).global_grouping("parse")
    builder.set_bolt("archive", Keep()).shuffle_grouping("clicks")
    builder.set_bolt("dashboard", Keep()).all_grouping("parse").shuffle_grouping("clicks")
    return builder.create_topology()
