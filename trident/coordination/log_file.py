"""The file that the log appends to, and durable names of files and directories.

The one place where the log's bytes meet the operating system.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

_SPACE = 64 << 10
_sync_data = getattr(os, "fdatasync", os.fsync)  # not every POSIX system has fdatasync


class LogFile:
    """A file that is only appended to. There may be zeros after the data while it is open.

    The zeros are space that is allocated in advance, because a sync takes a third less time if the size of the file does not
    change.
    """

    def __init__(self, path: Path) -> None:
        """Create `path`, which must not exist."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = self._space = 0

    def write(self, data: bytes) -> None:
        """Append all of `data`; after an error any part of it may have been written."""
        if self._size + len(data) > self._space:
            self._space = self._size + len(data) + _SPACE
            with suppress(OSError, AttributeError):  # no such call, or no room, although the data may still fit
                os.posix_fallocate(self._fd, self._size, self._space - self._size)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._fd, rest, self._size)
            self._size, rest = self._size + written, rest[written:]

    def sync(self) -> None:
        """Return once everything written is durable; OSError also if the file has lost its name, because then it is lost."""
        _sync_data(self._fd)
        if not os.fstat(self._fd).st_nlink:
            gone = "its newest segment was removed or replaced while it was written (was log_dir restored from a copy?)"
            raise OSError(errno.ENOENT, gone)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes, durably."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self._size = self._space = size

    def trim(self) -> None:
        """Free the space that was not needed. Only the writing process may call it, as its last action."""
        if self._fd >= 0:
            with suppress(OSError):  # the zeros are harmless
                os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, text: str) -> None:
    """Let a durable file appear, whole or not at all; it replaces what was there."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:  # an error may say a lone surrogate
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a directory and the missing ones above it, all durable; an existing one stays.

    The name of an existing one is made durable too, because its maker may have died before.
    """
    directory = directory.absolute()
    missing = not directory.is_dir()
    if missing:
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
    try:
        sync_directory(directory.parent)
    except OSError:
        if missing:  # otherwise it may be one that this user cannot list, or on a read-only file system
            raise
