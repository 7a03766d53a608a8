"""The site is built from the pages and the docstrings: every exported name is in it, every link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.house_figures import ROOT
from tests.site_pages import PUBLIC, public_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_LINK = re.compile(r'<(a|link|script|img|source)\b[^>]*?\b(?:href|src)="([^"]+)"')
_ANCHOR = re.compile(r'\b(?:id|name)="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a page without a place, a link or a name that leads nowhere ends it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_exported_name_is_described(site: Path) -> None:
    for module in PUBLIC:
        text = (site / "reference" / f"{module}.html").read_text(encoding="utf-8")
        headings = set(re.findall(r'<h2 id="([^"]+)"', text))
        assert public_names(module)
        assert {name for name in public_names(module) if not headings & {f"{module}.{name}", name.lower()}} == set()


def test_pages_and_descriptions_lead_to_each_other(site: Path) -> None:
    page = (site / "tutorial" / "1-keep-your-query.html").read_text("utf-8")
    assert 'href="../reference/trident.html#trident.exactly_once"' in page
    text = (site / "reference" / "trident.html").read_text("utf-8")
    assert re.search(r'In the pages:.*href="\.\./tutorial/1-keep-your-query\.html"', text)


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    anchors = {page: {*_ANCHOR.findall(text)} for page, text in texts.items()}
    broken, loaded, followed = list[str](), list[str](), 0
    for page, text in texts.items():
        for tag, address in _LINK.findall(text):
            if "://" in address:
                loaded += [address] if tag != "a" else []
            elif not address.startswith(("mailto:", "data:", "/")):
                path, _, anchor = unquote(address).partition("#")
                target = (page.parent / path).resolve() if path else page
                followed += 1
                if not target.exists() or (anchor not in {"", *anchors.get(target, {anchor})}):
                    broken.append(f"{page.relative_to(site)}: {address}")
    assert followed > 1_000
    assert (broken, loaded) == ([], [])
