"""Which files a spout reads: from directories, globs and names to sorted paths with their sizes and stamps."""

# Paths are text from the system, because a Path per file would cost more than its stat.
# ruff: noqa: PTH100, PTH111, PTH112, PTH114, PTH116, PTH119, PTH207

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Container, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from typing import NamedTuple

from trident.errors import SpoutError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_Identity = tuple[int, int]
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # also a link that leads nowhere, or to itself


class Listed(NamedTuple):
    """A file as it was listed: its bytes, and what is another one as soon as the file was changed or replaced."""

    size: int
    stamp: tuple[int, int]


@dataclass(frozen=True)
class FileSource:
    """What the user named. Every file is listed once, under its own name rather than a symbolic link's.

    Of several names of its own (hard links) it has the one that is known already, else the first by path.
    """

    roots: tuple[str, ...]  # directories, globs or files
    patterns: tuple[str, ...]  # of names of files in directories; one must match
    recursive: bool  # also `**` in globs
    skips_underscored: bool = False  # Spark has what is not finished, or no data, under such names

    @staticmethod
    def of(paths: Paths, patterns: str | Sequence[str], recursive: bool, skips_underscored: bool = False) -> FileSource:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given or "" in given:
            raise ValueError(f"the spout was given paths={paths!r}; name a directory, a glob or a file")
        # Absolute, because workers have another working directory.
        roots = tuple(os.path.abspath(os.path.expanduser(os.fspath(one))) for one in given)
        chosen = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        return FileSource(roots, chosen, recursive, skips_underscored)

    def files(self, known: Container[str] = ()) -> dict[str, Listed]:
        """List all files, sorted by path; one `stat` a file, none is opened. `known`: paths of files that were read.

        Raises `SpoutError`: what was named is not there, or no regular file; or a directory cannot be listed.
        """
        walk = _Walk(self)
        for root in self.roots:
            if _is_glob(root):
                walk.add_glob(root)
            else:
                walk.add_named(root)
        return walk.finish(known)

    def reaches(self, path: str) -> bool:
        """Whether a path is one of those that were named, or below one, or below the folder of a glob."""
        roots = (_folder_of(root) if _is_glob(root) else root for root in self.roots)
        return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)

    def covers(self, folder: str, name: str) -> bool:
        """Whether a file of this name in a folder would be read, of which nothing need be there yet; never said of globs."""
        folder = os.path.realpath(folder)
        roots = [real for real in map(os.path.realpath, self.roots) if f"{folder}/".startswith(f"{real}/")]
        below = [folder.removeprefix(real).split("/")[1:] for real in roots]
        return self.matches(name) and any(
            not parts or (self.recursive and not any(map(self.skips, parts))) for parts in below
        )

    @cached_property
    def _hidden_prefixes(self) -> tuple[str, ...]:
        marks = "._" if self.skips_underscored else "."
        return tuple(mark for mark in marks if not any(one.startswith(mark) for one in self.patterns))

    def skips(self, name: str) -> bool:
        return name.startswith(self._hidden_prefixes) and (name[0] == "." or "=" not in name)

    def matches(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.patterns)

    def __str__(self) -> str:
        inside = f" (files that match {' or '.join(map(repr, self.patterns))})"
        return ", ".join(root + inside if os.path.isdir(root) else root for root in self.roots)


class _Walk:
    """One pass over the tree. Links wait until all that is not a link is seen, so real names win and loops end."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._files: dict[str, Listed] = {}
        self._first: dict[_Identity, str] = {}
        self._names: dict[_Identity, set[str]] = {}  # of the files that have several
        self._seen_dirs: set[_Identity] = set()
        self._dirs: list[str] = []
        self._links: list[tuple[str, bool]] = []  # and whether one is in a directory that is read

    def add_named(self, path: str) -> None:
        status = _status_of(path)
        if status is None:
            raise SpoutError(f"cannot read files from {path}: there is no such file or directory")
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
            raise SpoutError(f"cannot read files from {path}: it is neither a regular file nor a directory")
        self._take(path, status)

    def add_glob(self, root: str) -> None:
        """Take the files that match; what else does, such as a directory, is passed over."""
        folder = _folder_of(root)
        self._scan(folder, is_read=False)  # where a directory cannot be listed, a glob says that nothing is in it
        fixed = len(folder.split("/")) if folder != "/" else 1
        for path in glob.iglob(root, recursive=self._source.recursive):
            if any(map(self._source.skips, path.split("/")[fixed:])):
                continue
            if os.path.islink(path):
                self._links.append((path, False))
            elif (status := _status_of(path)) is not None and not stat.S_ISDIR(status.st_mode):
                self._take(path, status)

    def finish(self, known: Container[str]) -> dict[str, Listed]:
        while self._dirs or self._links:
            while self._dirs:
                self._scan(self._dirs.pop())
            links, self._links = sorted(self._links), []
            for path, in_directory in links:
                self._follow(path, in_directory)
        for names in self._names.values():
            for other in sorted(names, key=lambda path: (path not in known, path))[1:]:
                del self._files[other]
        return dict(sorted(self._files.items()))

    def _scan(self, directory: str, is_read: bool = True) -> None:
        try:
            with os.scandir(directory) as entries:
                for entry in entries if is_read else ():
                    self._visit(entry)
        except (FileNotFoundError, NotADirectoryError):
            return  # removed since it was found; its files are gone with it
        except OSError as error:
            raise SpoutError(
                f"cannot list the directory {directory}: {error.strerror}; "
                "make it readable for the user that runs the driver, or leave it out with a glob"
            ) from error

    def _visit(self, entry: os.DirEntry[str]) -> None:
        if self._source.skips(entry.name):
            return
        if entry.is_symlink():
            self._links.append((entry.path, True))
        elif self._source.recursive if entry.is_dir(follow_symlinks=False) else self._source.matches(entry.name):
            try:
                self._take(entry.path, entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                return

    def _follow(self, path: str, in_directory: bool) -> None:
        status = _status_of(path)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            is_read = self._source.recursive and in_directory
        else:
            is_read = not in_directory or self._source.matches(os.path.basename(path))
        if is_read and (status.st_dev, status.st_ino) not in self._first:
            self._take(path, status)

    def _take(self, path: str, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            self._files[path] = Listed(status.st_size, (status.st_ino, status.st_ctime_ns))
            if (first := self._first.setdefault(identity, path)) != path:
                self._names.setdefault(identity, {first}).add(path)
        elif stat.S_ISDIR(status.st_mode) and identity not in self._seen_dirs:
            self._seen_dirs.add(identity)
            self._dirs.append(path)


def _status_of(path: str) -> os.stat_result | None:
    """Return what a path leads to; None if that is nothing."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise SpoutError(f"cannot read files from {path}: {error.strerror}") from error


def _is_glob(root: str) -> bool:
    return glob.has_magic(root) and not os.path.lexists(root)


def _folder_of(root: str) -> str:
    before = root[: re.search(r"[*?[]", root).start()]  # type: ignore[union-attr]
    return before.rpartition("/")[0] or "/"
