"""StateReader: a state of a topology that another process runs, or ran; and that topology's log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trident.config import Config
from trident.coordination.log_address import open_reader
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import TransactionLogReader
from trident.errors import ForeignLogError, LogError, UnsupportedOperation
from trident.graph import Graph, StateNode
from trident.roles import Closes
from trident.runtime.reading.open_partitions import open_view
from trident.runtime.reading.state_frames import html_or_why
from trident.runtime.reading.views import StateView

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class StateReader(Closes):
    """Reads a state through the log of its topology; never writes. A context manager, for any thread.

    Made by `trident.open_state`. All calls see the last committed batch of their time; each compares the stores with the
    log and raises `StateReadError` if they do not belong together.
    """

    def __init__(self, graph: Graph, name: str, config: Config) -> None:
        self.topology, self.name = graph.name, name
        self._graph, self._config = graph, config
        self._log = ForeignLog(graph.name, config, [graph.state(name)], f'Read it there with running.state("{name}")')
        self._lock = threading.Lock()
        self._followed = FollowedView(self._log, name, self._opened)

    @property
    def txid(self) -> int:
        """The batch whose state the last call read; for a new reader the last committed one."""
        txid = self._followed.view.txid
        return self._log.now().txid if txid is None else txid

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        """Read many keys, all at the same batch: one entry per key, in the order asked, None where absent.

        A key is a tuple of the grouping fields' values; a bare value is accepted for a key of one field.
        """
        return self._current().multi_get(keys)

    def get(self) -> Any:
        """Read the single value of a state without keys."""
        return self._current().get()

    def get_tuples(self, prefix: Any = None, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows: the key's fields, then the value; see `StateView.get_tuples`."""
        return self._current().get_tuples(prefix, limit)

    def top(self, count: int, by: str | None = None, prefix: Any = None) -> list[tuple[Any, ...]]:
        """Return the rows with the greatest values, the greatest first; see `StateView.top`."""
        return self._current().top(count, by, prefix)

    def at(self, txid: int) -> StateView:
        """Return the state as it was after batch `txid`, where the store keeps earlier batches (Delta)."""
        return self._current().at(txid)

    def to_dataframe(self, spark: SparkSession) -> DataFrame:
        """Return the key fields and the value of all keys as a DataFrame; see `StateView.to_dataframe`."""
        return self._current().to_dataframe(spark)

    def to_arrow(self) -> pa.Table:
        """Return the key fields and the value of all keys as an Arrow table; see `StateView.to_arrow`."""
        return self._current().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """Return the key fields and the value of all keys as a DataFrame of pandas; see `StateView.to_arrow`."""
        return self._current().to_pandas()

    def _repr_html_(self) -> str:
        return html_or_why(repr(self), lambda: self._current().first_rows())

    def close(self) -> None:
        """Close the connections to the store and to the log."""
        self._followed.view.close()
        self._log.close()

    def __repr__(self) -> str:
        return f"StateReader({self.topology!r}, {self.name!r})"

    def _current(self) -> StateView:
        with self._lock:
            self._log.now()
            return self._followed.current()

    def _opened(self, partitions: int) -> StateView:
        log, name = self._log, self.name
        return open_view(self._graph, self._config, name, lambda: log.now().snapshot(name), partitions, log.now)


class ForeignLog:
    """The log of a topology that another process runs, or ran. It says what is committed; any thread may ask.

    `states`: the states to read.
    `instead`: how to read states in memory, for the error's text.
    Raises `UnsupportedOperation`: one of `states` is in the memory of the other process.
    Raises `LogError`, `ForeignLogError`: there is no log, or it is of another topology.
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


class FollowedView:
    """The view of a state; a new one if a restart gave the state another number of partitions. For one thread at a time.

    `log`: asked for the number of partitions, as of its latest `now`.
    `opened`: opens the state with a number of partitions.
    `view`: the latest one.
    """

    def __init__(self, log: ForeignLog, name: str, opened: Callable[[int], StateView]) -> None:
        self._log, self._name, self._opened = log, name, opened
        self._partitions = log.partitions(name)
        self.view = opened(self._partitions)

    def current(self) -> StateView:
        """Return the view of the partitions that there are now."""
        partitions = self._log.partitions(self._name)
        if partitions != self._partitions:
            self.view.close()
            self.view, self._partitions = self._opened(partitions), partitions
        return self.view


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
