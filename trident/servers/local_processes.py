"""The machine that this runs on: how it differs from others, what is known of its processes, what is locked or durable."""

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trident.errors import TridentError

_LOOK_S = 0.005
_GONE_S = 30.0


@functools.cache
def machine() -> str | None:
    """Return what differs for each machine, its boots (the first word) and its containers; None if that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of a process's state, from the third of proc(5)'s `stat` on; None if there is none."""
    try:
        # The name of the program, in brackets before them, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def is_locked(file: Path) -> bool:
    """Whether another holder of a file has it locked, however that may end; False without a file."""
    try:
        fd = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two processes that look at once do not see each other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def sync_directory(directory: str | Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Let a durable file appear, whole or not at all; it replaces what was there. `mode`: of the file, less the umask."""
    temporary = path.with_name(f"{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:  # an error may say a lone surrogate
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a directory and the missing ones above it, all durable; an existing one stays."""
    directory = directory.absolute()
    missing = not directory.is_dir()
    if missing:
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
    try:
        sync_directory(directory.parent)  # also of an existing one: its maker may have died before
    except OSError:
        if missing:  # otherwise it may be one that this user cannot list, or on a read-only file system
            raise


class Abandoned(Protocol):
    """What a forked child has of its parent, and must give up: files and locks, but none of the threads."""

    def abandon(self) -> None:
        """Give it up, in the child."""


_of_parents: weakref.WeakSet[Abandoned] = weakref.WeakSet()


def abandon_in_children(one: Abandoned) -> None:
    """Let every process that is forked from this one abandon something, if it is there still."""
    _of_parents.add(one)


def _abandon_in_child() -> None:
    for one in list(_of_parents):
        one.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)


def run_captured(command: str | Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without input; what it says is text of the result."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **more)


def scratch_environment(scratch: Path) -> dict[str, str]:
    """Return the variables with which a short run of Spark leaves in one folder what a kill leaves behind."""
    java = ["-XX:TieredStopAtLevel=1", os.environ.get("JAVA_TOOL_OPTIONS", "")]  # else it mostly compiles Spark
    if len(str(scratch)) <= 60:  # the path of a socket, which Spark has there, is of a limited length
        java.append(f"-Djava.io.tmpdir={scratch}")
    tools = " ".join(filter(None, java))
    return {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JAVA_TOOL_OPTIONS": tools}


def kill_job(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL every process of the session that a process began, and wait until they are gone; `TridentError` if some stay."""
    session = process.pid
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while members := _members(session):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TridentError(f"processes {members} of the job outlive a SIGKILL")
        time.sleep(_LOOK_S)
    # Not Popen.wait(): a signal that ended Popen.poll() at the wrong moment has left its lock locked for ever.
    with contextlib.suppress(ChildProcessError):  # it was waited for before
        os.waitpid(session, 0)


def _members(session: int) -> list[int]:
    """Return the living processes of a session; nothing if the system does not list its processes as files."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        stat = stat_of(pid)
        if stat is not None and int(stat[3]) == session and stat[0] not in "ZX":
            found.append(pid)
    return found
