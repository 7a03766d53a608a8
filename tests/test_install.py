"""The wheel is whole: installed into a new environment, away from the sources, the README's programs and commands run.

Only this project is newly installed. What it depends on is that of the environment of the tests, so nothing is fetched.
"""

import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.harness.commands import started, until
from tests.harness.environments import Environment, build_wheel
from tests.test_docs import PACKAGES, ROOT, blocks, environment

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("installed") / "venv", environment(), with_pip=True)
    made.install(wheel)
    (made.site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return made


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == files
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed


@pytest.mark.long
def test_every_module_is_imported_from_where_it_was_installed(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "every.py").write_text(_EVERY_MODULE, encoding="utf-8")
    names = installed.run(installed.python, "every.py", *PACKAGES, cwd=tmp_path).split()
    assert {"trident.stream", "trident.run.loop", "states.delta.map", "spouts.files.line_spouts"} <= set(names)


@pytest.mark.long
def test_the_archive_of_the_sources_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (sources,) = (path for path in tmp_path.iterdir() if path.is_dir())
    subprocess.run([*build, "-t", "wheel"], cwd=sources, check=True, capture_output=True)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / wheel.name) as other:
        assert {each.filename: each.CRC for each in one.infolist()} == {
            each.filename: each.CRC for each in other.infolist()
        }


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(450)
def test_the_readme_is_followed_from_top_to_bottom_in_one_folder(installed: Environment, tmp_path: Path) -> None:
    program, *others = blocks(README, "python")
    assert len(others) == 2
    (tmp_path / "word_count.py").write_text(program, encoding="utf-8")
    assert installed.run(installed.python, "word_count.py", cwd=tmp_path).splitlines() == promised(program)

    _, _, commands, kept_running = blocks(README, "sh")
    told = installed.run("bash", "-euo", "pipefail", "-c", commands, cwd=tmp_path)
    assert "complete: 1 batch with 1 tuple" in told
    assert re.search(r"the\W+4\W+dish\W+1\W", told)
    assert re.search(r"last batch +2 ", told)

    up, *steps = kept_running.splitlines()
    assert up.split()[:3] == ["trident", "up", "#"]
    command = (str(installed.scripts / "trident"),)
    with started("up", "--port", "0", cwd=tmp_path, program=command, variables=installed.variables) as cluster:
        cluster.says("submit a topology")
        told = installed.run("bash", "-euo", "pipefail", "-c", "\n".join(steps), cwd=tmp_path)
        assert "word-count: goes on after batch 2 of trident-log/word-count" in told
        assert re.search(r"word-count +active +active", told)
        assert re.search(r"the\W+4\W+dish\W+1\W", told)
        (tmp_path / "books/end.txt").write_text("the end\n", encoding="utf-8")
        get = ("trident", "get", "word_count.py:topology", "count", "the")
        until(lambda: re.search(r"the\W+5\W", installed.run(*get, cwd=tmp_path)), "what is added is counted")
        cluster.signal(signal.SIGTERM)
        assert cluster.end()[0] == 128 + signal.SIGTERM

    for code in others:
        (tmp_path / "program.py").write_text(code, encoding="utf-8")
        assert installed.run(installed.python, "program.py", cwd=tmp_path).splitlines() == promised(code)


def promised(program: str) -> list[str]:
    """Return what a program says that it prints, in comments behind `print`."""
    found: list[str] = re.findall(r"\bprint\(.*\)  # (.*)$", program, re.MULTILINE)
    assert found
    return found
