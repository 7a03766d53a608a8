"""A store and a spout of another package: found by their entry points, and what is wrong with one harms nothing else."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests import house_figures
from tests.cli.test_doctor import answer, ask
from tests.harness.commands import trident
from trident import TridentTopology
from trident.errors import ConfigError
from trident.extras import EXTRAS, Extra
from trident.operations import Count

ROOT = Path(__file__).parents[2]
MODULE = """
from tests.harness.sqlite_map import sqlite_state
from trident.extras import Extra
from trident.storekit import driver_package

STORE = Extra({"apsw-bin": "apsw"}, ("SQLiteState",))
SPOUT = Extra({}, ("SQLiteTableSpout",))


def SQLiteState(path):
    with driver_package("SQLite", "apsw-bin", "trident-sqlite[sqlite]", module="apsw"):
        import apsw
    return sqlite_state(path)
"""
JOB = """
from spouts import FixedBatchSpout
from trident import TridentTopology
from trident.operations import Count
from trident_sqlite import SQLiteState

topology = TridentTopology("words")
words = topology.new_stream("words", FixedBatchSpout("word: string", 2, ["the"], ["cow"], ["the"]))
words.group_by("word").persistent_aggregate(SQLiteState("counts.db"), Count(), "count")
"""


def install(site: Path, name: str, entry_points: str, **modules: str) -> None:
    """Lay a package into a folder as pip does: its modules, and what is known of it."""
    known = site / f"{name.replace('-', '_')}-1.2.dist-info"
    known.mkdir(parents=True)
    asked = 'Provides-Extra: sqlite\nRequires-Dist: apsw-bin>=3.40; extra == "sqlite"\n'
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n{asked}", encoding="utf-8")
    (known / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    named = "[trident.stores]\nsqlite = trident_sqlite:STORE\n[trident.spouts]\nsqlite-rows = trident_sqlite:SPOUT\n"
    install(tmp_path / "site", "trident-sqlite", named, trident_sqlite=MODULE)
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    return tmp_path / "site"


@pytest.mark.slow
def test_a_store_outside_is_found_and_used_without_a_line_here(site: Path, tmp_path: Path) -> None:
    lacking = {each["name"]: each for each in answer(ask(tmp_path, "--json", first=str(site)))["others"]}
    assert lacking["sqlite"]["problem"] == "missing: apsw-bin"
    assert lacking["sqlite"]["mend"] == "pip install 'trident-sqlite[sqlite]'"
    assert (lacking["sqlite-rows"]["version"], lacking["sqlite-rows"]["usable"]) == ("trident-sqlite 1.2", True)
    path = f"{site}:{ROOT}"
    ran = trident("run", "job.py:topology", "--once", "--engine", "in_process", cwd=tmp_path, PYTHONPATH=path)
    assert ran.stderr.endswith(
        "a SQLite state needs the package apsw-bin (No module named 'apsw'); pip install 'trident-sqlite[sqlite]'\n"
    )
    (site / "apsw.py").write_text("__version__ = '3.46'\n", encoding="utf-8")
    assert re.search(
        r"^sqlite +SQLiteState +trident-sqlite 1\.2, apsw-bin 3\.46", ask(tmp_path, first=str(site)).stdout, re.M
    )
    trident("run", "job.py:topology", "--once", "--engine", "in_process", cwd=tmp_path, PYTHONPATH=path)
    found = trident("get", "job.py:topology", "count", "--all", cwd=tmp_path, PYTHONPATH=path).stdout
    assert re.findall(r"^(the|cow) +(\d)", found, re.M) == [("cow", "1"), ("the", "2")]


@pytest.mark.slow
def test_a_broken_entry_point_is_named_and_harms_nothing_else(site: Path, tmp_path: Path) -> None:
    exits = "[trident.stores]\na = nowhere:STORE\nb = exits:STORE\nc = wrong:STORE\nd = wrong:NONE\n"
    install(site, "broken", exits, exits="raise SystemExit(3)", wrong="STORE = 1")
    install(site, "garbled", "[trident.stores]\nno equals sign\n")
    told = answer(ask(tmp_path, "--json", first=str(site)))
    problems = {each["name"]: each["problem"] for each in told["others"]}
    assert problems.pop("garbled").startswith("the entry points of garbled cannot be read: ")
    assert problems["a"] == "nowhere:STORE of broken cannot be imported: ModuleNotFoundError: No module named 'nowhere'"
    assert problems["b"] == "exits:STORE of broken cannot be imported: SystemExit: 3"
    assert problems["c"] == "wrong:STORE of broken is 1, not a trident.storekit.Extra"
    assert problems["d"].startswith("wrong:NONE of broken cannot be imported: AttributeError: ")
    assert problems["sqlite-rows"] is None
    assert set(told["extras"]) == set(EXTRAS)


def test_a_start_reads_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.metadata.Distribution, "entry_points")
    topology = TridentTopology("words")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["the"]))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state(counts).multi_get(["the"]) == [1]


def test_what_is_said_to_bring_a_package_is_an_extra() -> None:
    place, said = {"needs_package": 1, "driver_package": 2}, set[str]()
    texts = (path.read_text(encoding="utf-8") for path in house_figures.modules(*house_figures.PRODUCT))
    for text in (text for text in texts if any(name in text for name in place)):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and (at := place.get(ast.unparse(node.func))):
                said |= {str(each.value) for each in node.args[at : at + 1] if isinstance(each, ast.Constant)}
    assert {"redis", "postgres", "spark"} <= said
    assert said <= {*EXTRAS}


@pytest.mark.parametrize("given", [("apsw", ("SQLiteState",)), ({"apsw": "apsw"}, "SQLiteState")])
def test_a_text_in_place_of_packages_or_names_is_refused(given: tuple[object, object]) -> None:
    with pytest.raises(ConfigError, match=r"give a dict and a tuple, as packages=\{'apsw': 'apsw'\}, "):
        Extra(*given)  # type: ignore[arg-type]
