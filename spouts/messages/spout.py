"""`MessageSpout`: the base of spouts whose queue waits for an answer to each message."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spouts.messages.deliveries import Deliveries, MessageQueue, RetryPolicy
from trident.errors import SourceAwayError, SpoutError
from trident.fields import Fields
from trident.roles import has
from trident.spout import Away
from trident.spout.interfaces import OnNewLog
from trident.spout.rich import OutputFieldsDeclarer
from trident.storm.interfaces import BaseRichSpout, SpoutOutputCollector, TopologyContext

_log = logging.getLogger(__name__)
_START_S = 5.0  # how long a server may be away when the spout starts: it may just be starting too


class MessageSpout(BaseRichSpout, ABC):
    """Emits each message of a queue, and acknowledges it there when its tuple tree is complete. At-least-once.

    In a Trident topology it is a spout of single tuples like any other: messages are acknowledged with their batch.

    `fields`, `policy`: what it emits, with types, and what becomes of messages that fail.
    `max_pending`: the most messages that a task takes from its queue before they are acknowledged.
    """

    on_new_log: OnNewLog = "behind"

    def __init__(self, fields: Fields, policy: RetryPolicy, max_pending: int) -> None:
        self._fields, self._policy, self._max_pending = fields, policy, max_pending
        self._opened: Deliveries | None = None

    @abstractmethod
    def _connect(self, context: TopologyContext, report: Callable[[BaseException], None]) -> MessageQueue:
        """Connect a task to the queue, in the worker.

        Raises `SourceAwayError`: the server does not answer; it is tried again for some seconds.
        Raises `SpoutError`: something is wrong that waiting does not mend.
        """

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self._fields)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect; `SpoutError` if the server cannot be reached or does not have what is named."""
        # The collector of a Trident topology shows no errors.
        report = collector.report_error if has(collector, "report_error") else partial(_log.error, "%s")
        queue = self._connect_with_retries(context, report)
        self._opened = Deliveries(queue, self._policy, self._max_pending, collector.emit, report)

    def _connect_with_retries(self, context: TopologyContext, report: Callable[[BaseException], None]) -> MessageQueue:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return self._connect(context, report)
            except SourceAwayError as error:
                if time.monotonic() >= deadline:
                    raise SpoutError(f"{error} (it was tried for {_START_S:g} seconds)") from error
            time.sleep(0.1)

    def close(self) -> None:
        """Acknowledge what is done, and disconnect; what is not done is delivered again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def activate(self) -> None:
        self._deliveries.activate()

    def deactivate(self) -> None:
        """Have what is done acknowledged; what was not emitted waits for `activate`."""
        self._deliveries.deactivate()

    def next_tuple(self) -> None:
        self._deliveries.emit_next()

    def ack(self, msg_id: Any) -> None:
        """Have the message acknowledged at the queue, within some milliseconds and together with others."""
        self._deliveries.ack(msg_id)

    def fail(self, msg_id: Any) -> None:
        """Have the message tried again after a pause, or given up if it has failed too often."""
        self._deliveries.fail(msg_id)

    def refresh(self) -> None:
        self._deliveries.refresh()

    def may_have_more(self) -> bool:
        """Whether something of that may still come, although nothing was emitted: the queue did not say that it is empty."""
        return self._deliveries.may_have_more

    def unavailable(self) -> Away | None:
        return self._deliveries.away

    @property
    def pending(self) -> int:
        """How many messages this task has taken from its queue that are not acknowledged there."""
        return 0 if self._opened is None else self._opened.pending

    @property
    def _deliveries(self) -> Deliveries:
        if self._opened is None:
            raise SpoutError(f"{type(self).__name__} is not open: open(conf, context, collector) comes first")
        return self._opened
