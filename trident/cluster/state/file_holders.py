"""Which processes hold a file of SQLite's for writing, so that a message can name the one that is in the way."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["holders_text", "writers_of"]

_LOCK = re.compile(r"POSIX\s+\S+\s+WRITE\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)")


def writers_of(file: Path) -> set[int]:
    """Return the processes that hold a file, or what SQLite keeps beside it; none where the system does not tell."""
    try:
        files = {each.stat().st_ino for each in file.parent.glob(f"{file.name}*")}
        # Not by opening the file: to close it again would give back the locks of this process.
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(pid) for pid, inode in _LOCK.findall(locks) if int(inode) in files}


def holders_text(file: Path) -> str:
    """Return a sentence on each process that holds the file now, "" if none is known."""
    return "".join(f" {_sentence(pid)}." for pid in sorted(writers_of(file)))


def _sentence(pid: int) -> str:
    if _is_stopped(pid):
        return f"Process {pid} holds it, and is stopped: let it go on (`kill -CONT {pid}`), or end it"
    return f"Process {pid} holds it"


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"
