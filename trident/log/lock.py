"""Who may write a log: the files of its directory, and the claim that makes one process its writer.

A driver claims the next epoch by a file `epoch-{n:08d}` that appears at once with its contents (the holder, as JSON) and a
lock that ends with the driver. The lock is on the claim and not on one shared file: after a takeover the replaced driver's
must have no effect. Claims are removed lowest first and never the highest; so a process is still the writer exactly if the
next claim does not exist and, checked after that, its own does: the very file that it holds open, not one of a restored copy.

The file system must support hard links and locks, and show a new name on every machine at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from trident.errors import AlreadyRunningError, FencedError, LogError, LogHeldError
from trident.servers import local_processes

_SEGMENT = re.compile(r"(\d{8,})-(\d{4,})\.log$")
_CLAIM = re.compile(r"epoch-(\d{8,})$")
_TEMPORARY = re.compile(r"(?:epoch-)?(\d{8,})[^/]*\.tmp$")

_File = tuple[int, int]  # the identity of a file, whatever its name: device and inode
_held_here: set[_File] = set()


class SegmentName(NamedTuple):
    """The name of a segment. Segments are ordered by the epoch of their writer, then by number."""

    epoch: int
    seq: int

    @property
    def file(self) -> str:
        return f"{self.epoch:08d}-{self.seq:04d}.log"


class Listing(NamedTuple):
    """The contents of a log's directory: segments and claimed epochs ascending, left-over temporary files by epoch."""

    segments: list[SegmentName]
    claims: list[int]
    temporaries: list[tuple[int, str]]

    @property
    def newest(self) -> SegmentName | None:
        """The newest segment, which holds the log's state; None for a log without one."""
        return self.segments[-1] if self.segments else None

    @property
    def epoch(self) -> int:
        """The highest epoch that a driver ever claimed, 0 if there is none."""
        return max([*self.claims[-1:], *(each.epoch for each in self.segments[-1:])], default=0)


def list_log(directory: Path) -> Listing:
    """List a log's directory; files of other names are ignored."""
    listing = Listing([], [], [])
    for name in (path.name for path in directory.iterdir()):
        if match := _SEGMENT.fullmatch(name):
            listing.segments.append(SegmentName(int(match[1]), int(match[2])))
        elif match := _CLAIM.fullmatch(name):
            listing.claims.append(int(match[1]))
        elif match := _TEMPORARY.fullmatch(name):
            listing.temporaries.append((int(match[1]), name))
    listing.segments.sort()
    listing.claims.sort()
    return listing


def os_error_text(error: OSError) -> str:
    """Return the operating system's message without the file name, which our messages name themselves."""
    return error.strerror or str(error)


