"""A supervisor's folder of unpacked packages: each once, however many drivers run it."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from trident.cluster.code.package_archive import unpack_into
from trident.cluster.code.package_manifest import MANIFEST, PackageManifest
from trident.cluster.code.python_requirements import install_requirements
from trident.cluster_errors import BadPackage, ClusterError

__all__ = ["CodeCache", "UnpackedCode"]


@dataclass(frozen=True)
class UnpackedCode:
    """A package on this machine.

    Attributes
    ----------
    folder
        Its files; nothing may be written there.
    python_path
        What a process that runs it has to have at the beginning of `PYTHONPATH`.
    """

    folder: Path
    manifest: PackageManifest
    python_path: tuple[str, ...]


class CodeCache:
    """Unpacked packages below a folder, by their hashes. Threads and processes may share it.

    Parameters
    ----------
    folder
        Gets `code/{sha256}` and `requirements/{hash}`.
    fetch
        Returns the bytes of a package; is called only for one that is not unpacked yet.
    """

    def __init__(self, folder: Path, fetch: Callable[[str], bytes]) -> None:
        self._code, self._requirements, self._fetch = folder / "code", folder / "requirements", fetch

    def unpacked(self, sha256: str) -> UnpackedCode:
        """Return a package, unpacked and with its requirements installed; fetched if it is not there.

        Raises
        ------
        BadPackage
            It is not what its hash says, was made to do harm, or was made by other versions.
        RequirementsFailed
            Its requirements cannot be installed; they may be another time.
        ClusterError
            It cannot be fetched, or this machine cannot write it.
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
                f"what was fetched as the package {sha256} is another one, or damaged; it was not unpacked"
            )
        self._code.mkdir(parents=True, exist_ok=True)
        with (self._code / f"{sha256}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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

    A machine that lost its power may have kept the names of files without their bytes.
    """
    try:
        manifest = PackageManifest.of_bytes((folder / MANIFEST).read_bytes())
        for name, digest in manifest.files.items():
            if hashlib.sha256((folder / os.fsdecode(name)).read_bytes()).hexdigest() != digest:
                return None
    except (OSError, BadPackage):
        return None
    return manifest
