"""Runs a PySpark program that kills itself: `python -m tests.runtime.query.dying_job PROGRAM [POINT BATCH]`.

The program is left as it is: `DataStreamWriter.foreachBatch` wraps the function that it is given.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.harness.sqlite_map import SQLiteMap
from trident.runtime.query.foreach_batch import ForeachBatch
from trident.spout.interfaces import TransactionAttempt
from trident.state import Key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS = (
    "before", "defined", "processed", "committing", "half of the put", "put", "committed", "recorded", "succeeded", "after",
)  # fmt: skip
"""Where it dies: before and after the function is called (Spark has not noted the batch then), and within it."""

ForBatch = Callable[["DataFrame", int], None]


def main(program: str, point: str = "", batch: str = "-1") -> None:
    """Run the program; it dies at the point of the batch."""
    now = [-1]

    def reach(reached: str) -> None:
        if (reached, now[0]) == (point, int(batch)):
            os.kill(os.getpid(), signal.SIGKILL)

    def observed(reached: str, attempt: TransactionAttempt) -> None:
        reach(reached)

    def dying(function: Any) -> ForBatch:
        if isinstance(function, ForeachBatch):
            function._observer = observed

        def called(df: DataFrame, batch_id: int) -> None:
            now[0] = batch_id
            reach("before")
            function(df, batch_id)
            reach("after")

        return called

    given, put = DataStreamWriter.foreachBatch, SQLiteMap.multi_put

    def dying_put(self: SQLiteMap, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        put(self, keys[:1], values[:1])
        if len(keys) > 1:  # the sentinel is written alone
            reach("half of the put")
            put(self, keys[1:], values[1:])
            reach("put")

    SQLiteMap.multi_put = dying_put  # type: ignore[method-assign]
    DataStreamWriter.foreachBatch = lambda self, func: given(self, dying(func))  # type: ignore[method-assign]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
