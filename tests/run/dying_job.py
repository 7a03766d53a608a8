"""A function for `foreachBatch` that kills the process in which it runs, at a point of a batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.harness.sqlite_map import SQLiteMap
from trident.run.foreach_batch import ForeachBatch
from trident.spout.interfaces import TransactionAttempt
from trident.state import Key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS = (
    "before", "defined", "processed", "committing", "half of the put", "put", "committed", "recorded", "succeeded", "after",
)  # fmt: skip
"""Where it dies: before and after the function is called (Spark has not noted the batch then), and within it."""

ForBatch = Callable[["DataFrame", int], None]


class DyingFunction:
    """A function for `foreachBatch` that ends a process at a point of a batch, wherever it was pickled to.

    Parameters
    ----------
    server
        Whether the process dies that has started this one: the server of Spark Connect.
    """

    def __init__(self, function: ForBatch, point: str = "", batch: int = -1, server: bool = False) -> None:
        self.function, self.server = function, server
        self._dies, self._now = (point, batch), -1

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        _reached[:] = [self._reach]
        SQLiteMap.multi_put = _dying_put  # type: ignore[method-assign]
        if isinstance(self.function, ForeachBatch):
            self.function._observer = self._observed
        self._now = batch_id
        self._reach("before")
        self.function(df, batch_id)
        self._reach("after")

    def _observed(self, reached: str, attempt: TransactionAttempt) -> None:
        self._reach(reached)

    def _reach(self, reached: str) -> None:
        if (reached, self._now) == self._dies:
            if self.server:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


_reached: list[Callable[[str], None]] = []  # by the function that is called
_put = SQLiteMap.multi_put


def _dying_put(self: SQLiteMap, keys: Sequence[Key], values: Sequence[bytes]) -> None:
    _put(self, keys[:1], values[:1])
    if len(keys) > 1:  # the sentinel is written alone
        _reached[0]("half of the put")
        _put(self, keys[1:], values[1:])
        _reached[0]("put")
