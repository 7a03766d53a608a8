"""Which files go into a package: the modules that a topology imports from its folder, packages whole, and what is named."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import all_suffixes
from pathlib import Path

from trident.cluster_errors import BadPackage

__all__ = ["MAX_BYTES", "files_below", "files_of", "find_module"]

MAX_BYTES = 100 << 20
"""The most that a package may hold."""

_OWN = ("trident", "states", "spouts")
_SKIPPED = {
    "__pycache__", "node_modules", "build", "dist", "trident-log", "trident-cluster", "trident-demo", "trident-demo-crash",
    "spark-warehouse", "metastore_db",
}  # fmt: skip
_LARGEST_TOLD = 5


def files_of(folder: Path, module: str, include: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files of a package by their places in it, in the order of these.

    Those are the module itself, every module that it or one of these imports from `folder` (also where an import runs
    late), packages whole with their data files, and the files and folders of `include`, relative to `folder`.

    Raises
    ------
    BadPackage
        Something of `include` is not there or outside of the folder, or the files are too large; the largest are named.
    """
    found: dict[str, Path] = {}
    waiting = [module.partition(".")[0]]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        place = find_module(folder, name)
        if name in seen or place is None or _is_own(name, place):
            continue
        seen.add(name)
        added = dict(files_below(place, folder))
        found |= added
        waiting += [each for path in added.values() if path.suffix == ".py" for each in _imports_of(path)]
    for each in include:
        found |= dict(files_below(_included(folder, each), folder))
    _check_size(found)
    return dict(sorted(found.items()))


def find_module(folder: Path, name: str) -> Path | None:
    """Return the file or the folder of a top-level module in `folder`, None if there is none."""
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


def _is_own(name: str, place: Path) -> bool:
    """Whether it is one of Trident's own packages, which every machine has."""
    return name in _OWN and (place / "py.typed").is_file()


def _included(folder: Path, name: str) -> Path:
    place = Path(os.path.normpath(folder / name))
    if not place.is_relative_to(folder):
        raise BadPackage(f"--include {name}: it is outside of {folder}, the folder that is packed")
    if not place.exists():
        raise BadPackage(f"--include {name}: there is no such file or folder in {folder}")
    return place


def _imports_of(path: Path) -> Iterator[str]:
    """Iterate over the first parts of the names of all modules that a source file imports, late imports included."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # the topology is loaded before it is sent; if it needs this file, that is told then
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
        raise BadPackage(
            f"the code has {_mib(total)}; a package may have {_mib(MAX_BYTES)}. The largest files are {_listed(largest)}. Keep "
            "data where the topology can read it from every machine"
        )


def _listed(sizes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{place} ({_mib(size)})" for place, size in sizes)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
