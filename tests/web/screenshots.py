"""`python -m tests.web.screenshots [NAME …]`: pictures of the page, in `build/screenshots`; `make screenshots` runs it.

Without a name, or with `readme`, also those of the README, in `docs/images`: `page.png` is the page of a running topology,
`demo-crash.svg` is what `trident demo --crash` prints, run for it.
"""

import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.harness.commands import until
from tests.web.chromium import PHONE, WIDE, open_browser
from tests.web.large_cluster import LargeCluster
from tests.web.page_servers import TOKEN, busy_bolts, orders, storm_server, trident_server
from trident.web.rest import UIServer

FOLDER = Path(__file__).parents[2] / "build" / "screenshots"
OF_README = Path(__file__).parents[2] / "docs" / "images"
PACED = {"batch_emit_interval_ms": 150, "on_poison": "dead_letter"}
COLUMNS = 112
COMMAND = ["trident", "demo", "--crash", "--engine", "in_process"]
# Rich's, but for the fonts, which it would load from a server.
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


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


def record_demo() -> None:
    """Run the demo and save what it printed as a picture."""
    program = Path(sys.executable).with_name(COMMAND[0])
    with tempfile.TemporaryDirectory() as home:
        command = [str(program), *COMMAND[1:]]
        run = subprocess.run(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        printed = run.stdout.replace(str(program), "trident").replace(f"{home}/", "")
    console = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False)
    for line in (f"$ {' '.join(COMMAND)}", *printed.splitlines()):
        bold = line.startswith(("$", "exact:"))
        console.print(Text(line, style="bold green" if bold else "red" if line.startswith("kill ") else ""))
    svg = console.export_svg(title="trident demo --crash", theme=MONOKAI, code_format=SVG, unique_id="demo")
    (OF_README / "demo-crash.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")


def photograph_page() -> None:
    """Save how the page of a running topology looks."""
    with open_browser() as browser, trident_server(orders(), conf=PACED) as (running, server):
        until(lambda: running.txid > 200)  # half a minute, so that there are lines
        page = browser.new_page(viewport={"width": 1280, "height": 1080})
        page.goto(server.url)
        page.wait_for_selector("svg", timeout=20_000)
        page.wait_for_function("document.querySelectorAll('svg text').length > 8")
        page.screenshot(path=OF_README / "page.png")


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
        with trident_server(orders(), conf=PACED) as (running, server):
            until(lambda: running.txid > 60)
            for name, how in {"trident": {}, "trident-dark": {"dark": True}, "trident-phone": {"phone": True}}.items():
                take(name, server.url, **how)
        with storm_server(busy_bolts(), name="page-views", workers=2) as (bolts, server):
            until(lambda: bolts.status.statistics.over().figures.acked > 1000)
            for name, how in {"bolts": {}, "bolts-dark": {"dark": True}, "bolts-phone": {"phone": True}}.items():
                take(name, server.url, **how)
            take("component", f"{server.url}/#/topology/page-views/component/parse")
    if not wanted or "readme" in wanted:
        record_demo()
        photograph_page()


if __name__ == "__main__":
    main(sys.argv[1:])
