"""Environments as pip makes them: the wheel with some of its extras, what these need, and nothing else.

Nothing is fetched: the packages are links to those of the environment of the tests, so an environment is made in no time.
"""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 200.0


class Environment:
    """A virtual environment.

    `home`: its folder, which it makes.
    `variables`: the environment variables of its commands, but for `PYTHONPATH` and what names its Python.
    """

    def __init__(self, home: Path, variables: Mapping[str, str], with_pip: bool = False) -> None:
        subprocess.run([sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), home], check=True)
        (self.site,) = home.glob("lib/python*/site-packages")
        self.home, self.scripts = home, home / "bin"
        self.python = str(self.scripts / "python")
        self.variables = {
            **{name: value for name, value in variables.items() if name != "PYTHONPATH"},
            "PATH": f"{self.scripts}{os.pathsep}{variables['PATH']}",
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
        }

    def install(self, wheel: Path) -> None:
        pip = [self.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        self.run(*pip, str(wheel), cwd=wheel.parent)

    def link(self, distribution: Distribution) -> None:
        """Add an installed package by links to its files."""
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            found = Path(str(distribution.locate_file(name)))
            # Several packages may fill one folder: `google`.
            if found.exists() and not (self.site / name).exists():
                (self.site / name).symlink_to(found)

    def add_command(self) -> None:
        """Add the command `trident`, as pip writes it."""
        command = self.scripts / "trident"
        text = f"#!{self.python}\nimport sys\n\nfrom trident.cli import main\n\nsys.exit(main())\n"
        command.write_text(text, encoding="utf-8")
        command.chmod(0o755)

    def run(self, *command: str, cwd: Path) -> str:
        """Run a command of the environment, which knows nothing of the sources; returns what it printed."""
        done = subprocess.run(
            command, cwd=cwd, env=self.variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def build_wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> Distribution:
    """Unpack a wheel, so that environments can link to it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (found,) = Distribution.discover(path=[str(folder)])
    return found


def needed(project: Distribution, extras: Sequence[str]) -> list[Distribution]:
    """Return what pip would install with a project and these of its extras: its requirements, and theirs."""
    found: dict[str, Distribution] = {}
    waiting, done = [(project, frozenset(extras))], set()
    while waiting:
        each, wanted = waiting.pop()
        name = canonicalize_name(each.metadata["Name"])
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        found.setdefault(name, each)
        for requirement in map(Requirement, each.requires or ()):
            if _applies(requirement, wanted):
                is_own = canonicalize_name(requirement.name) == canonicalize_name(project.metadata["Name"])
                of = project if is_own else importlib.metadata.distribution(requirement.name)
                waiting.append((of, frozenset(requirement.extras)))
    return [each for each in found.values() if each is not project]


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""}))
