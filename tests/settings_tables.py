"""The tables of settings in docs/, made of what their classes declare: `python -m tests.settings_tables` writes them again."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from tests.house_figures import store_options
from trident import Config
from trident.servers.account import ServerAccount
from trident.storekit import Changing, Expiring, MapOptions, ServerCalls, StoreOptions
from trident.storm import StormConfig
from trident.storm.storm_config import _STORMS_NAMES

DOCS, README = Path(__file__).parent.parent / "docs", "../README.md"
SHARED = (StoreOptions, MapOptions, ServerCalls, ServerAccount, Expiring, Changing)
STORES = [each for each in store_options().values() if issubclass(each, Expiring)]  # not a sink
_OFTEN = (
    "max_spout_pending", "on_poison", "log_dir", "history", "takeover", "state_recovery", "engine", "master",
    "metrics_port", "ui_port",
)  # fmt: skip
_ADVICE = re.compile(r"^\| setting \| default \| change it if \|\n(?:\|.*\n)*", re.MULTILINE)
Entry = tuple[list[str], str]


def entries(*classes: type) -> Iterator[Entry]:
    """Give the settings that docstrings describe: names that are described together, and the text."""
    for each in classes:
        described = str(each.__dict__["__doc__"]).partition("----------\n")[2]
        for names, text in re.findall(r"^ {4}(\w.*)\n((?: {8}.*\n?)+)", described, re.MULTILINE):
            if defaults(each).keys() >= set(names.split(", ")):
                yield names.split(", "), " ".join(text.split())


def defaults(declared: Any) -> dict[str, str]:
    """Return the defaults by name as a page shows them; one that must be given has none."""
    values = {each.name: each.default for each in fields(declared)}
    values |= {each.name: each.default_factory() for each in fields(declared) if each.default_factory is not MISSING}
    values = {name: value[0] if type(value) is tuple else value for name, value in values.items()}  # as a call gives it
    return {name: "" if value in (MISSING, "") else f"`{value!r}`" for name, value in values.items()}


def table(head: str, found: Iterable[Entry], columns: Callable[[list[str], str], tuple[str, ...]]) -> str:
    rows = [(", ".join(f"`{name}`" for name in names), *columns(names, text)) for names, text in found]
    lines = [head, "|---" * (head.count("|") - 1) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def with_default(declared: type) -> Callable[[list[str], str], tuple[str, ...]]:
    known = defaults(declared)
    return lambda names, text: (_joined([known[name] for name in names]), text)


def _joined(values: list[str]) -> str:
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def in_storm(names: list[str], text: str) -> tuple[str, ...]:
    """Return the default of settings of bolts, their names in Storm, and what they mean."""
    storms = {name: storm for storm, name in _STORMS_NAMES.items()}
    default, meaning = with_default(StormConfig)(names, re.sub(r" \(`topology[^)]*\)", "", text))
    return default, ", ".join(f"`{storms[name]}`" for name in names if name in storms), meaning


def in_stores(names: list[str], text: str) -> tuple[str, ...]:
    """Return which stores have options, with which defaults, and what they mean."""
    having = {each.store: with_default(each)(names, text)[0] for each in STORES if defaults(each).keys() >= set(names)}
    (usual, _), *_ = Counter(having.values()).most_common()
    others = "".join(f"; {store} {default}" for store, default in having.items() if default != usual)
    servers = len(having) == len(STORES) - 1 and "Delta" not in having
    where = "all" if len(having) == len(STORES) else "servers" if servers else ", ".join(having)
    return where, usual + others, text


def options_of(page: str, declared: type) -> Iterator[Entry]:
    """Give the options of a store that the page does not tell in a table of advice, nor that of all stores."""
    told = set(advice(page))
    yield from ((names, text) for names, text in entries(declared) if not told >= set(names))
    told |= {name for names, _ in entries(declared, *SHARED) for name in names}
    others = [each for each in declared.__mro__[1:] if is_dataclass(each) and each not in SHARED]
    yield from ((names, text) for names, text in entries(*others) if not told >= set(names))


def advice(page: str) -> dict[str, str]:
    """Return the settings that a page gives advice on, and their defaults as it says them."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (?!.*change it if)", "".join(_ADVICE.findall(page)), re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}


def tables_of(place: str, page: str) -> tuple[str, list[str]]:
    if place == "configuration.md":
        head, columns, both = "| setting | default | meaning |", with_default(Config), list(entries(Config))
        return head, [
            table(head, (each for each in both if (each[0][0] in _OFTEN) == often), columns) for often in (True, False)
        ]
    if place == "storm/bolts.md":
        head = "| setting | default | in Storm | meaning |"
        return head, [table(head, entries(StormConfig), in_storm)]
    if place == "states.md":
        head = "| option | in | default | meaning |"
        return head, [table(head, entries(*SHARED), in_stores)]
    if place == README:  # the stores that have a page
        head, rows = "| store | take it if | exact |", (DOCS / "states.md").read_text(encoding="utf-8")
        stores = re.findall(r"^\| \[.*?\]\(states/.*\n", rows, re.MULTILINE)
        return head, ["".join([f"{head}\n|---|---|---|\n", *(row.replace("](", "](docs/", 1) for row in stores)])]
    head, declared = "| option | default | meaning |", PAGES[place]
    return head, [table(head, options_of(page, declared), with_default(declared))]


def written(place: str) -> str:
    """Return the text of a page with its tables of settings as they should be."""
    page = (DOCS / place).read_text(encoding="utf-8")
    head, tables = tables_of(place, page)
    left = iter(tables)
    return re.sub(rf"^{re.escape(head)}\n(\|.*\n)*", lambda _: next(left), page, flags=re.MULTILINE)


PAGES: dict[str, type] = {
    "configuration.md": Config, "storm/bolts.md": StormConfig, "states.md": StoreOptions,
    **{f"states/{store}.md": options for store, options in store_options().items()},
}  # fmt: skip


if __name__ == "__main__":
    for each in (*PAGES, README):
        (DOCS / each).write_text(written(each), encoding="utf-8")
