"""Processes of this machine: how it differs from other machines, and what the system says about a process."""

from __future__ import annotations

import functools
from pathlib import Path


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
