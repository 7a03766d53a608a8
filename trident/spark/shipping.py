"""Gives the executors of a cluster the driver's code: Trident itself, and the modules that `trident run` was given."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import marshal
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_OWN = ("trident", "states", "spouts")
_folders: list[Path] = []
_UNCHECKED = 1  # bytecode that is not compared with the time of its source, which would depend on a machine's time zone
_NOT_SHIPPED = ("__pycache__", ".pyc", ".pyo")
_shipping = threading.Lock()  # topologies of one session may start side by side


def ship_modules_of(folder: Path) -> None:
    """From now on ship the modules that this process has loaded from a folder, packages whole."""
    if folder not in _folders:
        _folders.append(folder)


def ship_code(context: SparkContext) -> None:
    """Give the code to all executors of a cluster, those that come later too. A local Spark has the driver's paths."""
    if (context.master or "").startswith("local"):
        return
    with _shipping:
        files = dict(_files())
        archive = _archive(files)
        if any(str(one).endswith(f"/{archive.name}") for one in context.listFiles):
            return  # an earlier topology of this session has shipped it
        logger.debug("shipping %d files to the executors: %s", len(files), archive)
        context.addPyFile(str(archive))


def ship_code_to(session: SparkSession) -> None:
    """Give the code to the executors of a session of Spark Connect. What was shipped to it is not sent again."""
    with _shipping:
        session.addArtifacts(str(_archive(dict(_files()))), pyfile=True)


def _files() -> Iterator[tuple[str, Path]]:
    """Iterate over what is shipped: its place in the archive, and its path."""
    for name in _OWN:
        yield from _own_files(name)
    for name, module in sorted(sys.modules.items()):
        # the file of a module, or the folder of a package
        path = next(iter(vars(module).get("__path__") or [vars(module).get("__file__")]), None)
        place = Path(path) if isinstance(path, str) else None
        if "." in name or name in (*_OWN, "__main__") or place is None or place.parent not in _folders:
            continue
        yield from _files_of(place) if place.is_dir() else [(place.name, place)]


@cache
def _own_files(name: str) -> tuple[tuple[str, Path], ...]:
    """Return the files of one of our packages, as at the first start: shipping puts the archive before what is installed."""
    spec = importlib.util.find_spec(name)
    return () if spec is None or spec.origin is None else tuple(_files_of(Path(spec.origin).parent))


def _files_of(package: Path) -> Iterator[tuple[str, Path]]:
    for path in [package, *sorted(package.rglob("*"))]:
        if not str(path).endswith(_NOT_SHIPPED) and "__pycache__" not in path.parts:
            yield str(path.relative_to(package.parent)), path


def _archive(files: dict[str, Path]) -> Path:
    """Return a zip of files. Its name says what is in it: other content is another zip, which comes first."""
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b"") + b"\0")
    archive = _folder() / f"trident-code-{digest.hexdigest()[:12]}.zip"
    if not archive.exists():
        part = archive.with_suffix(".part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as target:
            for name, path in files.items():
                target.write(path, name)  # of a folder an entry, without which it is no namespace package
                if path.suffix == ".py":
                    target.writestr(f"{name}c", _bytecode(name, path))
        part.rename(archive)
    return archive


def _bytecode(name: str, path: Path) -> bytes:
    """Return a module compiled: each worker process imports it, and would compile it, which takes three times as long."""
    module = name.removesuffix(".py").replace("/", ".")
    code = SourceFileLoader(module, str(path)).get_code(module)
    assert isinstance(code, CodeType)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little")
    return header + importlib.util.source_hash(path.read_bytes()) + marshal.dumps(code)


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="trident-code-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may ask for it as long as this process runs
    return Path(folder)
