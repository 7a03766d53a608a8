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


class Listed(NamedTuple):
    """A file as it was listed: its size in bytes, and what is another one as soon as the file was changed or replaced."""

    size: int
    stamp: tuple[int, int]


@dataclass(frozen=True)
class FileSource:
    """What the user named. Every file is listed once, under its own name rather than a symbolic link's.

    Of several names of its own (hard links) it has the one that is known already, else the first by path.

    `roots`: directories, globs or files.
    `patterns`: what the names of files inside directories must match, one of them; a leading dot only if the pattern has one.
    `recursive`: whether directories inside directories are read, and `**` in globs.
    `skips_underscored`: whether names with a leading underscore are skipped as those with a dot are, unless there is a `=` in
    them. Spark and others have files that are not finished, or no data, under such names.
    """

    roots: tuple[str, ...]
    patterns: tuple[str, ...]
    recursive: bool
    skips_underscored: bool = False

    @staticmethod
    def of(paths: Paths, patterns: str | Sequence[str], recursive: bool, skips_underscored: bool = False) -> FileSource:
        """Check the arguments and make the paths absolute: workers have another working directory."""
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given or "" in given:
            raise ValueError(f"the spout was given paths={paths!r}; name a directory, a glob or a file")
        roots = tuple(os.path.abspath(os.path.expanduser(os.fspath(one))) for one in given)
        return FileSource(
            roots, (patterns,) if isinstance(patterns, str) else tuple(patterns), recursive, skips_underscored
        )

    def files(self, known: Container[str] = ()) -> dict[str, Listed]:
        """List all files, sorted by path. One `stat` a file, no file is opened.

        `known`: paths of files that were read.
        Raises `SpoutError`: a directory or file that was named is not there, is no regular file, or a directory cannot be
        listed.
        """
        walk = _Walk(self)
        for root in self.roots:
            if _is_glob(root):
                folder = _folder_of(root)
                fixed = len(folder.split("/")) if folder != "/" else 1
                _check_listed(folder)
                for path in glob.iglob(root, recursive=self.recursive):
                    if not any(map(self.skips, path.split("/")[fixed:])):
                        walk.add(path, named=False)
            else:
                walk.add(root, named=True)
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
    def _hidden(self) -> tuple[str, ...]:
        marks = "._" if self.skips_underscored else "."
        return tuple(mark for mark in marks if not any(one.startswith(mark) for one in self.patterns))

    def skips(self, name: str) -> bool:
        return name.startswith(self._hidden) and (name[0] == "." or "=" not in name)

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
        self._names: dict[_Identity, set[str]] = {}  # of files that have several, maybe not all of them here
        self._seen_files: set[_Identity] = set()
        self._seen_dirs: set[_Identity] = set()
        self._dirs: list[str] = []
        self._links: list[tuple[str, bool]] = []

    def add(self, path: str, named: bool) -> None:
        """Take a path that the user named (it must be there) or that a glob found (it may be anything)."""
        try:
            status = os.stat(path)
        except FileNotFoundError as error:
            if not named:
                return
            raise SpoutError(f"cannot read files from {path}: there is no such file or directory") from error
        except OSError as error:
            raise SpoutError(f"cannot read files from {path}: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            if named:
                self._enter(path, status)
        elif stat.S_ISREG(status.st_mode):
            if not named and os.path.islink(path):
                self._links.append((path, False))
            else:
                self._take(path, status)
        elif named:
            raise SpoutError(f"cannot read files from {path}: it is neither a regular file nor a directory")

    def finish(self, known: Container[str]) -> dict[str, Listed]:
        self._drain()
        while self._links:
            links, self._links = sorted(self._links), []
            for path, in_directory in links:
                self._follow(path, in_directory)
            self._drain()
        for names in self._names.values():
            for other in sorted(names, key=lambda path: (path not in known, path))[1:]:
                del self._files[other]
        return dict(sorted(self._files.items()))

    def _drain(self) -> None:
        while self._dirs:
            self._scan(self._dirs.pop())

    def _scan(self, directory: str) -> None:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._visit(entry)
        except FileNotFoundError:
            return  # removed since it was found; its files are gone with it
        except OSError as error:
            raise _listing_error(directory, error) from error

    def _visit(self, entry: os.DirEntry[str]) -> None:
        if self._source.skips(entry.name):
            return
        if entry.is_symlink():
            self._links.append((entry.path, True))
            return
        try:
            if entry.is_dir(follow_symlinks=False):
                if self._source.recursive:
                    self._enter(entry.path, entry.stat(follow_symlinks=False))
            elif self._source.matches(entry.name) and entry.is_file(follow_symlinks=False):
                self._take(entry.path, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return

    def _follow(self, path: str, in_directory: bool) -> None:
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return  # a dangling link, or one that leads to itself
            raise SpoutError(f"cannot read files from {path}: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            if self._source.recursive and in_directory:
                self._enter(path, status)
            return
        matches = not in_directory or self._source.matches(os.path.basename(path))
        if stat.S_ISREG(status.st_mode) and matches and (status.st_dev, status.st_ino) not in self._seen_files:
            self._take(path, status)

    def _enter(self, path: str, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        if identity not in self._seen_dirs:
            self._seen_dirs.add(identity)
            self._dirs.append(path)

    def _take(self, path: str, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        self._seen_files.add(identity)
        self._files[path] = Listed(status.st_size, (status.st_ino, status.st_ctime_ns))
        if status.st_nlink > 1:
            self._names.setdefault(identity, set()).add(path)


def _is_glob(root: str) -> bool:
    return glob.has_magic(root) and not os.path.lexists(root)


def _folder_of(root: str) -> str:
    """Return the folder that a glob has everything in."""
    before = root[: re.search(r"[*?[]", root).start()]  # type: ignore[union-attr]
    return before.rpartition("/")[0] or "/"


def _check_listed(directory: str) -> None:
    """Raise `SpoutError` for a directory that cannot be listed, of which a glob says that nothing is in it."""
    try:
        os.scandir(directory).close()
    except (FileNotFoundError, NotADirectoryError):
        return  # nothing matches yet
    except OSError as error:
        raise _listing_error(directory, error) from error


def _listing_error(directory: str, error: OSError) -> SpoutError:
    return SpoutError(
        f"cannot list the directory {directory}: {error.strerror}; "
        "make it readable for the user that runs the driver, or leave it out with a glob"
    )
