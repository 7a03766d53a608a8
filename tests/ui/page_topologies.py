"""Topologies that are worth looking at: several streams, states and failures."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import chain
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count, Function, Sum
from trident.storm import (
    BaseBasicBolt,
    BaseRichSpout,
    BasicOutputCollector,
    SpoutOutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from trident.tuples import TridentTuple

_CITIES = ("Bergen", "Lyon", "Porto", "Graz", "Turku")


class Price(Function):
    """The price of an order; one article has none, and fails."""

    def execute(self, tuple: TridentTuple, collector: Any) -> None:
        if tuple[0] == "unknown":
            raise ValueError("article 'unknown' has no price")
        collector.emit([len(tuple[0]) * 7])


def orders() -> TridentTopology:
    """Orders and returns, counted and summed by city."""
    topology = TridentTopology("orders")
    rows = [[[f"article-{row}", _CITIES[(row + batch) % 5]] for row in range(40)] for batch in range(8)]
    rows[3][7] = ["unknown", "Lyon"]
    sold = topology.new_stream(
        "orders", FixedBatchSpout(["article: string", "city: string"], 40, *chain.from_iterable(rows), cycle=True)
    )
    back = topology.new_stream("returns", FixedBatchSpout(["article: string", "city: string"], 5, *rows[0], cycle=True))
    priced = sold.each("article", Price(), "price: bigint")
    priced.group_by("city").persistent_aggregate(MemoryMapState(), "price", Sum(), "revenue", state_name="revenue")
    topology.merge(sold, back).group_by("article").persistent_aggregate(
        MemoryMapState(), Count(), "seen", state_name="seen"
    )
    back.aggregate(Count(), "returned").persistent_aggregate(
        MemoryMapState(), "returned", Sum(), "all", state_name="returned"
    )
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

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        pass

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
