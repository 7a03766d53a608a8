"""Packages in folders, each whole or not there: as Nimbus keeps them, and unpacked, as supervisors run them."""

import contextlib
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
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from trident.cluster.package_archive import (
    MANIFEST,
    MAX_ARCHIVE_BYTES,
    PYTHON,
    PackageManifest,
    read_manifest,
    read_package,
)
from trident.errors import BadPackage, ClusterError, RequirementsFailed
from trident.extras import pyspark_version
from trident.roles import close_on_error
from trident.servers.local_processes import run_captured, sync_directory

logger = logging.getLogger(__name__)

_LINES_TOLD = 12
_INSTALL_S = 1800.0
_DISTRIBUTION = "trident-spark"
_UNFINISHED = "unfinished-"
_SHA256 = re.compile(r"[0-9a-f]{64}")
UNUSED_S = 3600.0  # how old a package is before it is removed: it is put before the topology that uses it is


class CodeStore:
    """The packages of a cluster: `{sha256}.zip`, checked whenever one is read. Threads and processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(f"packages of code cannot be stored in {folder}: {error}") from error

    @contextmanager
    def incoming(self, sha256: str) -> Iterator[Callable[[bytes], None]]:
        """Give what takes a package piece by piece; after the block it is stored, or refused with `BadPackage`."""
        _check_name(sha256)
        descriptor, name = tempfile.mkstemp(prefix=f"{sha256[:12]}-", suffix=".part", dir=self.folder)
        part, digest = Path(name), hashlib.sha256()
        try:
            with os.fdopen(descriptor, "wb") as target:

                def take(data: bytes) -> None:
                    if target.tell() + len(data) > MAX_ARCHIVE_BYTES:
                        raise BadPackage(
                            f"the package has more than {MAX_ARCHIVE_BYTES:,} bytes, the most that is accepted"
                        )
                    digest.update(data)
                    target.write(data)

                yield take
                if digest.hexdigest() != sha256:
                    raise BadPackage(
                        f"the package was announced with the hash {sha256}, but its bytes have {digest.hexdigest()}; send it "
                        "again"
                    )
                target.flush()
                # Durable before it has its name: a package that is there after a power failure is whole.
                os.fsync(target.fileno())
            part.rename(self.path(sha256))
            sync_directory(self.folder)
        except OSError as error:
            raise ClusterError(f"a package of code cannot be stored in {self.folder}: {error}") from error
        finally:
            part.unlink(missing_ok=True)

    def path(self, sha256: str) -> Path:
        _check_name(sha256)
        return self.folder / f"{sha256}.zip"

    def get(self, sha256: str) -> bytes:
        """Return the bytes of a package. Raises `BadPackage`: it is not there, or damaged."""
        with self.open(sha256) as source:
            return source.read()

    def open(self, sha256: str) -> BinaryIO:
        """Open a package for reading, checked as `get` does; the caller closes it."""
        path = self.path(sha256)
        try:
            source = path.open("rb")
        except FileNotFoundError:
            raise BadPackage(
                f"there is no package {sha256} in {self.folder}; submit the topology, or upgrade it, again"
            ) from None
        with close_on_error(source.close):
            actual = hashlib.file_digest(source, "sha256").hexdigest()
            if actual != sha256:
                raise BadPackage(
                    f"the package {path} is damaged: its bytes have the hash {actual}. Submit the topology, or upgrade it, "
                    "again: that replaces the file"
                )
            source.seek(0)
        return source

    def is_there(self, sha256: str) -> bool:
        """Whether a package is there and whole. Then it counts as new again, for `remove_unused`: it is about to be used."""
        try:
            self.open(sha256).close()
            os.utime(self.path(sha256))
        except (BadPackage, FileNotFoundError):
            return False
        return True

    def manifest(self, sha256: str) -> PackageManifest:
        with self.open(sha256) as source:
            return read_manifest(source)

    def check(self, sha256: str) -> PackageManifest:
        # Of a package whose every file a supervisor will take: else each of them would refuse it, again and again.
        with self.open(sha256) as source:
            return read_package(source)

    def hashes(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.zip") if _SHA256.fullmatch(path.stem))

    def remove_unused(self, used: Collection[str], older_than_s: float = UNUSED_S) -> list[str]:
        """Remove the packages, and what crashes left of some, that are not used and not new; returns the names of packages."""
        before = time.time() - older_than_s
        removed = []
        for path in [*self.folder.glob("*.zip"), *self.folder.glob("*.part")]:
            if path.stem in used:
                continue
            with contextlib.suppress(FileNotFoundError):  # another Nimbus removes as well
                if path.stat().st_mtime < before:
                    path.unlink()
                    removed += [path.stem] if path.suffix == ".zip" else []
        return sorted(removed)


def _check_name(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise BadPackage(f"{sha256[:80]!r} is not the hash of a package: 64 hexadecimal digits in lower case")


@dataclass(frozen=True)
class UnpackedCode:
    """A package on this machine."""

    folder: Path  # its files; nothing may be written there
    manifest: PackageManifest
    python_path: tuple[str, ...]  # what a process that runs it has to have at the beginning of `PYTHONPATH`


class CodeCache:
    """Packages unpacked once, as `code/{sha256}` and `requirements/{hash}`; threads and processes may share them."""

    def __init__(self, folder: Path, fetch: Callable[[str], bytes]) -> None:
        self._code, self._requirements, self._fetch = folder / "code", folder / "requirements", fetch

    def prepare(self, sha256: str) -> UnpackedCode:
        """Return a package, unpacked and with its requirements installed; fetched if it is not there."""
        folder = self._code / sha256
        try:
            manifest = _intact_manifest(folder) or self._unpack(sha256, folder)
            try:
                manifest.check_versions()
            except BadPackage as error:  # here, though not where it was submitted: another machine may run it
                raise RequirementsFailed(str(error)) from error
            paths = [str(folder)]
            if manifest.requirements:
                pins = _pins()
                name = hashlib.sha256("\0".join([PYTHON, manifest.requirements, pins]).encode()).hexdigest()
                install = partial(_install, manifest.requirements, pins, self._requirements)
                paths.append(str(_made_once(self._requirements / name, install)))
        except OSError as error:
            raise ClusterError(f"the package {sha256} cannot be unpacked below {self._code}: {error}") from error
        return UnpackedCode(folder, manifest, tuple(paths))

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove the packages that are not used; requirements stay, for the next package that has them."""
        if self._code.is_dir():
            for each in self._code.iterdir():
                if each.is_dir() and each.name not in used and not each.name.startswith(_UNFINISHED):
                    shutil.rmtree(each, ignore_errors=True)

    def _unpack(self, sha256: str, folder: Path) -> PackageManifest:
        data = self._fetch(sha256)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadPackage(
                f"what was fetched as the package {sha256} is a different one, or damaged; it was not unpacked"
            )
        manifest = read_manifest(io.BytesIO(data))
        _made_once(folder, partial(read_package, io.BytesIO(data)), lambda place: _intact_manifest(place) is not None)
        return manifest


