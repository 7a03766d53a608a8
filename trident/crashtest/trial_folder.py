"""Copies the folder of a job, so that each run has its own inputs, checkpoint and tables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trident.errors import TridentError

__all__ = ["LEFT_OUT", "copy_folder"]

LEFT_OUT = (".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""Folders that no job reads or writes."""

_MOST_FILES = 100_000
_SAY_EACH = 100 * 1_000_000


def copy_folder(folder: Path, copy: Path, most_bytes: int, on_progress: Callable[[str], None]) -> None:
    """Copy a folder. What a link leads to is copied too, so that nothing of the copy leads back to the original.

    Parameters
    ----------
    most_bytes
        The size that it may have.
    on_progress
        Told of each 100 MB.

    Raises
    ------
    TridentError
        It is larger, or has too many files.
    """
    copied, files = 0, 0

    def copy_file(source: str, target: str) -> None:
        nonlocal copied, files
        size = Path(source).stat().st_size
        if copied // _SAY_EACH < (copied + size) // _SAY_EACH:
            on_progress(f"copying {folder}: {(copied + size) / 1e6:,.0f} MB so far")
        copied, files = copied + size, files + 1
        if copied > most_bytes or files > _MOST_FILES:
            raise TridentError(
                f"each run needs a copy of {folder}, which has more than {most_bytes / 1e6:,.0f} MB or {_MOST_FILES:,} files. "
                "Put the job and a small input into a folder of their own and name it with --folder, or allow more with "
                "--max-copy-mb"
            )
        shutil.copy2(source, target)

    def left_out(place: str, names: list[str]) -> list[str]:
        special = [name for name in names if _is_special(Path(place, name))]
        return [*special, *(name for name in names if name in LEFT_OUT)]

    shutil.copytree(folder, copy, ignore=left_out, copy_function=copy_file, ignore_dangling_symlinks=True)


def _is_special(path: Path) -> bool:
    """Whether it is neither a file nor a folder (a socket, a pipe), or a link back to a folder that it is in."""
    if path.is_symlink() and path.is_dir():
        return Path(os.path.realpath(path)) in path.parent.resolve().parents or path.resolve() == path.parent.resolve()
    return path.exists() and not path.is_file() and not path.is_dir()
