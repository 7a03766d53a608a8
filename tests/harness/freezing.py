"""Stops processes with SIGSTOP, and not in the middle of a write to the embedded state of a cluster.

A process that is stopped there holds SQLite's lock until it goes on: every other one waits. On machines of their own, which
have a ZooKeeper, there is no such file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from trident.cluster.state.cluster_address import folder_of, is_embedded
from trident.cluster.state.sqlite_nodes import writers_of


def freeze(processes: Sequence[psutil.Process], address: str) -> None:
    """Stop them; `address` is that of their cluster."""
    while True:
        for each in processes:
            each.suspend()
        for each in processes:
            _await_stop(each)
        if not is_embedded(address) or not writers_of(folder_of(address) / "cluster.db") & {
            each.pid for each in processes
        }:
            return
        for each in processes:
            each.resume()
        time.sleep(0.01)  # so that the write may end


def _await_stop(process: psutil.Process) -> None:
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.001)
