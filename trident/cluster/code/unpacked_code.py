"""A supervisor's folder of unpacked packages and of their requirements: each once, however many drivers run it."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trident.cluster.code.package_archive import MANIFEST, PYTHON, PackageManifest, unpack_into
from trident.cluster_errors import BadPackage, ClusterError, RequirementsFailed
from trident.extras import pyspark_version

logger = logging.getLogger(__name__)

_LINES_TOLD = 12
_INSTALL_S = 1800.0
_DISTRIBUTION = "trident-spark"


@dataclass(frozen=True)
class UnpackedCode:
    """A package on this machine.

    `folder`: its files; nothing may be written there.
    `python_path`: what a process that runs it has to have at the beginning of `PYTHONPATH`.
    """

    folder: Path
    manifest: PackageManifest
    python_path: tuple[str, ...]


class CodeCache:
    """Unpacked packages below a folder, by their hashes. Threads and processes may share it.

    `folder`: gets `code/{sha256}` and `requirements/{hash}`.
    `fetch`: returns the bytes of a package; is called only for one that is not unpacked yet.
    """

    def __init__(self, folder: Path, fetch: Callable[[str], bytes]) -> None:
        self._code, self._requirements, self._fetch = folder / "code", folder / "requirements", fetch

    def unpacked(self, sha256: str) -> UnpackedCode:
        """Return a package, unpacked and with its requirements installed; fetched if it is not there.

        Raises `BadPackage`: it is not what its hash says, was made to do harm, or was made by other versions.
        Raises `RequirementsFailed`: its requirements cannot be installed; they may be another time.
        Raises `ClusterError`: it cannot be fetched, or this machine cannot write it.
        """
        folder = self._code / sha256
        try:
            manifest = _found(folder) or self._unpack(sha256, folder)
            manifest.check_versions()
            paths = [str(folder)]
            if manifest.requirements:
                paths.append(str(install_requirements(manifest.requirements, self._requirements)))
        except OSError as error:
            raise ClusterError(f"the package {sha256} cannot be unpacked below {self._code}: {error}") from error
        return UnpackedCode(folder, manifest, tuple(paths))

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove the packages that are not used; requirements stay, for the next package that has them."""
        if self._code.is_dir():
            for each in self._code.iterdir():
                if each.is_dir() and each.name not in used and not each.name.startswith("unpacking-"):
                    shutil.rmtree(each, ignore_errors=True)

    def _unpack(self, sha256: str, folder: Path) -> PackageManifest:
        data = self._fetch(sha256)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadPackage(
                f"what was fetched as the package {sha256} is a different one, or damaged; it was not unpacked"
            )
        self._code.mkdir(parents=True, exist_ok=True)
        with _locked(self._code / f"{sha256}.lock"):
            return _found(folder) or self._replace(data, folder)

    def _replace(self, data: bytes, folder: Path) -> PackageManifest:
        made = Path(tempfile.mkdtemp(prefix="unpacking-", dir=self._code))
        try:
            manifest = unpack_into(io.BytesIO(data), made)
            made.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)  # one that was damaged
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return manifest


def _found(folder: Path) -> PackageManifest | None:
    """Return the manifest of an unpacked package, None if it is not there or a file of it is not as it was.

    After a power failure a machine may have the names of files without their bytes.
    """
    try:
        manifest = PackageManifest.of_bytes((folder / MANIFEST).read_bytes())
        for name, digest in manifest.files.items():
            if hashlib.sha256((folder / os.fsdecode(name)).read_bytes()).hexdigest() != digest:
                return None
    except (OSError, BadPackage):
        return None
    return manifest


def install_requirements(requirements: str, folder: Path) -> Path:
    """Return the folder below `folder` that has these requirements, installed if it is not there yet.

    pip reads the configuration of the user whose process this is (an index, a proxy, a folder of wheels). What Trident
    itself needs keeps the version that is installed here.

    Raises `RequirementsFailed`: pip could not install them, and the message has its last lines; or there is no pip, and none
    could be made.
    """
    pins = _pins()
    name = hashlib.sha256("\0".join([PYTHON, requirements, pins]).encode()).hexdigest()
    target = folder / name
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{name}.lock"):  # two topologies with the same requirements: one installs, one waits
        if not target.is_dir():
            _install(requirements, pins, folder, target)
    return target


def _install(requirements: str, pins: str, folder: Path, target: Path) -> None:
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
        _run([*_pip(folder), *map(str, arguments), *quiet], requirements)
        into.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run(command: Sequence[str], requirements: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequirementsFailed(
            f"the requirements were not installed within {_INSTALL_S:.0f} seconds: {_listed(requirements)}"
        ) from None
    if done.returncode:
        last = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-_LINES_TOLD:])
        raise RequirementsFailed(f"the requirements cannot be installed ({_listed(requirements)}); pip said:\n{last}")


def _listed(requirements: str) -> str:
    return ", ".join(requirements.split("\n")).strip(", ")


def _pip(folder: Path) -> list[str]:
    """Return the command of a pip that installs for this Python: its own, or the pip of an environment made for it."""
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
    pins = {name: importlib.metadata.version(name) for name in names}
    spark = pyspark_version()
    if spark is not None and re.fullmatch(r"[\d.]+", spark):  # pip refuses some names of a vendor's versions
        pins["pyspark"] = spark
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
