"""`python -m tests.web.readme_pictures`: the pictures of the README, in `docs/images`; `make screenshots` runs it.

`page.png` is the page of a running topology; `demo-crash.svg` is what `trident demo --crash` prints, run for it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.harness.commands import until
from tests.web.chromium import open_browser
from tests.web.page_servers import orders, trident_server

FOLDER = Path(__file__).parents[2] / "docs" / "images"
COLUMNS = 112
COMMAND = ["trident", "demo", "--crash", "--engine", "in_process", "--crashes", "3"]
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


def record_demo(folder: Path) -> None:
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
    (folder / "demo-crash.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")


def photograph_page(folder: Path) -> None:
    """Save how the page of a running topology looks."""
    with (
        open_browser() as browser,
        trident_server(orders(), conf={"batch_emit_interval_ms": 150, "on_poison": "dead_letter"}) as (running, server),
    ):
        until(lambda: running.txid > 200)  # half a minute, so that there are lines
        page = browser.new_page(viewport={"width": 1280, "height": 1080})
        page.goto(server.url)
        page.wait_for_selector("svg", timeout=20_000)
        page.wait_for_function("document.querySelectorAll('svg text').length > 8")
        page.screenshot(path=folder / "page.png")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for make in (record_demo, photograph_page):
        make(FOLDER)
    sys.stdout.write("".join(f"{path} {path.stat().st_size:,} bytes\n" for path in sorted(FOLDER.iterdir())))


if __name__ == "__main__":
    main()
