"""What `make site` adds to the pages of docs/: a reference of every exported name, with links from the pages and back."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.house_figures import ROOT, exported, parsed, stores

PUBLIC = (
    "trident", "trident.operations", "trident.state", "trident.spout", "trident.errors", "trident.storekit", "trident.testing",
    "trident.observe", "trident.drpc", "trident.spark", "trident.storm", "trident.storm.testing",
    *(f"states.{store}" for store in stores()), "spouts",
)  # fmt: skip
"""What users import from."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<![`\[])`([A-Za-z_]\w*)(\([^`]*\))?`(?![`\]])")
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
_PAGE = re.compile(r'href="([\w/-]+)\.md\b')  # as a docstring writes it
_LIST = re.compile(r"^(?![-*|#> ]|\d+\. )(.+)\n(?=(?:- |1\. ))", re.MULTILINE)


@cache
def public_names(module: str) -> tuple[str, ...]:
    """Return what a module exports, without `__version__`."""
    return tuple(name for name in exported(parsed(module)) if not name.startswith("_"))


@cache
def _homes() -> dict[str, str]:
    """Return where each name is described: the first module that exports it."""
    return {name: module for module in reversed(PUBLIC) for name in public_names(module)}


def on_config(config: Any) -> Any:
    """Put the pages of the reference, and those of a folder, where the navigation has their place."""
    pages = [{module: f"reference/{module}.md"} for module in PUBLIC]
    config["nav"] = [{"Reference": pages} if each == {"Reference": "reference"} else each for each in config["nav"]]
    docs = Path(config["docs_dir"])
    for places in (place for each in config["nav"] if isinstance(each, dict) for place in each.values()):
        for each in [one for one in places if str(one).endswith("/*")]:
            at = places.index(each)
            places[at : at + 1] = sorted(page.relative_to(docs).as_posix() for page in docs.glob(f"{each}.md"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each module that users import from."""
    from mkdocs.structure.files import File

    mentions = _mentions(Path(config["docs_dir"]))
    for module in PUBLIC:
        text = "\n\n".join(_described(module, name, mentions.get(name, ())) for name in public_names(module))
        files.append(File.generated(config, f"reference/{module}.md", content=f"# {module}\n\n{text}\n"))
    return files


def _described(module: str, name: str, pages: tuple[str, ...]) -> str:
    if _homes()[name] != module:
        return f"## {name}\n\nSee [`{_homes()[name]}.{name}`][{_homes()[name]}.{name}]."
    seen = ", ".join(f"[{page.removesuffix('.md')}](../{page})" for page in pages)
    return f"::: {module}.{name}" + (f"\n\nIn the pages: {seen}" if seen else "")


def _mentions(docs: Path) -> dict[str, tuple[str, ...]]:
    """Return the users' pages that speak of each exported name."""
    found: dict[str, tuple[str, ...]] = {}
    for page in sorted(docs.rglob("*.md")):
        if "internals" not in page.parts:
            for name in {match[1] for match in _CODE.finditer(page.read_text(encoding="utf-8"))} & _homes().keys():
                found[name] = (*found.get(name, ()), page.relative_to(docs).as_posix())
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link what a page names with its description; what lies outside of docs/ is named without a link."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    known = set[str]()
    docs = Path(config["docs_dir"])
    return "".join(
        text if is_code else _text(text, (docs / page.file.src_uri).parent, docs, known)
        for text, is_code in _pieces(markdown)
    )


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Lead links of docstrings to the pages, which lie beside the folder of the reference."""
    return _PAGE.sub(r'href="../\1.html', html) if page.file.src_uri.startswith("reference/") else html


def _pieces(markdown: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for fence in _FENCE.finditer(markdown):
        yield markdown[at : fence.start()], False
        yield fence[0], True
        at = fence.end()
    yield markdown[at:], False


def _text(text: str, folder: Path, docs: Path, known: set[str]) -> str:
    def inside(link: re.Match[str]) -> str:
        is_page = (folder / link[2]).resolve().is_relative_to(docs.resolve())
        return link[0] if is_page else f"{link[1]} (`{(folder / link[2]).resolve().relative_to(ROOT)}`)"

    def described(code: re.Match[str]) -> str:
        name = code[1]
        if name not in _homes() or name in known:
            return code[0]
        known.add(name)
        return f"[{code[0]}][{_homes()[name]}.{name}]"

    lines = _LIST.sub(r"\1\n\n", _LINK.sub(inside, text)).splitlines(keepends=True)
    return "".join(line if line.startswith("#") or "](" in line else _CODE.sub(described, line) for line in lines)
