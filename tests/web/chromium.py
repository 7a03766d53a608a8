"""A real browser: headless Chromium, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its import takes a second of every run of the tests, few of which need it
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

CHROMIUM = "/usr/bin/chromium"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
PATIENCE_MS = 20_000


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium; as root it has no sandbox of its own."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        yield browser


def expect(what: Any) -> Any:
    """Return what may be asserted of a part of a page."""
    from playwright.sync_api import expect

    return expect(what)


@contextmanager
def opened(browser: Browser, url: str, refused: int = 0, **options: Any) -> Iterator[Page]:
    """Open an address in a window; no dialog may open, no script fail, and no more than `refused` requests be refused."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            wrong.append(message.text)

    page.on("dialog", dismiss)
    page.on("pageerror", lambda error: wrong.append(f"a script failed: {error}"))
    page.on("console", note)
    try:
        page.goto(url)
        yield page
        serious = [each for each in wrong if not each.startswith("Failed to load resource")]
        assert serious == [], serious
        assert len(wrong) <= refused, wrong
    finally:
        context.close()


def ask_now(page: Page) -> None:
    """Let the page ask the server at once, instead of within two seconds."""
    page.evaluate("dispatchEvent(new Event('trident-ask'))")


def tile(page: Page, label: str) -> Any:
    return page.locator(".tile", has=page.get_by_text(label, exact=True)).locator("dd").first
