"""Installs the requirements of a package with pip, each set of them once, into a folder of its own."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trident.cluster.code.package_manifest import PYTHON
from trident.cluster_errors import RequirementsFailed

__all__ = ["install_requirements"]

logger = logging.getLogger(__name__)

_LINES_TOLD = 12
_DISTRIBUTION = "trident-spark"


def install_requirements(requirements: str, folder: Path, timeout_s: float = 1800.0) -> Path:
    """Return the folder below `folder` that has these requirements, installed if it is not there yet.

    pip reads the configuration of the user whose process this is (an index, a proxy, a folder of wheels). What Trident
    itself needs keeps the version that is installed here.

    Raises
    ------
    RequirementsFailed
        pip could not install them, and the message has its last lines; or there is no pip, and none could be made.
    """
    pins = _pins()
    name = hashlib.sha256("\0".join([PYTHON, requirements, pins]).encode()).hexdigest()
    target = folder / name
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{name}.lock"):  # two topologies with the same requirements: one installs, one waits
        if not target.is_dir():
            _install(requirements, pins, folder, target, timeout_s)
    return target


def _install(requirements: str, pins: str, folder: Path, target: Path, timeout_s: float) -> None:
    logger.info("installing requirements into %s: %s", target, ", ".join(requirements.split("\n")))
    made = Path(tempfile.mkdtemp(prefix="installing-", dir=folder))
    try:
        wanted, constraints = made / "requirements.txt", made / "constraints.txt"
        wanted.write_text(requirements, encoding="utf-8")
        constraints.write_text(pins, encoding="utf-8")
        into = made / "packages"
        into.mkdir()
        arguments = ["install", "--target", into, "--requirement", wanted, "--constraint", constraints]
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        _run([*_pip(folder), *map(str, arguments), *quiet], requirements, timeout_s)
        into.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run(command: Sequence[str], requirements: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequirementsFailed(
            f"the requirements were not installed within {timeout_s:.0f} seconds: {_listed(requirements)}"
        ) from None
    if done.returncode:
        last = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-_LINES_TOLD:])
        raise RequirementsFailed(f"the requirements cannot be installed ({_listed(requirements)}); pip said:\n{last}")


def _listed(requirements: str) -> str:
    return ", ".join(requirements.split("\n")).strip(", ")


def _pip(folder: Path) -> list[str]:
    """Return the command of a pip that installs for this Python: its own, or that of an environment made for it."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    home = folder / f"pip-{PYTHON}"  # environments that uv makes have no pip
    if not (home / "bin" / "python").exists():
        with _locked(folder / "pip.lock"):
            if not (home / "bin" / "python").exists():
                _make_pip(home)
    return [str(home / "bin" / "python"), "-m", "pip"]


def _make_pip(home: Path) -> None:
    made = home.with_name(f"{home.name}-new")
    shutil.rmtree(made, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(made)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RequirementsFailed(
            f"the requirements of a package need pip, and {sys.executable} has none; `python -m venv` could not make one: "
            f"{(done.stdout + done.stderr).strip()}. Install pip for this Python"
        )
    made.rename(home)  # its python is a link to this one, so it may be moved


def _pins() -> str:
    """Return constraints for the packages that Trident needs itself, in the versions that are installed here."""
    try:
        needed = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        needed = []
    names = {re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] for each in needed if "extra ==" not in each}
    return "".join(f"{name}=={importlib.metadata.version(name)}\n" for name in sorted(names, key=str.lower))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
