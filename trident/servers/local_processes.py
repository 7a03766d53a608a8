"""Processes of this machine: how it differs from other machines, and what the system says about a process."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from pathlib import Path

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


def kill_job(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL every process of the session that a process began, in whatever group it is, and wait until they are gone.

    Raises `TridentError`: some are still there after half a minute.
    """
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
