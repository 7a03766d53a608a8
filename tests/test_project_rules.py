"""Rules for the files of the project: no names of package hosts, no paths of one machine, no dead links, no long functions."""

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import house_figures

ROOT = Path(__file__).parent.parent
NOT_OURS = {
    ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "__pycache__", "build", "dist",
    "trident-demo", "trident-demo-crash", "trident-log",
    "metastore_db", "spark-warehouse",
}  # fmt: skip
# A class of one letter in each pattern keeps this file from finding itself.
HOSTS = re.compile(
    r"py[p]i\.(org|python\.org)|python[h]osted\.org|maven\.apac[h]e\.org|maven\.or[g]\b|sonatyp[e]\.org|crate[s]\.io"
    r"|npmj[s]\.(org|com)|yarnpk[g]\.com|proxy\.golan[g]\.org|debia[n]\.org|ubunt[u]\.com",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w./}$~-])/(wor[k]|roo[t]|hom[e]|User[s])(/[\w.-]+|(?=[\s\"'`,;:)]|$))")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")


REFUSED = ROOT / "CONTRIBUTING.md"
PLAIN = [
    ROOT / "README.md",
    *sorted((ROOT / "tests").rglob("*.md")),
    *sorted(path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.[mp][dy]")),
    *sorted(path for package in ("trident", "states", "spouts") for path in (ROOT / package).rglob("*.py")),
]


def files() -> Iterator[Path]:
    """Walk the files of the project, without what tools make."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in NOT_OURS and not name.endswith(".egg-info"))
        yield from (Path(folder, name) for name in sorted(names) if name not in NOT_OURS)  # a worktree has a file .git


def text_of(path: Path) -> str:
    """Return the text of a file, nothing of a binary one."""
    data = path.read_bytes()
    return "" if b"\0" in data[:8192] else data.decode("utf-8", errors="replace")


def matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in files():
        if pattern.search(text := text_of(path)):
            lines = enumerate(text.splitlines(), 1)
            where = path.relative_to(ROOT)
            found += [f"{where}:{number}: {line.strip()[:120]}" for number, line in lines if pattern.search(line)]
    return found


def prose_of(text: str) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", prose_of(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    text = prose_of(text_of(document))
    dead = []
    for match in LINK.finditer(text):
        target, _, anchor = (match[1] or match[2]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = document if not target else (document.parent / target)
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(text_of(path))):
            dead.append(f"{document.name}: {match[0]}")
    return dead


@cache
def private_words() -> dict[str, str]:
    """Return the words that are not used, each with what to say instead."""
    table = REFUSED.read_text(encoding="utf-8").split("\n| not | but |\n")[1].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table if row.startswith("|")]
    return {word: better for words, better in cells for word in words.split(", ")}


def uses_of(words: Iterable[str], text: str) -> list[str]:
    """Return the words that a text uses, also inside of identifiers, over line ends, and in comments over several lines.

    The setting `on_poison` has a word that is not used otherwise; names that users know stay.
    """
    text = text.replace("on_poison", "")
    any_word, *each = _patterns(tuple(words))
    return [word for word, one in zip(words, each, strict=True) if one.search(text)] if any_word.search(text) else []


@cache
def _patterns(words: tuple[str, ...]) -> list[re.Pattern[str]]:
    forms = [word.replace(" ", r"[\s_#]+") for word in words]
    return [re.compile(rf"(?<![a-z])(?:{form})(?![a-z])", re.IGNORECASE) for form in ("|".join(forms), *forms)]


def test_no_file_names_a_package_host() -> None:
    found = matches(HOSTS)
    assert not found, "\n".join(["a mirror must do as well as the usual host; name none:", *found])


def test_no_file_names_a_path_of_one_machine() -> None:
    found = matches(MACHINE_PATHS)
    assert not found, "\n".join(["write paths relative to the project:", *found])


def test_the_links_of_a_document_lead_somewhere() -> None:
    assert [link for path in files() if path.suffix == ".md" for link in dead_links(path)] == []


def test_a_page_or_module_uses_no_private_words() -> None:
    words = private_words()
    found = [(str(path.relative_to(ROOT)), word) for path in PLAIN for word in uses_of(words, text_of(path))]
    assert [(path, word, words[word]) for path, word in found] == [], "say this instead"


def test_a_private_word_is_found_and_a_plain_one_accepted() -> None:
    for text in ("Nobody knows", "laid_anew", "# it is put\n    # aside", "class Poison:", "run.poison"):
        assert len(uses_of(private_words(), text)) == 1, text
    for text in ("on_poison", "understood", "Authorization: Bearer x", "states live in memory"):
        assert uses_of(private_words(), text) == [], text


def test_a_function_is_short_and_has_few_branches() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in house_figures.modules(*house_figures.PRODUCT)
        for each in house_figures.too_large(path.read_text(encoding="utf-8"))
    ]
    rule = f"a function has {house_figures.MOST_BRANCHES} branches and {house_figures.MOST_LINES} lines at most:"
    assert not found, "\n".join([rule, *found])


@pytest.mark.parametrize(
    ("body", "size"),
    [
        (["if a: b()"] * 13, "13 branches, 14 lines"),
        ([f"return {' or '.join('abcdefghijklmn')}"], "13 branches, 2 lines"),
        (["a = [b if b else c for b in a if b and c]"] * 5, "15 branches, 6 lines"),
        (["match a:", *["    case b: pass"] * 13], "13 branches, 15 lines"),
        (["a()"] * 60, "0 branches, 61 lines"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_large_function_is_found(kind: str, body: list[str], size: str) -> None:
    source = "\n    ".join([f"{kind} f():", *body])
    assert house_figures.too_large(source) == [f"1 f: {size}"]


def test_a_function_within_a_function_counts_for_itself() -> None:
    inner = "\n        ".join(["    def g():", *["if a: b()"] * 7])
    outer = "\n    ".join(["def f():", *["if a: b()"] * 7])
    assert house_figures.too_large(f"{outer}\n{inner}") == []


def test_every_locked_package_has_hashes() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    names = [block.split("==")[0] for block in re.split(r"\n(?=\w)", lock) if "--hash=sha256:" not in block]
    assert names == []
    assert re.search(r"^pyspark==", lock, re.MULTILINE)


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        *(
            (HOSTS, text, True)
            for text in ("https://py" + "pi.org/simple", "repo1.ma" + "ven.org", "registry.npm" + "js.org")
        ),
        *((MACHINE_PATHS, text, True) for text in ("see /wo" + "rk/main", "'/ro" + "ot'", "cd /ho" + "me/me/x")),
        *((MACHINE_PATHS, text, False) for text in ("docs/home/x", "/worker", "a/root", "~/work/x", "{dir}/work/x")),
    ],
)
def test_a_host_and_a_path_of_one_machine_are_found(pattern: re.Pattern[str], text: str, is_found: bool) -> None:
    assert bool(pattern.search(text)) is is_found


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# A Title\n[x](b.md) [y](#a-title) [z](#none) ![p](c.png) [w](https://example.org)\n")
    assert dead_links(document) == ["a.md: [x](b.md)", "a.md: [z](#none)", "a.md: ![p](c.png)"]
