"""`OnceCallbacks`: callbacks that are called once, at the next event of what they wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trident.cluster.state.cluster_state import ClusterEvent

__all__ = ["OnceCallbacks", "Told"]

Told = Callable[[], None]

_log = logging.getLogger(__name__)


class OnceCallbacks:
    """Which callbacks wait for which node. `tell` is registered at a cluster state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Told]] = {}

    def add(self, path: str, callback: Told | None) -> None:
        """Call it at the next event of this node, once however often it is added; None adds nothing."""
        if callback is not None:
            with self._lock:
                waiting = self._waiting.setdefault(path, [])
                if callback not in waiting:
                    waiting.append(callback)

    def tell(self, event: ClusterEvent) -> None:
        """Call those that wait for what has happened: all, where the session was over and its watches with it."""
        if event.kind in ("suspended", "connected"):  # watches are kept meanwhile
            return
        with self._lock:
            paths = [event.path] if event.path else list(self._waiting)
            told = [callback for path in paths for callback in self._waiting.pop(path, ())]
        for place, callback in enumerate(told):
            if callback in told[:place]:
                continue
            try:
                callback()
            except Exception:  # noqa: BLE001  one that fails must not keep the others from their calls
                _log.exception("a callback failed at %s", event)
