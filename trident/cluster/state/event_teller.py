"""`EventTeller`: tells the callbacks of a cluster state its events, in order, in one thread."""

from __future__ import annotations

import logging
import threading
import uuid
from queue import SimpleQueue

from trident.cluster.state.cluster_state import Callback, ClusterEvent

__all__ = ["EventTeller"]

_JOIN_S = 5.0  # a callback may wait for what the closing thread holds
_log = logging.getLogger(__name__)


class EventTeller:
    """A queue of events, and the thread that tells them. A callback may use the cluster state, and may close it."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[str, Callback] = {}
        self._events: SimpleQueue[ClusterEvent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"trident-{name}-events", daemon=True)
        self._thread.start()

    def register(self, callback: Callback) -> str:
        """Tell this callback all events from now on."""
        callback_id = uuid.uuid4().hex
        with self._lock:
            self._callbacks[callback_id] = callback
        return callback_id

    def unregister(self, callback_id: str) -> None:
        """Tell it no more."""
        with self._lock:
            self._callbacks.pop(callback_id, None)

    def tell(self, event: ClusterEvent) -> None:
        """Have an event told after those before it."""
        self._events.put(event)

    def close(self) -> None:
        """Tell what was queued, then end. In a callback, return at once."""
        self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            self._tell_all(event)

    def _tell_all(self, event: ClusterEvent) -> None:
        with self._lock:
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback(event)
            except Exception:  # noqa: BLE001  one that fails must not keep the others from their events
                _log.exception("a callback failed at %s", event)