def _made_once(target: Path, make: Callable[[Path], object], is_whole: Callable[[Path], bool] = Path.is_dir) -> Path:
    """Return a folder that is made if it is not there: by one of those that want it, the others wait."""
    # Aside, so that it is whole when it has its name.
    if is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_whole(target):
            unfinished = f"{_UNFINISHED}{target.name}-"
            for left in target.parent.glob(f"{unfinished}*"):  # by a process that was killed: it had this lock
                shutil.rmtree(left, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix=unfinished, dir=target.parent))
            try:
                make(aside)
                aside.chmod(0o755)
                os.sync()  # else a power failure may leave the name of a folder whose files are empty, for good
                shutil.rmtree(target, ignore_errors=True)  # one that was damaged
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target


def _intact_manifest(folder: Path) -> PackageManifest | None:
    """Return the manifest of an unpacked package, None if a file of it is not as it was."""
    # After a power failure a machine may have the names of files without their bytes.
    try:
        manifest = PackageManifest.of_bytes((folder / MANIFEST).read_bytes())
        for name, digest in manifest.files.items():
            if hashlib.sha256((folder / os.fsdecode(name)).read_bytes()).hexdigest() != digest:
                return None
    except (OSError, BadPackage):
        return None
    return manifest


def _install(requirements: str, pins: str, folder: Path, into: Path) -> None:
    """Install requirements by the configuration of the user's pip; what Trident needs keeps its version: `pins`."""
    listed = ", ".join(requirements.split("\n")).strip(", ")
    logger.info("installing requirements into %s: %s", folder, listed)
    wanted, constraints = into / "requirements.txt", into / "constraints.txt"
    wanted.write_text(requirements, encoding="utf-8")
    constraints.write_text(pins, encoding="utf-8")
    # Beside what is installed here, not into it: topologies of one machine may need other versions.
    arguments = ["install", "--target", into, "--requirement", wanted, "--constraint", constraints]
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    try:
        failed = _try_command([*_pip(folder), *map(str, arguments), *quiet])
    except subprocess.TimeoutExpired:
        raise RequirementsFailed(
            f"the requirements were not installed within {_INSTALL_S:.0f} seconds: {listed}"
        ) from None
    if failed is not None:
        last = "\n".join(f"  {line}" for line in failed.splitlines()[-_LINES_TOLD:])
        raise RequirementsFailed(f"the requirements cannot be installed ({listed}); pip said:\n{last}")


def _try_command(command: list[str]) -> str | None:
    done = run_captured(command, errors="replace", timeout=_INSTALL_S)
    return (done.stdout + done.stderr).strip() if done.returncode else None


def _pip(folder: Path) -> list[str]:
    """Return the command of a pip that installs for this Python: its own, or the pip of an environment made for it."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # Environments that uv makes have no pip. The python of one is a link to this one, so it may be moved.
    python = Path("bin", "python")
    home = _made_once(folder / f"pip-{PYTHON}", _make_pip, lambda place: (place / python).exists())
    return [str(home / python), "-m", "pip"]


def _make_pip(home: Path) -> None:
    if (said := _try_command([sys.executable, "-m", "venv", str(home)])) is not None:
        raise RequirementsFailed(
            f"the requirements of a package need pip, and {sys.executable} has none; `python -m venv` could not make one: "
            f"{said}. Install pip for this Python"
        )


def _pins() -> str:
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
