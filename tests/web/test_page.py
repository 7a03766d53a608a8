"""The page in a real browser, over topologies that run."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.storm.random_trees import Split
from tests.web.chromium import PHONE, ask_now, expect, opened, tile
from tests.web.large_cluster import CyclicTopology, LargeCluster
from tests.web.page_servers import NASTY, TOKEN, counting, orders, storm_server, trident_server
from trident import TridentTopology
from trident.operations import Sum
from trident.run.running import RunningTopology
from trident.storm import StormTopology, TopologyBuilder, Tuple
from trident.storm.testing import MockedSpout
from trident.web.cluster_pages import OneTopology
from trident.web.rest import UIServer
from trident.web.running_pages import TridentPages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

PACED: dict[str, Any] = {"batch_emit_interval_ms": 20}
DRAWN = "svg.graph a.node"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[RunningTopology, UIServer]]:
    """Orders: two sources, three states, tuples that fail."""
    with trident_server(orders(), conf={**PACED, "on_poison": "dead_letter"}) as found:
        until(lambda: found[0].txid > 20)
        yield found


@pytest.fixture(scope="module")
def orders_url(running: tuple[RunningTopology, UIServer]) -> str:
    return running[1].url


@pytest.fixture(scope="module")
def cluster() -> Iterator[UIServer]:
    with UIServer(LargeCluster(5, 40), port=0) as server:
        yield server


@pytest.mark.long
def test_links_lead_from_the_cluster_to_a_component_and_back(browser: Browser, cluster: UIServer) -> None:
    with opened(browser, cluster.url) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
        page.get_by_role("link", name="topology-3").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("topology-3")
        page.get_by_role("region", name="Bolts").get_by_role("link", name="component-7", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("component-7")
        expect(page).to_have_title("component-7 – Trident")
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text("topology-3")
        page.get_by_role("link", name="Trident").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", ["slot", "worker", "executor"]),
        ("/#/topology/topology-0", ["executor", "worker"]),
        ("/#/topology/topology-0/component/component-9", ["executor"]),
    ],
)
def test_words_spark_uses_too_are_explained(browser: Browser, cluster: UIServer, path: str, words: list[str]) -> None:
    with opened(browser, cluster.url + path) as page:
        expect(page.locator("main > .keys strong")).to_have_text(words)
        expect(page.locator("main > .keys span").first).to_have_text(re.compile(f"^{words[0]}: .{{30}}"))
        told = page.locator(".tile, th").filter(has_text=re.compile("slot|worker|executor", re.IGNORECASE))
        expect(told.first).to_be_visible()
        for each in told.all():
            expect(each).to_have_attribute("title", re.compile("^(slot|worker|executor): "))


def test_the_stages_of_a_picture_are_explained_below_it(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        expect(page.locator(".band text").first).to_contain_text("stage 1")
        drawn = page.get_by_role("region", name="Picture", exact=True)
        expect(drawn).to_contain_text("stage: the steps of a batch that")


@pytest.mark.long
def test_the_page_of_a_trident_topology_says_what_it_does(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("orders")
        expect(page.get_by_label("How it does")).to_contain_text("dead letters wait")
        expect(tile(page, "Throughput")).to_have_text(re.compile(r"^[\d.,]+ tuples/s$"))
        expect(tile(page, "A batch takes")).to_have_text(re.compile(r"^[\d.,]+ (µs|ms|s)$"))
        expect(page.locator(f"{DRAWN}.k-state", has_text="revenue")).to_be_visible()
        expect(page.locator(".edge .rate").first).to_have_text(re.compile(r"^[\d.,]+K?/s$"))
        states = page.get_by_role("region", name="States", exact=True)
        expect(states.get_by_role("row", name="seen")).to_contain_text("exact")
        expect(page.locator(".batch").nth(10)).to_be_attached()


@pytest.mark.long
def test_values_change_while_the_focus_the_text_and_the_place_stay(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        page.wait_for_selector(DRAWN)
        expect(page.locator(".batch").nth(10)).to_be_attached()
        key = page.locator("input[name=key]")
        key.fill("Ly")
        where = "input => input.getBoundingClientRect().top"
        place, before = key.evaluate(where), tile(page, "Committed").inner_text()
        assert page.evaluate("scrollY") > 0
        expect(tile(page, "Committed")).not_to_have_text(before)  # without being asked: it asks every two seconds
        assert key.evaluate("input => document.activeElement === input")
        page.keyboard.type("on")
        assert key.input_value() == "Lyon"
        assert abs(key.evaluate(where) - place) < 3


@pytest.mark.long
def test_a_key_is_looked_up(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url, refused=1) as page:
        page.locator("input[name=key]").fill("Lyon")
        page.keyboard.press("Enter")
        expect(page.locator("output")).to_have_text(re.compile(r"^Lyon = \d+ after batch [\d,]+$"))
        page.locator("input[name=key]").fill("nowhere")
        page.get_by_role("button", name="Look up").click()
        expect(page.locator("output")).to_contain_text("not there")
        page.locator(".lookup select").select_option("returned")
        page.get_by_role("button", name="Look up").click()
        expect(page.locator("output")).to_have_text(re.compile(r"^\d+ after batch"))


def test_a_total_beyond_the_numbers_of_a_browser_and_a_hostile_key_are_shown_whole(browser: Browser) -> None:
    topology = TridentTopology("large")
    rows = topology.new_stream("rows", FixedBatchSpout("k: string, n: bigint", 9, ["a", 2**53], ["a", 1], [NASTY, -7]))
    rows.group_by("k").persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    with trident_server(topology, conf={}) as (running, server):
        until(lambda: running.txid > 0)
        for key, shown in (("a", "9007199254740993"), (NASTY, "-7")):
            with opened(browser, server.url) as page:
                page.locator("input[name=key]").fill(key)
                page.keyboard.press("Enter")
                expect(page.locator("output")).to_have_text(f"{key} = {shown} after batch 1")
                assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0


@pytest.mark.long
def test_an_error_shows_its_stack_trace_and_stays_open(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        error = page.locator("details.error").first
        error.locator("summary").click()
        expect(error.locator("pre")).to_contain_text("Traceback (most recent call last)")
        expect(error.locator("pre")).to_contain_text("has no price")
        before = tile(page, "Committed").inner_text()
        ask_now(page)
        expect(tile(page, "Committed")).not_to_have_text(before)
        expect(error.locator("pre")).to_be_visible()


@pytest.mark.long
def test_the_log_comes_and_is_followed(browser: Browser) -> None:
    with trident_server(counting(cycle=True), conf=PACED) as (_, server), opened(browser, server.url) as page:
        page.get_by_role("region", name="Log").get_by_role("button").click()
        log = page.get_by_role("log")
        for number in range(200):
            logging.getLogger("trident.tests").warning("line %d of %s", number, NASTY)
        expect(log).to_contain_text(f"line 199 of {NASTY}")
        until(lambda: log.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight < 24"))


@pytest.mark.long
def test_a_batch_can_be_chosen_and_the_last_followed_again(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        slider = page.get_by_label("Choose a batch")
        slider.focus()
        expect(page.locator(".chosenbatch")).to_contain_text("(the last)")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".chosenbatch")).to_contain_text("follow the last")
        page.get_by_role("button", name="follow the last").click()
        expect(page.locator(".chosenbatch")).to_contain_text("(the last)")


def test_an_action_needs_a_confirmation_and_the_token(browser: Browser) -> None:
    with storm_server() as (running, server), opened(browser, server.url, refused=1) as page:
        page.get_by_role("button", name="Deactivate").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Deactivate bolts?")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert running.status.active

        page.get_by_role("button", name="Deactivate").click()
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Deactivate").click()
        expect(dialog.get_by_role("alert")).to_have_text("the token is wrong")
        assert running.status.active
        dialog.get_by_label("Token").fill(TOKEN)
        dialog.get_by_role("button", name="Deactivate").click()
        expect(page.locator(".sub .status")).to_have_text("inactive")
        assert not running.status.active

        page.get_by_role("button", name="Activate").click()  # the token is known now
        expect(dialog.get_by_label("Token")).to_have_count(0)
        dialog.get_by_role("button", name="Activate").click()
        expect(page.locator(".sub .status")).to_have_text("active")


@pytest.mark.long
def test_where_nothing_can_be_changed_nothing_is_offered(browser: Browser) -> None:
    with storm_server(token=None) as (_, server), opened(browser, server.url) as page:
        expect(page.get_by_text("read only")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_have_text("bolts")
        assert page.get_by_role("button", name="Kill").count() == 0


@pytest.mark.long
def test_a_server_that_wants_its_token_for_all_is_told_it_once(browser: Browser) -> None:
    with trident_server(token_for_all=True) as (_, server), opened(browser, server.url, refused=9) as page:
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("word-count")


class Reporting(Split):
    """Reports an error with a hostile text for each sentence."""

    def execute(self, tuple: Tuple) -> None:
        self.collector.report_error(ValueError(NASTY))
        super().execute(tuple)


def hostile() -> StormTopology:
    builder = TopologyBuilder()
    builder.set_spout(NASTY, MockedSpout("sentence: string", ["a"]))
    builder.set_bolt(f"split {NASTY}", Reporting()).shuffle_grouping(NASTY)
    return builder.create_topology()


def assert_is_text(page: Page) -> None:
    assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
    assert NASTY in page.locator("main").inner_text()


@pytest.mark.long
def test_hostile_names_and_errors_are_text(browser: Browser) -> None:
    with storm_server(hostile(), name=NASTY) as (running, server), opened(browser, server.url) as page:
        until(lambda: len(running.errors) > 0)
        expect(page.get_by_role("heading", level=1)).to_have_text(NASTY)
        page.locator("details.error summary").first.click()
        expect(page.locator("details.error pre").first).to_contain_text(NASTY)
        assert_is_text(page)
        page.get_by_role("region", name="Bolts").get_by_role("link").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"split {NASTY}")
        assert_is_text(page)


TURNS = "\u202eno such table"


class Turning(Split):
    """Reports an error that turns the direction of what follows it."""

    def execute(self, tuple: Tuple) -> None:
        for _ in range(2):
            self.collector.report_error(ValueError(TURNS))
        super().execute(tuple)


READ_FROM_LEFT = """element => {
  const [text, found] = [document.createTreeWalker(element, NodeFilter.SHOW_TEXT), document.createRange()];
  for (let node = text.nextNode(); node; node = text.nextNode()) {
    const at = node.data.indexOf('times');
    if (at < 0) continue;
    const left = (index) => (found.setStart(node, index), found.setEnd(node, index + 1), found.getBoundingClientRect().left);
    return left(at) < left(at + 4) && element.querySelector('bdi').getBoundingClientRect().right <= left(at);
  }
}"""


@pytest.mark.long
def test_an_error_does_not_turn_the_words_of_the_page(browser: Browser) -> None:
    builder = TopologyBuilder()
    builder.set_spout("sentences", MockedSpout("sentence: string", ["a"]))
    builder.set_bolt("split", Turning()).shuffle_grouping("sentences")
    with storm_server(builder.create_topology()) as (running, server), opened(browser, server.url) as page:
        until(lambda: len(running.errors) > 1)
        error = page.locator("details.error .whatwrong")
        expect(error).to_contain_text("2 times")
        assert error.evaluate(READ_FROM_LEFT) is True


@pytest.mark.long
@pytest.mark.parametrize(
    ("of_orders", "path", "there"),
    [
        (False, "/", "table tbody tr"),
        (False, "/#/topology/topology-1", "table tbody tr"),
        (False, "/#/topology/topology-1/component/component-9", "table tbody tr"),
        (True, "", DRAWN),
        (True, "/#/topology/orders/log/driver", "[role=log]"),
    ],
)
def test_a_narrow_window_needs_no_scrolling_to_the_side(
    browser: Browser, cluster: UIServer, orders_url: str, of_orders: bool, path: str, there: str
) -> None:
    with opened(browser, (orders_url if of_orders else cluster.url) + path, viewport=PHONE) as page:
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_selector(there)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]


BROKEN = """() => [...document.querySelectorAll('tbody td, tbody th')].flatMap(cell => {
  const [texts, found, broken] = [document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), document.createRange(), []];
  for (let node = texts.nextNode(); node; node = texts.nextNode())
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]{2,24}/gu)) {
      found.setStart(node, word.index);
      found.setEnd(node, word.index + word[0].length);
      if (new Set([...found.getClientRects()].map(each => Math.round(each.top))).size > 1) broken.push(word[0]);
    }
  return broken;
})"""


@pytest.mark.long
@pytest.mark.parametrize("width", [800, 1000, 1280])
def test_cells_do_not_break_inside_words(browser: Browser, orders_url: str, width: int) -> None:
    with opened(browser, orders_url, viewport={"width": width, "height": 900}) as page:
        page.wait_for_selector(DRAWN)
        page.wait_for_selector("#h-bolts")
        assert page.evaluate(BROKEN) == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.long
@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_page_is_dark_where_people_want_it(browser: Browser, cluster: UIServer, scheme: str, dark: bool) -> None:
    with opened(browser, cluster.url, color_scheme=scheme) as page:
        page.wait_for_selector("h1")
        colours = page.evaluate("['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])")
        ground, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        assert (ground < text) is dark
        assert abs(ground - text) > 450


@pytest.mark.long
def test_everything_can_be_done_with_the_keyboard(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        page.wait_for_selector(DRAWN)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.tagName") == "MAIN"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Deactivate"
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name="Deactivate")).to_be_focused()
        page.get_by_label("10 min").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_label("3 h")).to_be_checked()
        page.locator(f"{DRAWN}.k-state", has_text="revenue").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("revenue")


@pytest.mark.long
def test_what_can_be_operated_has_a_name(browser: Browser, orders_url: str) -> None:
    with opened(browser, orders_url) as page:
        page.wait_for_selector(DRAWN)
        nameless = page.evaluate(
            """[...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"]')].filter(each =>
                !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length))
              .map(each => each.outerHTML)"""
        )
        assert nameless == []


@pytest.mark.long
def test_the_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(browser: Browser) -> None:
    with trident_server(counting(cycle=True), conf=PACED) as (running, server):
        port, pages = server.port, OneTopology(running.name, TridentPages(running))
        with opened(browser, server.url, refused=99) as page:
            expect(tile(page, "Committed")).to_contain_text("batch ")
            expect(page.locator(".live")).to_have_text("live")
            server.close()
            ask_now(page)
            expect(page.locator(".away")).to_contain_text("The server does not answer")
            before = tile(page, "Committed").inner_text()
            assert before.startswith("batch ")  # what is known stays
            with UIServer(pages, port=port):
                ask_now(page)
                expect(page.locator(".away")).to_be_hidden()
                expect(tile(page, "Committed")).not_to_have_text(before)


def test_a_topology_that_ends_with_an_error_says_so(browser: Browser) -> None:
    with trident_server(orders(), conf={"max_batch_attempts": 1}) as (running, server):
        until(lambda: running.exception() is not None)
        with opened(browser, server.url) as page:
            expect(page.locator(".sub .status")).to_have_text("failed")
            expect(page.get_by_label("How it does")).to_contain_text("has no price")
            expect(page.get_by_role("button", name="Kill")).to_have_count(0)


@pytest.mark.long
def test_bolts_that_feed_each_other_are_drawn(browser: Browser) -> None:
    with UIServer(CyclicTopology(), port=0) as server, opened(browser, f"{server.url}/#/topology/topology-0") as page:
        expect(page.locator(DRAWN)).to_have_count(4)
        expect(page.locator("svg.graph .edge")).to_have_count(5)
        assert page.locator("svg.graph .edge path").evaluate_all("all => all.every(each => each.getTotalLength() > 20)")


MEASURED = """() => new Promise(drawn => {
  const ready = () => document.querySelectorAll('svg.graph a.node').length === 500 && document.querySelector('tbody tr');
  const look = () => ready() ? requestAnimationFrame(() => drawn(performance.now())) : requestAnimationFrame(look);
  look();
})"""


@pytest.mark.long
def test_500_components_are_drawn_apart(browser: Browser, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        UIServer(LargeCluster(1, 500), port=0) as server,
        opened(browser, f"{server.url}/#/topology/topology-0") as page,
    ):
        took = page.evaluate(MEASURED)
        with capsys.disabled():
            sys.stdout.write(f"\n500 components: {took:.0f} ms from the navigation to the picture\n")
        places = page.evaluate(
            """[...document.querySelectorAll('svg.graph a.node')].map(node => {
                  const at = node.transform.baseVal.consolidate().matrix; return [at.e, at.f]; })"""
        )
        columns: dict[float, list[float]] = {}
        for x, y in places:
            columns.setdefault(x, []).append(y)
        assert len(columns) > 5
        for column in columns.values():
            ordered = sorted(column)
            assert all(below - above >= 56 for above, below in pairwise(ordered))
        page.get_by_role("button", name="Show all 480").click()
        page.get_by_role("region", name="Bolts").locator("tbody tr").nth(479).wait_for()
        page.get_by_label("Filter").last.fill("component-499")
        expect(page.get_by_role("region", name="Bolts").locator("tbody tr")).to_have_count(1)
