"""Events as log records, and log records as lines of JSON.

The message of a record is the event itself: a handler that shows text gets its sentence, `JsonFormatter` its figures, and a
handler of the user's finds the typed value as `record.msg`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from trident.observe.batch_committed import BatchCommitted
from trident.observe.events import AttemptFailed, TopologyEvent, TopologyStarted, TopologyTerminated

__all__ = ["JsonFormatter", "event_logger", "event_of", "log_event"]

event_logger = logging.getLogger("trident.events")
"""The logger of events: INFO; WARNING for an attempt that failed; ERROR for an end by an error."""


def log_event(event: TopologyEvent) -> None:
    """Log an event, if its level is enabled."""
    level = logging.INFO
    if isinstance(event, AttemptFailed):
        level = logging.WARNING
    elif isinstance(event, TopologyTerminated) and event.error_class is not None:
        level = logging.ERROR
    if event_logger.isEnabledFor(level):
        event_logger.log(level, event)


def event_of(record: logging.LogRecord) -> TopologyEvent | None:
    """Return the event that a log record tells of, None if it is any other record."""
    message = record.msg
    if isinstance(message, TopologyStarted | BatchCommitted | AttemptFailed | TopologyTerminated):
        return message
    return None


class JsonFormatter(logging.Formatter):
    """Makes each log record one line of JSON, with `timestamp`, `level`, `logger` and `message`; events with their figures too.

    Examples
    --------
    >>> import logging, sys
    >>> handler = logging.StreamHandler(sys.stdout)
    >>> handler.setFormatter(JsonFormatter())
    >>> logger = logging.getLogger("doc")
    >>> logger.addHandler(handler)
    >>> logger.warning("%d rows", 7)  # doctest: +ELLIPSIS
    {"timestamp": "...", "level": "WARNING", "logger": "doc", "message": "7 rows"}
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event = event_of(record)
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"timestamp": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if event is not None:
            told |= event.as_dict()
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)
