"""In a real browser: what an operator looks for at night, and the picture of a topology."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.cluster_states import assigned, submitted
from tests.harness.commands import until
from tests.web.chromium import ask_now, expect, opened, tile
from tests.web.large_cluster import LargeCluster
from tests.web.page_servers import NASTY, TOKEN, get, orders, storm_server, trident_server
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.cluster.pages import ClusterOverview
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import SupervisorInfo, WantedStatus
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.operations import BaseFunction, Count, Split
from trident.run.running import RunningTopology
from trident.web.cluster_pages import Page
from trident.web.rest import UIServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

CONF: dict[str, Any] = {
    "batch_emit_interval_ms": 20,
    "on_poison": "dead_letter",
    "spark_conf": {"spark.ssl.keyPassword": "hush", "spark.hadoop.url": "s3://me:hush@bucket/x"},
}
T = "/api/v1/topology"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[RunningTopology, UIServer]]:
    with trident_server(orders(), conf=CONF) as found:
        until(lambda: found[0].txid > 20 and found[0].status["failures"] > 0)
        yield found


@pytest.fixture(scope="module")
def url(served: tuple[RunningTopology, UIServer]) -> str:
    return served[1].url


@pytest.mark.long
def test_settings_are_shown_without_secrets_those_that_were_set_first(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        settings = page.get_by_role("region", name="Settings").first
        settings.get_by_role("button", name="Show").click()
        rows = settings.locator("tbody tr")
        expect(rows.first).to_contain_text("batch_emit_interval_ms")
        expect(rows.first).to_contain_text("argument")
        expect(rows.last).to_contain_text("default")
        expect(settings.get_by_role("row", name="spark_conf")).to_contain_text("s3://***@bucket/x")
        assert "hush" not in page.content()


def test_secrets_are_in_no_page(served: tuple[RunningTopology, UIServer]) -> None:
    _, server = served
    page = get(server, f"{T}/orders")
    assert page["configuration"]["spark_conf"]["spark.ssl.keyPassword"] == "***"
    assert {*CONF} <= {*page["configurationSet"]} < {*page["configuration"]}
    assert "hush" not in str(page)


@pytest.mark.long
def test_a_dead_letter_is_discarded_with_its_reason(browser: Browser, served: tuple[RunningTopology, UIServer]) -> None:
    running, server = served
    until(lambda: running.status["deadLetters"] > 0)
    with opened(browser, server.url) as page:
        letters = page.get_by_role("region", name="Dead letters").first
        letters.get_by_role("checkbox").first.check()
        letters.get_by_label("Reason").fill("a test")
        letters.get_by_label("Token").fill(TOKEN)
        letters.get_by_role("button", name="Discard").click()
        expect(letters.get_by_role("status").last).to_have_text("1 to be discarded.")
    until(lambda: bool(running.log_state.discarded))
    assert running.log_state.discarded[0][0] == "a test"


@pytest.mark.long
def test_figures_over_time_are_there_when_the_page_is_opened(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        lines = page.get_by_role("region", name="Over time")
        expect(lines.locator("figure")).to_have_count(5)
        throughput = lines.get_by_role("img", name=re.compile("^Throughput: now .* at most .* at least"))
        expect(throughput.locator("polyline")).to_have_count(1)
        expect(lines.get_by_role("img", name="Lag: not known")).to_be_attached()
        expect(lines.get_by_role("img", name=re.compile("^Failed attempts: now \\d+, at most [1-9]"))).to_be_attached()


def test_figures_over_time_agree_with_the_topology(served: tuple[RunningTopology, UIServer]) -> None:
    running, server = served
    before = running.status["tuples"]
    for window in ("600", "10800", "86400", "0"):
        series = get(server, f"{T}/orders/series?window={window}")
        assert series["spanSeconds"] == 5  # it is young
        counted = sum(series["tuplesPerSecond"]) * 5
        assert counted > 0
        if len(series["at"]) > 1:  # but for the last span, which has lasted less
            assert sum(series["tuplesPerSecond"][:-1]) * 5 <= running.status["tuples"]
        assert all(each is None or each > 0 for each in series["latencyMs"])
        assert series["at"] == sorted(series["at"])
        assert abs(series["at"][-1] / 1000 - time.time()) < 60
    assert running.status["tuples"] >= before


@pytest.mark.long
def test_bolts_have_figures_over_time_too(browser: Browser) -> None:
    with storm_server() as (running, server), opened(browser, server.url) as page:
        until(lambda: running.status.statistics.over().figures.acked > 0)
        until(lambda: sum(get(server, f"{T}/bolts/series?window=600")["tuplesPerSecond"]) > 0)
        ask_now(page)
        lines = page.get_by_role("region", name="Over time")
        expect(lines.locator("figure")).to_have_count(4)
        expect(lines).to_contain_text("A message takes")


@pytest.mark.long
def test_failures_say_of_how_many(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        expect(tile(page, "Failed attempts")).to_have_text(re.compile("^[1-9]"))
        note = page.locator(".tile", has=page.get_by_text("Failed attempts", exact=True)).locator(".note")
        expect(note).to_have_text(re.compile(r"^in 10 min: [\d.]+ % of [\d,]+(, (rising|falling|steady))?$"))
        said = re.compile(r"within ten minutes \d+ of [\d,]+: [\d.]+%")
        expect(page.get_by_label("How it does")).to_contain_text(said)


class Fails(BaseFunction):
    """Raises on each third word."""

    output_types = ("string",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if tuple[0] == "cow":
            raise ValueError(f"no such animal at redis://me:hush@h/0: {NASTY}")
        collector.emit((tuple[0],))


@pytest.mark.long
def test_what_failed_is_the_first_row_with_its_error(browser: Browser) -> None:
    topology = TridentTopology("animals")
    words = topology.new_stream("words", FixedBatchSpout("word", 1, ["the"], ["cow"], ["moon"], cycle=True))
    words = words.each("word", Split(), "each").each("each", Fails(), "animal")
    words.group_by("animal").persistent_aggregate(MemoryMapState(), Count(), "count")
    with trident_server(topology, conf=CONF) as (running, server), opened(browser, server.url) as page:
        until(lambda: running.status["failures"] > 0)
        rows = page.get_by_role("region", name="Operations").first.locator("tbody tr")
        expect(rows.first).to_contain_text("Fails")
        expect(rows.first).to_contain_text("no such animal at redis://***@h/0: <script>")
        expect(rows.nth(1)).to_contain_text("Split")
        page.locator("details.error summary").first.click()
        expect(page.locator("details.error pre").first).to_contain_text("no such animal at redis://***@h/0")
        assert "hush" not in page.content()
        assert "hush" not in str(get(server, f"{T}/animals"))


@pytest.mark.long
def test_each_distinct_window_is_shown_once_also_of_an_older_topology(browser: Browser, url: str) -> None:
    with opened(browser, f"{url}/#/topology/orders/component/orders%2Fprice") as page:
        expect(page.get_by_role("region", name="By window").first.locator("tbody tr")).to_have_count(1)
    with opened(browser, url) as page:
        rows = page.get_by_role("region", name="By window").first.locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("All time")
        shown = page.evaluate(
            """async () => { const { distinct } = await import('./static/format.js');
            return distinct([600, 10800, 86400, ':all-time'].map(window => ({ window: String(window),
                windowSeconds: window === 600 ? 610 : 7000 }))).map(each => each.window); }"""
        )
        assert shown == ["600", ":all-time"]


@pytest.mark.long
def test_the_log_is_searched_by_level_and_text_and_saved(browser: Browser, url: str) -> None:
    logger = logging.getLogger("trident.tests.night")
    logger.warning("first %s", NASTY)
    logger.error("second: redis://me:hush@cache/0 is away")
    with opened(browser, f"{url}/#/topology/orders/log/driver") as page:
        log = page.get_by_role("log")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log of orders")
        expect(log).to_contain_text("second: redis://***@cache/0 is away")
        expect(log.locator("span.bad", has_text="second")).to_be_attached()
        page.get_by_label("From").select_option("WARNING")
        expect(log).to_contain_text(f"first {NASTY}")
        page.get_by_label("Search").fill("FIRST <script>")
        page.keyboard.press("Enter")
        expect(log).not_to_contain_text("second")
        expect(log).to_contain_text(f"first {NASTY}")
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        page.get_by_label("Search").fill("no such text")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.get_by_text("Nothing of this in the last mebibyte")).to_be_visible()
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download").click()
        assert saved.value.suggested_filename == "orders.log"
        text = Path(saved.value.path()).read_text()
        assert NASTY in text
        assert "hush" not in text


@pytest.mark.long
def test_a_worker_leads_to_its_log(browser: Browser) -> None:
    with storm_server() as (_, server), opened(browser, server.url) as page:
        page.get_by_role("region", name="Workers").first.get_by_role("link", name="log").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Log of bolts")
        expect(page.get_by_role("log")).to_be_visible()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StormClusterState]:
    made = StormClusterState(open_cluster_state(tmp_path))
    made.supervisor_heartbeat("vm-1", SupervisorInfo(time.time(), "vm", "vm-1", (), (6700,), {}, 60.0))
    yield made
    made.disconnect()


@pytest.mark.long
def test_the_overview_begins_with_what_failed_and_what_waits(browser: Browser, cluster: StormClusterState) -> None:
    assigned(cluster, submitted(cluster, "starts"), "vm-1", host="vm")
    submitted(cluster, "waits")
    submitted(cluster, "failed", WantedStatus("failed", 0.0, reason=f"no such table {NASTY}"))
    pages = ClusterOverview(cluster, TOKEN, lambda *asked: {})
    with UIServer(pages, port=0, token=TOKEN) as server, opened(browser, server.url) as page:
        rows = page.get_by_role("region", name="Topologies").first.locator("tbody tr")
        expect(rows.locator("th")).to_have_text(["failed", "waits", "starts"])
        expect(rows.nth(0)).to_contain_text(f"marked as failed: no such table {NASTY}")
        expect(rows.nth(1)).to_contain_text("It waits: no")
        expect(rows.nth(2)).to_contain_text("vm:6700")
        machine = page.get_by_role("region", name="Supervisors").first.locator("tbody tr")
        expect(machine.locator("th")).to_have_text("vm")
        expect(machine.get_by_role("link", name="starts")).to_be_visible()
        assert "vm-1" not in page.locator("main").inner_text()
        rows.nth(0).get_by_role("link", name="failed").click()
        expect(page.get_by_label("How it does")).to_contain_text("no such table")
        assert page.locator(".problem").count() == 0  # it is said once
        expect(page.get_by_text("There is no picture")).to_be_visible()
        assert page.get_by_role("group", name="Actions").get_by_role("button").all_inner_texts() == ["Activate", "Kill"]
        with page.expect_response("**/api/v1/topology/failed*"):  # `opened` fails if it asks for more, which is refused
            ask_now(page)
        settings = page.get_by_role("region", name="Settings").first
        settings.get_by_role("button", name="Show").click()
        expect(settings.get_by_role("row", name="spark.ssl.keyPassword")).to_contain_text("***")


LONG = "EnrichOrdersWithCustomersOfTheLastThirtyDaysAndTheirAddresses"
LABELS = [
    "WWWWWWWWWWWWWWWWWWWWWWWW", LONG, "orders by country, city and postal code", "short", "Straßenüberführung" * 4,
]  # fmt: skip
DETAIL = "MapState of a class with a rather long name in PostgresState, not exact"
TITLE = "stage 1, in the workers: commit, which is a title of more than the width of a box"
GROUPING = "enriched-orders: fields (customer_id, region, country)"


class LongNames(LargeCluster):
    """`ClusterPages` of one topology whose steps, states, stages and groupings have long names."""

    def of_topology(self, topology_id: str) -> Any:
        found = super().of_topology(topology_id)
        found._picture = lambda: drawn()  # type: ignore[method-assign]
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
