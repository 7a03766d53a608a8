"""`trident doctor` tells what is here, what is missing, and the line that brings it.

`tests/test_extras.py` asks it in environments that lack something; here everything is installed, and something is hidden.
"""

from __future__ import annotations

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
from tests.harness.commands import trident
from trident.extras import ALWAYS, EXTRAS

pytestmark = pytest.mark.slow

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


def test_where_everything_is_here_topologies_can_run(tmp_path: Path) -> None:
    done = ask(tmp_path, JAVA_HOME=java_home(tmp_path / "java", "21.0.4"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing" not in done.stdout
    assert re.search(r"^Java +21\.0\.4 +\S+/java/bin/java", done.stdout, re.MULTILINE)
    assert re.search(r"^PySpark +\d+\.\d+\.\d+ +\S+pyspark", done.stdout, re.MULTILINE)
    assert re.search(r"^redis +RedisState, .* +redis \d.*, hiredis \d", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "topologies can run here: trident run MODULE:TOPOLOGY"


@pytest.mark.long
def test_it_starts_no_java(tmp_path: Path) -> None:
    home = java_home(tmp_path / "java", "17.0.1")
    (tmp_path / "java/bin/java").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n", encoding="utf-8")
    assert answer(ask(tmp_path, "--json", JAVA_HOME=home))["java"]["version"] == "17.0.1"
    assert not (tmp_path / "started").exists()


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
