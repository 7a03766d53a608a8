"""A folder of packages, each in a file that is named by the SHA-256 of its bytes: `{sha256}.zip`.

A file is there whole or not at all, and it is checked whenever it is read. Several processes may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from trident.cluster.code.package_archive import (
    MAX_ARCHIVE_BYTES,
    PackageManifest,
    check_package,
    read_manifest,
)
from trident.cluster_errors import BadPackage, ClusterError
from trident.servers.local_processes import sync_directory

_SHA256 = re.compile(r"[0-9a-f]{64}")
UNUSED_S = 3600.0
"""How old a package is before it is removed: it is put before the topology that uses it is."""


class CodeStore:
    """The packages of a cluster. Threads may share it.

    `folder`: is made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(f"packages of code cannot be stored in {folder}: {error}") from error

    @contextmanager
    def incoming(self, sha256: str) -> Iterator[IncomingPackage]:
        """Take a package piece by piece; when the block has ended without an error, it is stored durably.

        Raises `BadPackage`: the bytes have another hash, or are too many. Nothing was stored.
        """
        _check_name(sha256)
        descriptor, name = tempfile.mkstemp(prefix=f"{sha256[:12]}-", suffix=".part", dir=self.folder)
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as target:
                package = IncomingPackage(target)
                yield package
                package.check(sha256)
                target.flush()
                os.fsync(target.fileno())
            part.rename(self.path(sha256))
            sync_directory(self.folder)
        except OSError as error:
            raise ClusterError(f"a package of code cannot be stored in {self.folder}: {error}") from error
        finally:
            part.unlink(missing_ok=True)

    def path(self, sha256: str) -> Path:
        """Return the file of a package, whether it is there or not."""
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
        try:
            actual = hashlib.file_digest(source, "sha256").hexdigest()
            if actual != sha256:
                raise BadPackage(
                    f"the package {path} is damaged: its bytes have the hash {actual}. Submit the topology, or upgrade it, "
                    "again: that replaces the file"
                )
            source.seek(0)
        except BaseException:
            source.close()
            raise
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
        """Return the manifest of a package whose every file a supervisor will take."""
        with self.open(sha256) as source:
            return check_package(source)

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


class IncomingPackage:
    """A package while it arrives."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self._size += len(data)
        if self._size > MAX_ARCHIVE_BYTES:
            raise BadPackage(f"the package has more than {MAX_ARCHIVE_BYTES:,} bytes, the most that is accepted")
        self._digest.update(data)
        self._target.write(data)

    def check(self, sha256: str) -> None:
        """Refuse bytes that are not those that were announced."""
        actual = self._digest.hexdigest()
        if actual != sha256:
            raise BadPackage(
                f"the package was announced with the hash {sha256}, but its bytes have {actual}; send it again"
            )


def _check_name(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise BadPackage(f"{sha256[:80]!r} is not the hash of a package: 64 hexadecimal digits in lower case")
