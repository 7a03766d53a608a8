"""StateReader: a state of a topology that another process runs, or ran."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from trident.config import Config
from trident.graph import Graph
from trident.runtime.reading.foreign_logs import ForeignLog
from trident.runtime.reading.open_partitions import open_view
from trident.runtime.reading.views import StateView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StateReader"]


class StateReader:
    """Reads a state through the log of its topology; never writes. A context manager, for any thread.

    Made by `trident.open_state`. All calls see the last committed batch of their time; each compares the stores with the
    log and raises `StateReadError` if they do not belong together.
    """

    def __init__(self, graph: Graph, name: str, config: Config) -> None:
        self.topology, self.name = graph.name, name
        self._graph, self._config = graph, config
        self._log = ForeignLog(graph.name, config, [graph.state(name)], f'Read it there with running.state("{name}")')
        self._lock = threading.Lock()
        self._view, self._partitions = self._opened()

    @property
    def txid(self) -> int:
        """The batch as of which the last call read; for a new reader the last committed one."""
        return self._log.now().txid if self._view.txid is None else self._view.txid

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

    def at(self, txid: int) -> StateView:
        """Return the state as it was after batch `txid`, where the store keeps earlier batches (Delta)."""
        return self._current().at(txid)

    def to_dataframe(self, spark: SparkSession) -> DataFrame:
        """Return the key fields and the value of all keys as a DataFrame; see `StateView.to_dataframe`."""
        return self._current().to_dataframe(spark)

    def close(self) -> None:
        """Close the connections to the store and to the log."""
        self._view.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StateReader({self.topology!r}, {self.name!r})"

    def _current(self) -> StateView:
        """Return the view; make a new one if a restart gave the state another number of partitions."""
        with self._lock:
            self._log.now()
            if self._log.partitions(self.name) != self._partitions:
                self._view.close()
                self._view, self._partitions = self._opened()
            return self._view

    def _opened(self) -> tuple[StateView, int]:
        log, name, count = self._log, self.name, self._log.partitions(self.name)
        view = open_view(self._graph, self._config, name, lambda: log.now().snapshot(name), count, log.now)
        return view, count
