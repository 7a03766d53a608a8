"""Who holds a log: what a claim says about its holder, and whether that process runs on this machine."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from trident.servers import local_processes


def about(epoch: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Return what a claim says about its holder, this process."""
    since = datetime.fromtimestamp(clock(), UTC).isoformat(timespec="seconds")
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "epoch": epoch}
    return {**facts, "machine": local_processes.machine(), "started": _started(os.getpid())}


def read(text: str | bytes) -> dict[str, Any]:
    """Return what a claim says, as far as it can be read."""
    try:
        about = json.loads(text)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def described(about: Mapping[str, Any], epoch: int) -> str:
    """Return a phrase that names the holder of a claim, as far as it is known."""
    try:
        return f"process {about['pid']} on {about['host']} (epoch {epoch}, since {about['since']})"
    except KeyError:
        return f"an unknown process (epoch {epoch})"


def is_running(about: Mapping[str, Any]) -> bool | None:
    """Whether the process that a claim tells of is running; None if it is one of another machine.

    A claim of this very process that it does not know to be its own is of one that had its number before.
    """
    if about.get("machine") is None or about.get("machine") != local_processes.machine():
        return None
    started = _started(about["pid"])
    return started is not None and started == about["started"] and about["pid"] != os.getpid()


def _started(pid: int) -> str | None:
    """Return the time at which a process of this machine began, None if there is none."""
    stat = local_processes.stat_of(pid)
    return None if stat is None or stat[0] == "Z" else stat[19]
