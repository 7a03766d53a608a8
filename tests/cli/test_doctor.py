"""`trident doctor` tells what is here, what is missing, and the line that brings it.

`tests/test_extras.py` asks it in environments that lack something; here everything is installed, and something is hidden, or
lies in another package.
"""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import spouts
from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests import house_figures
from tests.harness.commands import trident
from trident import TridentTopology
from trident.errors import ConfigError
from trident.extras import ALWAYS, EXTRAS, Extra
from trident.operations import Count

ROOT = Path(__file__).parents[2]


def ask(folder: Path, *words: str, first: str = "", **variables: str) -> CompletedProcess[str]:
    """Run it, where a folder comes first on Python's path."""
    path = os.pathsep.join(filter(None, [first, os.environ.get("PYTHONPATH", "")]))
    variables |= {"PYTHONPATH": path} if path else {}
    return trident("doctor", *words, cwd=folder, timeout_s=90, **variables)


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def java_home(folder: Path, version: str) -> str:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
    return str(folder)


@pytest.mark.slow
def test_where_everything_is_here_topologies_can_run(tmp_path: Path) -> None:
    done = ask(tmp_path, JAVA_HOME=java_home(tmp_path / "java", "21.0.4"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing" not in done.stdout
    assert re.search(r"^Java +21\.0\.4 +\S+/java/bin/java", done.stdout, re.MULTILINE)
    assert re.search(r"^PySpark +\d+\.\d+\.\d+ +\S+pyspark", done.stdout, re.MULTILINE)
    assert re.search(r"^redis +RedisState, .* +redis \d.*, hiredis \d", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "topologies can run here: trident run MODULE:TOPOLOGY"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "problem"),
    [("", r"no Java|needs Java"), ("11.0.2", r"needs Java 17 or newer, and \S+ is Java 11"), ("1.8.0_1", "is Java 8")],
)
def test_without_a_java_or_with_an_old_one_it_says_what_to_install(version: str, problem: str, tmp_path: Path) -> None:
    home = java_home(tmp_path / "java", version) if version else ""
    done = ask(tmp_path, JAVA_HOME=home, PATH="")
    assert done.returncode == 1
    assert re.search(rf"^problem: .*({problem}).*openjdk", done.stdout, re.MULTILINE)
    assert re.search(r"^Java +none", done.stdout, re.MULTILINE)
    assert "without it they run with --engine in_process" in done.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True], ids=["a folder", "the zip of spark-submit"])
def test_an_old_pyspark_is_said_to_be_too_old(packed: bool, tmp_path: Path) -> None:
    package = tmp_path / "old" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError\n", encoding="utf-8")
    (package / "version.py").write_text('__version__: str = "3.4.1"\n', encoding="utf-8")
    old = shutil.make_archive(str(package), "zip", package.parent) if packed else str(package.parent)
    done = ask(tmp_path, "--json", first=old)
    assert done.returncode == 1
    found = answer(done)
    assert not found["ready"]
    assert re.search(r"takes PySpark 3\.5 or newer, and \S+ has 3\.4\.1", found["pyspark"]["problem"])
    assert found["pyspark"]["mend"] == "pip install 'trident-spark[spark]'"
    assert found["extras"]["redis"]["usable"]


@pytest.mark.slow
@pytest.mark.long
def test_a_package_that_is_broken_or_too_old_is_no_reason_to_fail(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "obstore").mkdir(parents=True)
    (site / "obstore/__init__.py").write_text("raise ValueError('half of it')\n", encoding="utf-8")
    (site / "pymemcache-3.1.dist-info").mkdir()
    (site / "pymemcache-3.1.dist-info/METADATA").write_text("Name: pymemcache\nVersion: 3.1\n", encoding="utf-8")
    done = ask(tmp_path, "--json", first=str(site))
    extras = answer(done)["extras"]
    assert done.returncode == 0
    assert "obstore cannot be imported" in extras["object-store"]["problem"]
    assert "half of it" in extras["object-store"]["problem"]
    assert extras["memcached"]["problem"] == "pymemcache 3.1 is older than 4.0"
    assert extras["memcached"]["mend"] == "pip install 'trident-spark[memcached]'"


def test_its_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    del extras["dev"]
    everything = extras.pop("all")
    extras["spark"].remove("pandas>=2.0,<3")  # a bound of what pyspark[sql] brings
    assert _packages(project["dependencies"], extras) == set(ALWAYS.packages)
    told = {name: {*extra.packages} - {"hiredis"} for name, extra in EXTRAS.items()}  # it comes with redis[hiredis]
    for name in ("spark", "cluster"):
        told[name] |= told["cli"]
    assert {name: _packages(asked, extras) for name, asked in extras.items()} == told
    assert _packages(everything, extras) == set().union(*told.values())


def _packages(asked: list[str], extras: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    for each in asked:
        name, _, more = re.split(r"[><=]", each)[0].partition("[")
        own = name == "trident-spark"
        found |= _packages([one for extra in more[:-1].split(",") for one in extras[extra]], extras) if own else {name}
    return found


def test_it_names_every_spout_and_the_state_of_every_store() -> None:
    named = {name for extra in (ALWAYS, *EXTRAS.values()) for name in extra.names}
    states = {path.name for path in (ROOT / "states").iterdir() if (path / "__init__.py").exists()}
    assert set(spouts.__all__) - named == set(), "name it in trident/extras.py: in its extra, or in ALWAYS"
    rest = {name.lower().removesuffix("state").removesuffix("map").removesuffix("topic") for name in named} & states
    assert states - rest == set(), "name its state in trident/extras.py: in its extra, or in ALWAYS"


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
    lacks = "a SQLite state needs the package apsw-bin (No module named 'apsw')"
    assert ran.stderr.endswith(f"{lacks}; pip install 'trident-sqlite[sqlite]'\n")
    (site / "apsw.py").write_text("__version__ = '3.46'\n", encoding="utf-8")
    told = ask(tmp_path, first=str(site)).stdout
    assert re.search(r"^sqlite +SQLiteState +trident-sqlite 1\.2, apsw-bin 3\.46", told, re.M)
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
