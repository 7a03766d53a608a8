"""Waiting for the server of a log: a running topology waits until it answers, and says so; a start waits for some seconds."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from trident.errors import LogError

T = TypeVar("T")
logger = logging.getLogger(__name__)

START_S = 10.0
STOP_S = 5.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Patience:
    """Repeats requests to a server that is away.

    `server`, `place`: the kind of server and the address of the log, for messages.
    `is_away`: what an error says if it is one of a server that is away; None for others.
    `seconds`: how long a request is repeated; then it raises `LogError`.
    """

    def __init__(self, server: str, place: object, is_away: Callable[[Exception], str | None]) -> None:
        self.server, self.seconds = server, START_S
        self._place, self._is_away = place, is_away
        self._stopping_since = math.inf
        self._pauses = threading.Event()

    def stop(self) -> None:
        """From now on let each request wait for some seconds at most."""
        self._stopping_since = min(self._stopping_since, time.monotonic())
        self._pauses.set()  # the pause of now ends

    def run(self, request: Callable[[], T]) -> T:
        """Return what `request` returns; it is called again while the server is away, so it may write nothing twice."""
        since, said, pause = time.monotonic(), False, _PAUSE_S
        while True:
            try:
                result = request()
            except Exception as error:
                text = self._is_away(error)
                if text is None:
                    raise
                self._check(since, text, error)
                if not said:
                    said = True
                    logger.warning(
                        "no answer from %s for %s; waiting until there is one: %s", self.server, self._place, text
                    )
            else:
                if said:
                    logger.warning(
                        "%s answers again for %s, after %.1f seconds",
                        self.server,
                        self._place,
                        time.monotonic() - since,
                    )
                return result
            self._pauses.wait(pause)
            self._pauses.clear()
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _check(self, since: float, text: str, error: Exception) -> None:
        now = time.monotonic()
        if now - since > self.seconds or now - max(since, self._stopping_since) > STOP_S:
            raise LogError(
                f"no answer from {self.server} at {self._place} for {now - since:.0f} seconds: {text}"
            ) from error
