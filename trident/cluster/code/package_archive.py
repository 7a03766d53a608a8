"""Packages as files: a zip whose bytes follow from its contents, and the careful reading of one that came from elsewhere."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trident.cluster.code.package_files import MAX_BYTES
from trident.cluster.code.package_manifest import MANIFEST, PackageManifest
from trident.cluster_errors import BadPackage

__all__ = ["MAX_ARCHIVE_BYTES", "archive_of", "check_package", "read_manifest", "sha256_of", "unpack_into"]

_MAX_ENTRIES = 50_000
_MAX_MANIFEST = 16 << 20
_MAX_NAME, _MAX_PATH = 255, 1024  # bytes, for file systems
MAX_ARCHIVE_BYTES = MAX_BYTES + (32 << 20)
"""The longest package that is taken: its files, the manifest, and what the format adds."""

_MADE = (1980, 1, 1, 0, 0, 0)  # the first date that a zip knows
_CHUNK = 1 << 20


def archive_of(manifest: PackageManifest, files: Mapping[str, bytes]) -> bytes:
    """Return a package. It is not compressed: the same files give the same bytes whatever zlib a machine has."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {MANIFEST: manifest.to_bytes(), **dict(sorted(files.items()))}.items():
            entry = zipfile.ZipInfo(name, _MADE)
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return target.getvalue()


def sha256_of(source: BinaryIO) -> str:
    """Return the SHA-256 of what is left in a file."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def read_manifest(source: BinaryIO) -> PackageManifest:
    """Return the manifest of a package, without unpacking it.

    Raises
    ------
    BadPackage
        It is no package.
    """
    with _opened(source) as archive:
        return _manifest(archive)


def unpack_into(source: BinaryIO, folder: Path) -> PackageManifest:
    """Write the files of a package into an empty folder and check each; returns its manifest.

    Raises
    ------
    BadPackage
        It is no package, or one that was made to do harm: paths that lead out of the folder, links, two files of one
        name, more bytes than it has itself.
    """
    with _opened(source) as archive:
        manifest = _manifest(archive)
        for name, data in _files(archive, manifest):
            path = folder.joinpath(*PurePosixPath(name).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return manifest


def check_package(source: BinaryIO) -> PackageManifest:
    """Refuse what `unpack_into` refuses, without unpacking it; returns the manifest."""
    with _opened(source) as archive:
        manifest = _manifest(archive)
        for _ in _files(archive, manifest):
            pass
    return manifest


def _files(archive: zipfile.ZipFile, manifest: PackageManifest) -> Iterator[tuple[str, bytes]]:
    """Iterate over the names and the bytes of all files, each checked."""
    entries = {entry.filename: entry for entry in _checked(archive)}
    if set(entries) != {MANIFEST, *manifest.files}:
        differs = sorted(set(entries) ^ {MANIFEST, *manifest.files})
        raise BadPackage(f"the package and its manifest name other files: {', '.join(differs[:5])}")
    for name, entry in entries.items():
        data = archive.read(entry)
        if name != MANIFEST and hashlib.sha256(data).hexdigest() != manifest.files[name]:
            raise BadPackage(f"the package is damaged: {name} is not what its manifest says")
        yield name, data


class _opened:  # noqa: N801 - reads as a function
    """A package that is read: what the library finds wrong with it is a `BadPackage`."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def __enter__(self) -> zipfile.ZipFile:
        try:
            self._archive = zipfile.ZipFile(self._source)
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
            raise BadPackage(f"this is no package of a topology: {error}") from error
        return self._archive

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._archive.close()
        if isinstance(error, (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError)):
            raise BadPackage(f"the package cannot be unpacked: {error}") from error


def _manifest(archive: zipfile.ZipFile) -> PackageManifest:
    try:
        entry = archive.getinfo(MANIFEST)
    except KeyError:
        raise BadPackage(
            f"this is no package of a topology: it has no {MANIFEST}. Make one with `trident submit`"
        ) from None
    if entry.file_size > _MAX_MANIFEST or entry.compress_type != zipfile.ZIP_STORED:
        raise BadPackage(f"{MANIFEST} of the package is not one that `trident submit` makes")
    return PackageManifest.of_bytes(archive.read(entry))


def _checked(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES or sum(each.file_size for each in entries) > MAX_ARCHIVE_BYTES:
        raise BadPackage(f"the package would unpack to more than {MAX_ARCHIVE_BYTES:,} bytes or {_MAX_ENTRIES:,} files")
    folders = {str(parent) for each in entries for parent in PurePosixPath(each.filename).parents}
    seen: set[str] = set()
    for each in entries:
        parts = PurePosixPath(each.filename).parts
        kind = stat.S_IFMT(each.external_attr >> 16)
        if (
            not parts
            or each.filename != "/".join(parts)
            or each.filename.startswith("/")
            or ".." in parts
            or "\\" in each.filename
            or "\0" in each.filename
            or kind not in (0, stat.S_IFREG)
            or each.compress_type != zipfile.ZIP_STORED  # so none is larger than the package itself
            or each.filename in seen
            or each.filename in folders
            or len(os.fsencode(each.filename)) > _MAX_PATH
            or max(len(os.fsencode(part)) for part in parts) > _MAX_NAME
        ):
            raise BadPackage(
                f"the package holds {each.filename!r}, which no package of `trident submit` does; it was not unpacked"
            )
        seen.add(each.filename)
    return entries
