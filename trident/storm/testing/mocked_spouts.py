"""A spout of given tuples, for tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from trident.fields import Fields, FieldsLike
from trident.storm.context import TopologyContext
from trident.storm.interfaces import BaseRichSpout, SpoutOutputCollector
from trident.storm.streams import StreamDeclarer

__all__ = ["MockedSpout"]


class MockedSpout(BaseRichSpout):
    """Emits each row once, tracked by its number, and again after each failure.

    Attributes
    ----------
    acked, failed
        The numbers of the rows, in the order in which they were acknowledged or failed.
    """

    def __init__(self, fields: FieldsLike, *rows: Sequence[Any], replay: bool = True) -> None:
        self._fields = Fields(fields)
        self._rows = [tuple(row) for row in rows]
        self._replay = replay
        self.acked: list[int] = []
        self.failed: list[int] = []

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare the fields of the rows."""
        declarer.declare(self._fields)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Give this task its share of the rows."""
        self._collector = collector
        self._waiting = deque(range(context.task, len(self._rows), context.tasks))

    def next_tuple(self) -> None:
        """Emit the next row."""
        if self._waiting:
            at = self._waiting.popleft()
            self._collector.emit(self._rows[at], at)

    def ack(self, msg_id: Any) -> None:
        """Note it."""
        self.acked.append(msg_id)

    def fail(self, msg_id: Any) -> None:
        """Note it, and emit the row again."""
        self.failed.append(msg_id)
        if self._replay:
            self._waiting.append(msg_id)
