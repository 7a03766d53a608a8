"""The page with 100 topologies, and one topology with 500 components: time to draw, work of its updates.

`python -m tests.benchmarks.page [SECONDS]`. The time is the browser's own, from the navigation on;
work is time of the processor.
"""

from __future__ import annotations

import statistics
import sys
import time

import psutil
from playwright.sync_api import Browser, Page

from tests.ui.chromium import CHROMIUM, WIDE, open_browser
from tests.ui.large_cluster import LargeCluster
from trident.ui.ui_server import UIServer

TOPOLOGIES, COMPONENTS, ROUNDS = 100, 500, 5
OVERVIEW = (
    f"document.querySelectorAll('tbody tr').length >= 40 && document.body.innerText.includes('Show all {TOPOLOGIES}')"
)
PICTURE = f"document.querySelectorAll('svg.graph a.node').length === {COMPONENTS} && document.querySelector('tbody tr')"
DRAWN = """() => new Promise(drawn => {{
  const look = () => ({condition}) ? requestAnimationFrame(() => drawn(performance.now())) : requestAnimationFrame(look);
  look();
}})"""


def browser_cpu() -> dict[str, float]:
    """The seconds of the processor that the browser's processes have used, by their kind."""
    found: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command, times = process.cmdline(), process.cpu_times()
        except psutil.Error:
            continue
        if any("chrom" in part for part in command[:1]):
            kind = next((part.removeprefix("--type=") for part in command if part.startswith("--type=")), "browser")
            found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


def drawing(browser: Browser, url: str, condition: str) -> list[float]:
    """Milliseconds from the navigation to the frame with all, each time in a window of its own."""
    found = []
    for _ in range(ROUNDS):
        context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(url)
        found.append(page.evaluate(DRAWN.format(condition=condition)))
        context.close()
    return found


def updating(page: Page, seconds: float) -> tuple[float, float, float]:
    """Shares of a core while the page updates itself: the renderer's, all of the browser's, the server's."""
    page.wait_for_timeout(3000)
    before, server, began = browser_cpu(), time.process_time(), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    after, took = browser_cpu(), time.monotonic() - began
    renderer = after.get("renderer", 0.0) - before.get("renderer", 0.0)
    return renderer / took, (sum(after.values()) - sum(before.values())) / took, (time.process_time() - server) / took


def main(seconds: float) -> None:
    with open_browser() as browser, UIServer(LargeCluster(TOPOLOGIES, COMPONENTS), port=0) as server:
        print(f"{browser.browser_type.name} {browser.version} ({CHROMIUM}), server in the process of the benchmark")
        for name, path, condition in (
            (f"{TOPOLOGIES} topologies", "/", OVERVIEW),
            (f"{COMPONENTS} components", "/#/topology/topology-0", PICTURE),
        ):
            drawn = drawing(browser, server.url + path, condition)
            shown = ", ".join(f"{each:.0f}" for each in drawn)
            print(f"{name}: drawn in {statistics.median(drawn):.0f} ms (median of {shown})")
            page = browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
            page.goto(server.url + path)
            page.evaluate(DRAWN.format(condition=condition))
            renderer, whole, serving = updating(page, seconds)
            print(
                f"{name}: updates every 2 s take {renderer:.1%} of a core in the renderer, {whole:.1%} in all of the browser, "
                f"{serving:.1%} in the server and the driver of the browser"
            )
            page.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
