"""The text of the demo, and its words counted once more: by plain Python, without any of the framework."""

from __future__ import annotations

import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trident.errors import SpoutError

__all__ = ["DemoText", "count_words", "find_text", "standard_library"]

_BOM = b"\xef\xbb\xbf"
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class DemoText:
    """The files that the demo reads.

    Attributes
    ----------
    files
        Absolute paths, sorted.
    size, lines
        Bytes and lines of all of them.
    skipped
        How many files were left out because they are not UTF-8 text.
    """

    files: tuple[str, ...]
    size: int
    lines: int
    skipped: int


def standard_library() -> list[Path]:
    """Return the Python sources of this interpreter's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    return [path for path in _walk(library) if path.suffix == ".py"]


def find_text(paths: Sequence[Path]) -> DemoText:
    """Find the UTF-8 text files among `paths` and in folders of them; hidden files and links to folders are left out.

    Raises
    ------
    SpoutError
        A path is not there or cannot be read, or there is no text at all.
    """
    files: list[str] = []
    size = lines = skipped = 0
    for path in sorted({each.resolve() for root in paths for each in _files_of(root)}):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SpoutError(f"cannot read {path}: {error.strerror}. Leave it out, or make it readable") from error
        if not _is_text(data):
            skipped += 1
        elif data:
            files.append(str(path))
            size += len(data)
            lines += data.count(b"\n") + (not data.endswith(b"\n"))
    if not files:
        raise SpoutError(f"no text to count in {', '.join(map(str, paths))}: {skipped} files, none of them UTF-8 text")
    return DemoText(tuple(files), size, lines, skipped)


def count_words(files: Sequence[str]) -> Counter[str]:
    """Count the words of files: lines are split at single spaces, and an empty text is not a word."""
    counts: Counter[str] = Counter()
    for file in files:
        text = Path(file).read_bytes().removeprefix(_BOM).decode()
        for line in text.split("\n"):
            counts.update(line.removesuffix("\r").split(" "))
    counts.pop("", None)
    return counts


def _files_of(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from _walk(root)
    elif root.is_file():
        yield root
    else:
        raise SpoutError(f"cannot count the words of {root}: there is no such file or folder")


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_THE_LIBRARY and not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
