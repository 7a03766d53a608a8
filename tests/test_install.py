"""The wheel is whole: installed into a new environment, away from the sources, the README's programs and commands run.

Only this project is newly installed. What it depends on is that of the environment of the tests, so nothing is fetched.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.test_docs import PACKAGES, ROOT, blocks, environment

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
_TIMEOUT_S = 110.0
_EVERY_MODULE = """
import importlib, pathlib, sys

home = pathlib.Path(sys.prefix)
for package in sys.argv[1:]:
    folder = pathlib.Path(importlib.import_module(package).__file__).parent
    assert home in folder.parents, folder
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        if path.stem not in ("__main__", "__init__"):
            importlib.import_module(name)
            print(name)
"""


class Installed:
    """A new environment with the wheel in it."""

    def __init__(self, wheel: Path, home: Path) -> None:
        self.wheel, self.scripts = wheel, home / "bin"

    def run(self, *command: str, cwd: Path) -> str:
        """Run a command of the environment, which knows nothing of the sources; returns what it printed."""
        path = f"{self.scripts}{os.pathsep}{os.environ['PATH']}"
        python = str(self.scripts / "python")
        known = {**environment(), "PATH": path, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        del known["PYTHONPATH"]
        done = subprocess.run(
            command, cwd=cwd, env=known, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, *arguments: str, cwd: Path) -> str:
        return self.run(str(self.scripts / "python"), *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")

    def run(*command: str | Path) -> None:
        done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return Installed(wheel, folder / "venv")


def test_the_wheel_has_every_file_of_the_packages(installed: Installed) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed


def test_every_module_is_imported_from_where_it_was_installed(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "every.py").write_text(_EVERY_MODULE, encoding="utf-8")
    names = installed.python("every.py", *PACKAGES, cwd=tmp_path).split()
    assert {"trident.stream", "trident.runtime.driver.loop", "states.delta.map", "spouts.text_files.spout"} <= set(
        names
    )


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_readme_counts_words_and_its_commands_go_on_from_there(installed: Installed, tmp_path: Path) -> None:
    program, *others = blocks(README, "python")
    assert len(others) == 2
    (tmp_path / "word_count.py").write_text(program, encoding="utf-8")
    assert installed.python("word_count.py", cwd=tmp_path).splitlines() == promised(program)

    _, commands, _ = blocks(README, "sh")
    told = installed.run("bash", "-euo", "pipefail", "-c", commands, cwd=tmp_path)
    assert "complete: 1 batches with 1 tuples" in told
    assert re.search(r"the\W+4\W+dish\W+1\W", told)
    assert re.search(r"last batch +2 ", told)

    for code in others:
        (tmp_path / "program.py").write_text(code, encoding="utf-8")
        assert installed.python("program.py", cwd=tmp_path).splitlines() == promised(code)


def promised(program: str) -> list[str]:
    """Return what a program says that it prints, in comments behind `print`."""
    found: list[str] = re.findall(r"\bprint\(.*\)  # (.*)$", program, re.MULTILINE)
    assert found
    return found
