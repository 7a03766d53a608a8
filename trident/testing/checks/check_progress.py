"""Says on the terminal what a run of the suite is doing."""

from __future__ import annotations

import time
from typing import TextIO

__all__ = ["CheckProgress"]

_EVERY_S = 5.0
_WIDTH = 100


class CheckProgress:
    """One line that is overwritten; if the output is not a terminal, a line every five seconds.

    Parameters
    ----------
    out
        Where to; None: nowhere.
    total
        The number of checks.
    """

    def __init__(self, out: TextIO | None, total: int) -> None:
        self._out, self._total = out, total
        self._live = out is not None and out.isatty()
        self._began = self._said = time.monotonic()

    def say(self, number: int, what: str) -> None:
        """Say which check starts, counted from 1."""
        if self._out is None:
            return
        now = time.monotonic()
        if not self._live and number > 1 and now - self._said < _EVERY_S:
            return
        self._said = now
        line = f"{now - self._began:5.1f} s  {min(number, self._total)}/{self._total}  {what}"[:_WIDTH]
        self._out.write(f"\r{line:<{_WIDTH}}" if self._live else f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._out is not None and self._live:
            self._out.write(f"\r{'':<{_WIDTH}}\r")
            self._out.flush()
