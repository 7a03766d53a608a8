"""`end_later`: ends a topology in a thread, because who asks for it waits for an answer only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trident.errors import TridentError

__all__ = ["end_later"]

logger = logging.getLogger(__name__)


def end_later(name: str, pause: Callable[[], None], wait_s: float, stop: Callable[[], None]) -> None:
    """Pause a topology at once, and end it after some seconds."""
    pause()
    threading.Thread(target=_end, args=(name, wait_s, stop), name=f"trident-{name}-kill", daemon=True).start()


def _end(name: str, wait_s: float, stop: Callable[[], None]) -> None:
    threading.Event().wait(wait_s)
    logger.info("topology %s is ended, as was asked for over its page", name)
    try:
        stop()
    except TridentError as error:
        logger.error("topology %s: %s", name, error)
