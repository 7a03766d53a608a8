"""The picture of a topology in a real browser: every text is there as a whole, inside its box."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.ui.chromium import opened
from tests.ui.large_cluster import LargeCluster
from trident.ui.cluster_pages import Page
from trident.ui.ui_server import UIServer

pytestmark = pytest.mark.slow

LONG = "EnrichOrdersWithCustomersOfTheLastThirtyDaysAndTheirAddresses"
LABELS = [
    "WWWWWWWWWWWWWWWWWWWWWWWW",
    LONG,
    "orders by country, city and postal code",
    "short",
    "Straßenüberführung" * 4,
]
DETAIL = "MapState of a class with a rather long name in PostgresState, not exact"
TITLE = "stage 1, in the workers: commit, which is a title of more than the width of a box"
GROUPING = "enriched-orders: fields (customer_id, region, country)"


class LongNames(LargeCluster):
    """`ClusterPages` of one topology whose steps, states, stages and groupings have long names."""

    def of_topology(self, topology_id: str) -> Any:
        found = super().of_topology(topology_id)
        found.visualization = lambda window_s=0: drawn()  # type: ignore[method-assign]
        return found


def drawn() -> Page:
    nodes = [
        {"id": label, "label": label, "detail": DETAIL, "kind": "state" if number > 2 else "step",
         "guarantee": "exact", "stage": 1 if number < 3 else None, "capacity": 0.5, "latencyMs": 12.5, "executors": 12}
        for number, label in enumerate(LABELS)
    ]  # fmt: skip
    edges = [
        {"source": LABELS[0], "target": target, "stream": "default", "grouping": GROUPING, "tuplesPerSecond": 1.0}
        for target in LABELS[1:]
    ]
    return {"stages": [{"number": 1, "title": TITLE}], "nodes": nodes, "edges": edges}


INSIDE = """node => {
  const box = node.querySelector('.body').getBoundingClientRect();
  return [...node.querySelectorAll('tspan')].map(each => each.getBoundingClientRect()).every(each =>
    each.left >= box.left && each.right <= box.right && each.top >= box.top && each.bottom <= box.bottom);
}"""
APART = """nodes => nodes.map(node => node.querySelector('.body').getBoundingClientRect()).every((one, at, all) =>
  all.slice(at + 1).every(other => one.right < other.left || other.right < one.left
    || one.bottom < other.top || other.bottom < one.top))"""


def test_no_text_of_the_picture_is_cut(browser: Browser) -> None:
    with UIServer(LongNames(1, 1), port=0) as server, opened(browser, f"{server.url}/#/topology/topology-0") as page:
        page.wait_for_selector("svg.graph a.node")
        assert page.locator("svg.graph .name").all_text_contents() == LABELS
        assert page.locator("svg.graph .k-state .more").all_text_contents() == [f"{DETAIL}, exact"] * 2
        assert page.locator("svg.graph .band text").all_text_contents() == [TITLE]
        assert page.locator("svg.graph .grouping").all_text_contents() == [GROUPING] * 4
        nodes = page.locator("svg.graph a.node")
        assert all(each.evaluate(INSIDE) for each in nodes.all())
        assert nodes.evaluate_all(APART)
        top = nodes.evaluate_all("all => Math.min(...all.map(each => each.getBoundingClientRect().top))")
        assert page.locator("svg.graph .band text").evaluate("text => text.getBoundingClientRect().bottom") < top