class Claim:
    """The right to write the log of `directory` as epoch `epoch`, until it is released or the process ends."""

    def __init__(self, directory: Path, epoch: int, fd: int) -> None:
        self.directory, self.epoch = directory, epoch
        self._fd, self._pid = fd, os.getpid()
        self._own, self._next = (str(_claim_path(directory, number)) for number in (epoch, epoch + 1))
        self._file = _file_of(os.fstat(fd))
        _held_here.add(self._file)

    @classmethod
    def take(cls, directory: Path, takeover: bool) -> Claim:
        """Claim the next epoch. `LogHeldError`: another process is the writer, or has claimed at the same time."""
        before = list_log(directory)
        if not takeover and before.claims and (holder := held_by(directory, before.claims[-1])) is not None:
            here = _file_at(str(_claim_path(directory, before.claims[-1]))) in _held_here
            raise (AlreadyRunningError if here else LogHeldError)(str(directory), holder)
        epoch = before.epoch + 1
        claim = cls(directory, epoch, _create(directory, epoch))
        # Another process may have claimed, and swept away, this epoch and more while this process slept.
        highest = list_log(directory).epoch
        if highest > epoch:
            claim.release()
            raise LogHeldError(str(directory), _describe(directory, highest))
        return claim

    def check(self) -> None:
        try:
            # If our own claim is visible, an invisible next claim does not exist. This runs three times per batch.
            if not os.access(self._next, os.F_OK) and _file_at(self._own) == self._file:
                return
            replaced = _file_at(self._next) is not None
            lost = _file_at(self._own) != self._file  # second: claims vanish lowest first, and only after a higher one
        except OSError as error:
            raise LogError(f"cannot see who writes {self.directory}: {os_error_text(error)}") from error
        if replaced or lost:
            raise FencedError(f"transaction log {self.directory}", f"epoch {self.epoch}", self._successor())

    def release(self) -> None:
        """Release the lock. The claim's file stays, because epochs are never used twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _held_here.discard(self._file)
            if os.getpid() == self._pid:
                fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would leave the lock with processes forked from here
            os.close(fd)

    def _successor(self) -> str:
        try:
            highest = list_log(self.directory).epoch
        except OSError:
            highest = 0
        if highest > self.epoch:
            return _describe(self.directory, highest)
        own = _claim_path(self.directory, self.epoch)
        what = "a different file now (is log_dir a copy?)" if own.exists() else "gone (was log_dir removed?)"
        return f"an unknown driver: the claim {own.name} is {what}"


def _file_at(path: str) -> _File | None:
    """Return the identity of the file with this name, None if there is none; raise OSError if that is unknown."""
    try:
        return _file_of(os.stat(path))  # noqa: PTH116  asked often
    except (FileNotFoundError, NotADirectoryError):
        return None


def _file_of(status: os.stat_result) -> _File:
    return status.st_dev, status.st_ino


def held_by(directory: Path, epoch: int) -> str | None:
    """Say who holds the claim of `epoch`; None if its holder has ended, or was replaced and swept away."""
    return _describe(directory, epoch) if local_processes.is_locked(_claim_path(directory, epoch)) else None


def _claim_path(directory: Path, epoch: int) -> Path:
    return directory / f"epoch-{epoch:08d}"


def _create(directory: Path, epoch: int) -> int:
    temporary = directory / f"epoch-{epoch:08d}.{secrets.token_hex(4)}.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, holder_facts(epoch).encode())
        # Unlike an exclusive open, a link makes the name appear once, with its contents and its lock.
        os.link(temporary, _claim_path(directory, epoch))
    except FileExistsError:
        os.close(fd)
        raise LogHeldError(str(directory), _describe(directory, epoch)) from None
    except BaseException:
        os.close(fd)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return fd


def _describe(directory: Path, epoch: int) -> str:
    try:
        facts = _claim_path(directory, epoch).read_bytes()
    except OSError:
        facts = b""
    return holder_text(facts, epoch)


# What a claim says of its holder, wherever the log is, as JSON; and whether that process runs on this machine.


def holder_facts(epoch: int) -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "epoch": epoch}
    return json.dumps({**facts, "machine": local_processes.machine(), "started": _start_time(os.getpid())})


def holder_text(facts: str | bytes, epoch: int) -> str:
    """Return a phrase that names the holder of a claim, as far as it is known."""
    about = _read(facts)
    try:
        return f"process {about['pid']} on {about['host']} (epoch {epoch}, since {about['since']})"
    except KeyError:
        return f"an unknown process (epoch {epoch})"


def is_running(facts: str) -> bool | None:
    """Whether the process that a claim tells of is running; None if it is one of another machine."""
    # A claim of this very process that it does not know to be its own is of one that had its number before.
    about = _read(facts)
    if about.get("machine") is None or about.get("machine") != local_processes.machine():
        return None
    started = _start_time(about["pid"])
    return started is not None and started == about["started"] and about["pid"] != os.getpid()


def _read(facts: str | bytes) -> dict[str, Any]:
    try:
        about = json.loads(facts)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def _start_time(pid: int) -> str | None:
    stat = local_processes.stat_of(pid)
    return None if stat is None or stat[0] == "Z" else stat[19]
