"""Packages as files: what they say of themselves, what goes into them, a zip whose bytes follow from that, careful reading."""

import ast
import hashlib
import io
import os
import re
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Self

from trident import __version__
from trident.cluster_state.cluster_records import ClusterRecord, TopologyKind
from trident.config import SETTINGS_FILE
from trident.errors import BadPackage
from trident.naming import amount

MANIFEST = "trident-package.json"  # the name of the manifest within a package

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # the minor version of this Python

MAX_BYTES = 100 << 20  # the most that a package may hold

_OWN = ("trident", "states", "spouts")
_SKIPPED = {
    "__pycache__", "node_modules", "build", "dist", "trident-log", "trident-cluster", "trident-demo", "trident-demo-crash",
    "spark-warehouse", "metastore_db",
}  # fmt: skip
_LARGEST_TOLD = 5
_MAX_ENTRIES = 50_000
_MAX_MANIFEST = 16 << 20
_MAX_NAME, _MAX_PATH = 255, 1024  # bytes, for file systems
_NO_NAME = re.compile("[\\\\\0\ud800-\udfff]")  # the last are bytes that are no UTF-8
MAX_ARCHIVE_BYTES = MAX_BYTES + (32 << 20)
"""The longest package that is taken: its files, the manifest, and what the format adds."""

_MADE = (1980, 1, 1, 0, 0, 0)  # the first date that a zip knows


class ComponentFacts(NamedTuple):
    """A spout or bolt: how many executors it asks for, and how many tasks it has, which no rebalance changes."""

    kind: str
    executors: int
    tasks: int


@dataclass(frozen=True)
class PackageManifest(ClusterRecord):
    """What a package says about itself, and which versions of Trident and of Python made it."""

    WHAT, ERROR = "manifest of a package", BadPackage

    target: str  # `MODULE:TOPOLOGY`, or `FILE.py:TOPOLOGY` with a file at the top of the package
    kind: TopologyKind
    name: str  # the name that the topology has unless it is submitted under another one
    trident: str = __version__
    python: str = PYTHON
    requirements: str = ""  # the text of a requirements file; "" if there is none
    components: Mapping[str, ComponentFacts] = field(default_factory=dict)  # of spouts and bolts, by id
    meaning: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # the SHA-256 of each file, by its path in the package

    @classmethod
    def _of(cls, read: Mapping[str, Any]) -> Self:
        # Whoever made it, each value is of its type.
        if read["kind"] not in ("trident", "bolts"):
            raise ValueError(f"kind {read['kind']!r}")
        texts = {name: str(read[name]) for name in ("target", "name", "trident", "python", "requirements")}
        components = {
            str(name): ComponentFacts(str(kind), int(executors), int(tasks))
            for name, (kind, executors, tasks) in read["components"].items()
        }
        meaning = {what: dict(read["meaning"].get(what, {})) for what in ("states", "streams")}
        files = {str(path): str(digest) for path, digest in read["files"].items()}
        return super()._of({**read, **texts, "components": components, "meaning": meaning, "files": files})

    def check_versions(self) -> None:
        """Raise `BadPackage` for code made by another minor version of Python, or release of Trident."""
        # Of Trident the first two numbers must agree: what a topology may declare does not change within them.
        if self.python != PYTHON:
            raise BadPackage(
                f"the package of {self.target} was made with Python {self.python}, and this machine runs {PYTHON}. Submit "
                f"it with Python {PYTHON}, or run the cluster's daemons with {self.python}"
            )
        if self.trident.split(".")[:2] != __version__.split(".")[:2]:
            raise BadPackage(
                f"the package of {self.target} was made with Trident {self.trident}, and this machine has {__version__}. "
                "Install the same version everywhere, then submit it again"
            )


def files_of(folder: Path, module: str, include: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files of a package by their places in it, in the order of these.

    They are the module, all that it or these import from `folder`, also late, packages whole; the settings; and `include`.
    """
    files: dict[str, Path] = {}
    waiting = [module.partition(".")[0]]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        place = find_module(folder, name)
        is_own = place is not None and name in _OWN and (place / "py.typed").is_file()  # which every machine has
        if name in seen or place is None or is_own:
            continue
        seen.add(name)
        added = dict(files_below(place, folder))
        files |= added
        waiting += [each for path in added.values() if path.suffix == ".py" for each in _imports_of(path)]
    for each in (*include, *([SETTINGS_FILE] if (folder / SETTINGS_FILE).is_file() else [])):
        files |= dict(files_below(_included_path(folder, each), folder))
    if other := [place for place in files if not _is_place(place)]:
        raise BadPackage(
            f"{other[0]!r} cannot be in a package: a path there is UTF-8 without backslashes, of at most {_MAX_PATH:,} bytes "
            "and names of 255. Rename it, or keep it elsewhere"
        )
    _check_size(files)
    return dict(sorted(files.items()))


def find_module(folder: Path, name: str) -> Path | None:
    package = folder / name
    if (package / "__init__.py").is_file():
        return package
    files = (folder / f"{name}{suffix}" for suffix in all_suffixes() if suffix != ".pyc")
    file = next((path for path in files if path.is_file()), None)
    return file or (package if name and package.is_dir() and next(package.glob("**/*.py"), None) else None)


def files_below(place: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Iterate over a file, or the files below a folder, by their places; without what is hidden, compiled or built."""
    if place.is_file():
        yield place.relative_to(folder).as_posix(), place
        return
    for base, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(base, name)))
        for name in sorted(names):
            path = Path(base, name)
            if not name.startswith(".") and path.suffix not in (".pyc", ".pyo") and path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _is_skipped(path: Path) -> bool:
    name = path.name
    return (
        name.startswith(".")
        or name in _SKIPPED
        or name.endswith(".egg-info")
        or path.is_symlink()  # may lead round in circles, or to all of a disk
        or (path / "pyvenv.cfg").is_file()
    )


