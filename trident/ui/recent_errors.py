"""`RecentErrors`: the last failed attempts of a topology, for its page."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

from trident.monitoring.events import AttemptFailed
from trident.monitoring.listener import TopologyListener
from trident.ui.cluster_pages import Page

__all__ = ["RecentErrors"]

_KEPT = 50


class RecentErrors(TopologyListener):
    """Keeps the last 50 failed attempts, with the names of Storm UI's errors."""

    def __init__(self) -> None:
        self._kept: deque[AttemptFailed] = deque(maxlen=_KEPT)
        self._guard = threading.Lock()
        self._host = socket.gethostname()

    def on_attempt_failed(self, event: AttemptFailed) -> None:
        """Keep it."""
        with self._guard:
            self._kept.append(event)

    def entries(self) -> list[Page]:
        """Return them, oldest first."""
        with self._guard:
            kept = list(self._kept)
        return [self._entry(event) for event in kept]

    def _entry(self, event: AttemptFailed) -> Page:
        at_s = event.timestamp_ms / 1000
        return {
            "component": event.step,
            "error": event.details or event.cause,
            "cause": event.cause,
            "row": event.row,
            "txid": event.txid,
            "attempt": event.attempt,
            "willRetry": event.will_retry,
            "errorHost": self._host,
            "errorTime": int(at_s),
            "errorLapsedSecs": max(0, int(time.time() - at_s)),
        }
