"""The log of a topology that another process runs, or ran; reading its states starts here."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from trident.config import Config
from trident.coordination.log_address import open_reader
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import TransactionLogReader
from trident.errors import ForeignLogError, LogError, UnsupportedOperation
from trident.graph import StateNode

__all__ = ["ForeignLog", "log_place"]


class ForeignLog:
    """The log of a topology that another process runs, or ran. It says what is committed; any thread may ask.

    Parameters
    ----------
    states
        The states to read.
    instead
        How to read states in memory, for the error's text.

    Raises
    ------
    UnsupportedOperation
        One of `states` is in the memory of the other process.
    LogError, ForeignLogError
        There is no log, or it is of another topology.
    """

    def __init__(self, topology: str, config: Config, states: Iterable[StateNode], instead: str) -> None:
        self._reader = _open_reader(topology, config, states, instead)
        self._lock = threading.Lock()
        self._log = self.now()

    def now(self) -> LogState:
        """Return what is committed now. The object may change with the next call."""
        with self._lock:
            self._log = self._reader.refresh()
            return self._log

    def close(self) -> None:
        """Release what reading needs."""
        with self._lock:
            self._reader.close()

    def partitions(self, state: str) -> int:
        """Return the number of partitions of a state, as of the latest `now`."""
        layout = self._log.layouts.get(state)
        return 1 if layout is None else layout[0]


def log_place(topology: str, config: Config) -> str:
    """Return where a topology's log is: as it is set, as its cluster has it if it was submitted, else below this folder."""
    from trident.cluster.cluster_log import submitted_log

    return config.log_dir or submitted_log(topology) or config.log_folder(topology)


def _open_reader(topology: str, config: Config, states: Iterable[StateNode], instead: str) -> TransactionLogReader:
    for state in states:
        if state.spec.facts.in_memory:
            raise UnsupportedOperation(
                f"state {state.name!r} is in the memory of the process that runs {topology!r}; no other process can read "
                f"it. {instead}, or keep it in a store"
            )
    log_dir = log_place(topology, config)
    reader = open_reader(log_dir)
    try:
        if not reader.is_there():
            raise LogError(
                f"there is no transaction log in {log_dir}, so nothing says what {topology!r} has committed. Run the topology "
                "first, or name its log with log_dir (--log-dir)"
            )
        found = reader.refresh().topology
        if found != topology:
            raise ForeignLogError(log_dir, f"topology {found!r}", f"topology {topology!r}")
    except BaseException:
        reader.close()
        raise
    return reader