def _included_path(folder: Path, name: str) -> Path:
    place = Path(os.path.normpath(folder / name))
    if not place.is_relative_to(folder):
        raise BadPackage(f"--include {name}: it is outside of {folder}, the folder that is packed")
    if not place.exists():
        raise BadPackage(f"--include {name}: there is no such file or folder in {folder}")
    return place


def _imports_of(path: Path) -> Iterator[str]:
    """Iterate over the first parts of the names of all modules that a source file imports, late imports included."""
    try:
        # Read, not imported: an import runs code, and finds only what this process needs.
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # the topology is loaded before it is sent; if it needs this file, the error comes then
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _check_size(files: dict[str, Path]) -> None:
    sizes = {place: path.stat().st_size for place, path in files.items()}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes.items(), key=lambda each: each[1], reverse=True)[:_LARGEST_TOLD]
        listed = ", ".join(f"{place} ({amount(size, 'bytes')})" for place, size in largest)
        raise BadPackage(
            f"the code has {amount(total, 'bytes')}; a package may have {amount(MAX_BYTES, 'bytes')}. The largest files "
            f"are {listed}. Keep data where the topology can read it from every machine"
        )


def archive_of(manifest: PackageManifest, files: Mapping[str, bytes]) -> bytes:
    # It is not compressed: the same files give the same bytes whatever zlib a machine has.
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {MANIFEST: manifest.to_bytes(), **dict(sorted(files.items()))}.items():
            entry = zipfile.ZipInfo(name, _MADE)
            # As on Unix whatever made it, or the bytes, and with them the name of the package, would be the machine's.
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return target.getvalue()


def read_manifest(source: BinaryIO) -> PackageManifest:
    with _open_package(source) as (_, manifest):
        return manifest


def read_package(source: BinaryIO, into: Path | None = None) -> PackageManifest:
    """Check each file of a package, which may mean harm, and write it into an empty folder if one is given."""
    with _open_package(source) as (archive, manifest):
        entries = {entry.filename: entry for entry in _check_entries(archive)}
        if differs := sorted(set(entries) ^ {MANIFEST, *manifest.files}):
            raise BadPackage(f"the package and its manifest name other files: {', '.join(differs[:5])}")
        for name, entry in entries.items():
            data = archive.read(entry)
            if name != MANIFEST and hashlib.sha256(data).hexdigest() != manifest.files[name]:
                raise BadPackage(f"the package is damaged: {name} is not what its manifest says")
            if into is not None:
                path = into.joinpath(*PurePosixPath(name).parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    return manifest


@contextmanager
def _open_package(source: BinaryIO) -> Iterator[tuple[zipfile.ZipFile, PackageManifest]]:
    """Open a package, and read its manifest; what the library finds wrong with it is a `BadPackage`."""
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise BadPackage(f"this is not the package of a topology: {error}") from error
    with archive:
        try:
            yield archive, _manifest(archive)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise BadPackage(f"the package cannot be unpacked: {error}") from error


def _manifest(archive: zipfile.ZipFile) -> PackageManifest:
    try:
        entry = archive.getinfo(MANIFEST)
    except KeyError:
        raise BadPackage(
            f"this is not the package of a topology: it has no {MANIFEST}. Make one with `trident submit`"
        ) from None
    if entry.file_size > _MAX_MANIFEST or entry.compress_type != zipfile.ZIP_STORED:
        raise BadPackage(f"{MANIFEST} of the package is not one that `trident submit` makes")
    return PackageManifest.of_bytes(archive.read(entry))


def _check_entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES or sum(each.file_size for each in entries) > MAX_ARCHIVE_BYTES:
        raise BadPackage(f"the package would unpack to more than {MAX_ARCHIVE_BYTES:,} bytes or {_MAX_ENTRIES:,} files")
    # Of a name that is a file and a folder one could not be written, once the other is unpacked.
    folders = {str(parent) for each in entries for parent in PurePosixPath(each.filename).parents}
    seen: set[str] = set()
    for each in entries:
        # As `trident submit` could have made it: a file as it is, and none is larger than the package itself.
        kind = stat.S_IFMT(each.external_attr >> 16)
        is_file = kind in (0, stat.S_IFREG) and each.compress_type == zipfile.ZIP_STORED and _is_place(each.filename)
        if each.filename in seen or each.filename in folders or not is_file:
            raise BadPackage(
                f"the package holds {each.filename!r}, which no package of `trident submit` does; it was not unpacked"
            )
        seen.add(each.filename)
    return entries


def _is_place(path: str) -> bool:
    """Whether a path stays in the folder of a package, and any file system takes it."""
    parts = PurePosixPath(path).parts
    return (
        len(parts) > 0
        and path == "/".join(parts)
        and not path.startswith("/")
        and ".." not in parts
        and _NO_NAME.search(path) is None
        and len(path.encode()) <= _MAX_PATH
        and max(len(part.encode()) for part in parts) <= _MAX_NAME
    )
