"""`python -m tests.web.screenshots`: pictures of the page, in `build/screenshots`; `make screenshots` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.harness.commands import until
from tests.web.chromium import PHONE, WIDE, open_browser
from tests.web.large_cluster import LargeCluster
from tests.web.page_servers import TOKEN, busy_bolts, orders, storm_server, trident_server
from trident.web.rest import UIServer

FOLDER = Path(__file__).parents[2] / "build" / "screenshots"


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def picture(browser: Browser, url: str, name: str, dark: bool = False, phone: bool = False, wait: float = 7) -> None:
    """Save how a page looks."""
    context = browser.new_context(
        viewport=PHONE if phone else WIDE,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
        device_scale_factor=1,
    )
    page: Page = context.new_page()
    page.on("console", lambda message: tell(f"{name}: console: {message.text}"))
    page.on("pageerror", lambda error: tell(f"{name}: error: {error}"))
    page.goto(url)
    page.wait_for_selector("h1", timeout=10_000)
    page.wait_for_timeout(wait * 1000)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    tell(str(path.relative_to(FOLDER.parents[1])))
    context.close()


def main(wanted: list[str]) -> None:
    """Take all, or those whose name begins with one of the words."""

    def take(name: str, url: str, **how: bool) -> None:
        if not wanted or any(name.startswith(each) for each in wanted):
            picture(browser, url, name, **how)

    with open_browser() as browser:
        with UIServer(LargeCluster(12, 500), port=0, token=TOKEN) as server:
            for name, how in {"cluster": {}, "cluster-dark": {"dark": True}, "cluster-phone": {"phone": True}}.items():
                take(name, server.url, **how)
            take("large", f"{server.url}/#/topology/topology-0")
        with trident_server(orders(), conf={"batch_emit_interval_ms": 150, "on_poison": "dead_letter"}) as (
            running,
            server,
        ):
            until(lambda: running.txid > 60)
            for name, how in {"trident": {}, "trident-dark": {"dark": True}, "trident-phone": {"phone": True}}.items():
                take(name, server.url, **how)
        with storm_server(busy_bolts(), name="page-views", workers=2) as (bolts, server):
            until(lambda: bolts.status.statistics.over().figures.acked > 1000)
            for name, how in {"bolts": {}, "bolts-dark": {"dark": True}, "bolts-phone": {"phone": True}}.items():
                take(name, server.url, **how)
            take("component", f"{server.url}/#/topology/page-views/component/parse")


if __name__ == "__main__":
    main(sys.argv[1:])
