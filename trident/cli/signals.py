"""Ctrl-C and SIGTERM while a topology runs: the first ends it well, the second at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from trident.cli.console import json_line

__all__ = ["Signals", "ending_signals"]


class Signals:
    """Notices SIGINT and SIGTERM. The handler only notes the first: it may run in the middle of anything.

    Parameters
    ----------
    first, second
        What is said at the first signal, and at the second.
    """

    def __init__(self, first: str, second: str, as_json: bool) -> None:
        self.received: int | None = None
        self._first, self._second, self._as_json = first, second, as_json

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.received is not None:
            self._say(self._second)
            os._exit(128 + signum)  # a crash like any other: what is promised does not depend on a clean end
        self.received = signum
        self._say(self._first)

    def _say(self, text: str) -> None:
        # Past the log, whose lock the interrupted code may hold. The line break ends what a terminal shows of Ctrl-C.
        line = json_line(text) if self._as_json else f"\n{text}"
        os.write(2, f"{line}\n".encode())


@contextmanager
def ending_signals(first: str, second: str, as_json: bool) -> Iterator[Signals]:
    """Notice signals in the block, see `Signals`."""
    signals = Signals(first, second, as_json)
    before = {signum: signal.signal(signum, signals.handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        if signals.received is None:  # otherwise the process is about to end, and a second signal must end it at once
            for signum, handler in before.items():
                signal.signal(signum, handler)
