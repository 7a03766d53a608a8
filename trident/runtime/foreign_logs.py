"""The log of a topology that another process runs, or ran: who reads its states begins here."""

from __future__ import annotations

from collections.abc import Iterable

from trident.config import Config
from trident.coordination.log import LogReader, exists
from trident.errors import ForeignLogError, LogError, UnsupportedOperation
from trident.graph import StateNode

__all__ = ["open_foreign_log"]


def open_foreign_log(topology: str, config: Config, states: Iterable[StateNode], instead: str) -> LogReader:
    """Return a refreshed reader of a topology's log; `instead` says how to read states that live in memory.

    Raises
    ------
    UnsupportedOperation
        One of `states` lives in the memory of the other process.
    LogError, ForeignLogError
        There is no log, or it is of another topology.
    """
    for state in states:
        if getattr(state.spec.factory, "in_memory", False):
            raise UnsupportedOperation(
                f"state {state.name!r} lives in the memory of the process that runs {topology!r}; no other process can read "
                f"it. {instead}, or keep it in a store"
            )
    log_dir = config.log_folder(topology)
    if not exists(log_dir):
        raise LogError(
            f"there is no transaction log in {log_dir}, so nothing says what {topology!r} has committed. Run the topology "
            "first, or name its log with log_dir (--log-dir)"
        )
    reader = LogReader(log_dir)
    found = reader.refresh().topology
    if found != topology:
        raise ForeignLogError(log_dir, f"topology {found!r}", f"topology {topology!r}")
    return reader
