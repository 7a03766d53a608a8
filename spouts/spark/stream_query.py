"""The query of a `StructuredStreamingSpout`: its threads, and how a batch passes from Spark to the topology.

Spark calls `foreachBatch` in the query's thread. It writes the rows as chunks, hands them over, and waits until the topology
has recorded the batch. Only then does it return, and Spark completes the batch in its checkpoint and plans the next one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from spouts.spark.chunks import said_by_spark
from trident.errors import SpoutError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_STOP_S = 30.0

Definition = Mapping[str, Any]

# What Spark takes for the end of a query that was stopped: it looks for this text in what the Python side raised. Any longer
# text of that kind, as a cancelled job raises it, lets Spark's search overflow its stack.
_Stopped = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
_STOPPED = "An error occurred while calling foreachBatch.\n: java.lang.InterruptedException: stopped"


_py4j = logging.getLogger("py4j.clientserver")


class _Failed(Exception):
    """A short error for Spark, whose own texts hold the stack traces of both sides."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of Py4J is of another error than those by which `foreachBatch` ends a query."""
    return record.exc_info is None or not isinstance(record.exc_info[1], (_Failed, _Stopped))


class StreamQuery:
    """A streaming query in its own threads, from its start to its end.

    `start`: checks the checkpoint and starts the query with a function for `foreachBatch`.
    `write`: writes the rows of a batch and returns its definition; or None: the log has committed this very batch.
    `ends_itself`: whether the query ends when it has read what there is.
    """

    def __init__(
        self,
        start: Callable[[Callable[[DataFrame, int], None]], StreamingQuery],
        write: Callable[[DataFrame, int], Definition | None],
        ends_itself: bool,
    ) -> None:
        self._start, self._write, self._ends_itself = start, write, ends_itself
        self._changed = threading.Condition()
        self._query: StreamingQuery | None = None
        self._handed: Definition | None = None
        self._recorded: Definition | None = None
        self._error: BaseException | None = None
        self._has_ended = self._closing = False
        self._looked = self._probed = 0
        self._probe: threading.Thread | None = None
        _py4j.addFilter(_is_news)  # once, however often it is added
        self._thread = threading.Thread(target=self._run, name="streaming-query", daemon=True)
        self._thread.start()

    # ---- for the topology -------------------------------------------------------------------------------------------

    def handed(self) -> Definition | None:
        """Return the batch that waits to be recorded, None if there is none; raise what ended the query."""
        with self._changed:
            if isinstance(self._error, SpoutError):
                raise self._error
            if self._error is not None:
                raise SpoutError(f"the streaming query failed: {said_by_spark(self._error)}") from self._error
            return None if self._handed == self._recorded else self._handed

    def recorded(self, definition: Definition) -> None:
        """Let Spark complete this batch, which waits or will be handed over soon."""
        with self._changed:
            self._recorded = definition
            self._changed.notify_all()

    def look_now(self) -> None:
        """Note that someone waits for what the source has now."""
        with self._changed:
            self._looked += 1

    def is_preparing(self) -> bool:
        """Whether the query may still give a batch of what the source had at the last `look_now`."""
        with self._changed:
            if self._error is not None or self._handed not in (None, self._recorded):
                return True
            if self._has_ended or self._probed >= self._looked:
                return False
            if self._query is not None and self._probe is None:
                self._probe = threading.Thread(
                    target=self._drain, args=(self._looked,), name="streaming-probe", daemon=True
                )
                self._probe.start()
            return True

    def close(self) -> None:
        """Stop the query. The batch that waits stays without an end in the checkpoint, so Spark will give it again."""
        with self._changed:
            self._closing = True
            query = self._query
        if query is not None and not self._has_ended:
            stopping = threading.Thread(target=_stop, args=(query,), name="streaming-stop", daemon=True)
            stopping.start()
            while stopping.is_alive() and _is_active(query):  # only then does Spark know that it is a stop
                stopping.join(0.01)
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            _log.warning("a streaming query did not stop within %g seconds; it is left behind", _STOP_S)

    # ---- in threads of its own ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            query = self._start(self._call)
            with self._changed:
                self._query = query
                closing = self._closing
            if closing:
                query.stop()
            query.awaitTermination()
            if not self._ends_itself and not self._closing:
                raise SpoutError(
                    "the streaming query was stopped by someone else: by a call of stop(), or because another query with "
                    "its checkpoint was started. Give each topology a checkpoint of its own"
                )
        except Exception as error:  # noqa: BLE001  raised by `handed`
            with self._changed:
                if not self._closing:
                    self._error = self._error or error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _call(self, df: DataFrame, batch: int) -> None:
        """Pass on a batch and wait until it is recorded; the query's thread calls it."""
        try:
            definition = self._write(df, batch)
        except Exception as error:  # noqa: BLE001  as above; Spark gets a short one
            with self._changed:
                self._error = None if self._closing else error
            raise (_Stopped(_STOPPED) if self._closing else _Failed("see the error of the topology")) from None
        if definition is None:
            return
        with self._changed:
            self._handed = definition
            self._changed.wait_for(lambda: self._recorded == definition or self._closing)
            if self._recorded != definition:
                raise _Stopped(_STOPPED)

    def _drain(self, looked: int) -> None:
        query = self._query
        with suppress(Exception):  # an error of the query is noted where its end is awaited
            if query is not None:
                query.processAllAvailable()
        with self._changed:
            self._probed, self._probe = looked, None


def _stop(query: StreamingQuery) -> None:
    with suppress(Exception):  # Spark itself may be gone
        query.stop()


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # noqa: BLE001  as above
        return False
