"""Watch: ends a topology whose own thread cannot, because user code or a store does not return."""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable

from trident.errors import TridentError
from trident.observe.at_work import StallLog
from trident.runtime.drive import Drive

logger = logging.getLogger(__name__)

_STOP_S = 10.0
"""A stop waits at least this long; a running commit may take `message_timeout_s`."""


class Watch:
    """A thread that checks whether a topology hangs, until the topology has ended.

    `drive`: of the topology; what does not move there is logged.
    `ended`: set once it has ended.
    `give_up`: ends it with an error, without its thread.
    """

    def __init__(self, drive: Drive, ended: threading.Event, give_up: Callable[[TridentError], None]) -> None:
        self._drive, self._ended, self._give_up = drive, ended, give_up
        self._topology, self._timeout_s = drive.name, drive.config.message_timeout_s
        self._stalls, self._stop_by = StallLog(drive.name, logger), math.inf
        threading.Thread(target=self._run, name=f"trident-{drive.name}-watch", daemon=True).start()
        _running.add(self)

    def stopping(self) -> None:
        """Note that the topology has to end; it gets some time for that."""
        self._stop_by = min(self._stop_by, time.monotonic() + max(self._timeout_s, _STOP_S))

    def stop(self) -> None:
        """Ask the loop to end."""
        self._drive.loop.stop()
        self.stopping()

    def await_end(self, until: float) -> None:
        """Wait until the topology has ended, or until a time of the monotonic clock."""
        self._ended.wait(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while not self._ended.wait(min(1.0, self._timeout_s / 4)):
            self._log_stalls()
            error = self._look()
            if error is not None:
                self._give_up(error)

    def _log_stalls(self) -> None:
        try:
            self._stalls.look(self._drive.at_work)
        except Exception:
            logger.exception("topology %s: cannot find out what it works on; looking again", self._topology)

    def _look(self) -> TridentError | None:
        try:
            error = self._drive.loop.hanging()
        except Exception:
            logger.exception("topology %s: cannot find out whether it hangs; looking again", self._topology)
            return None
        if error is None and time.monotonic() > self._stop_by:
            limit = max(self._timeout_s, _STOP_S)
            return TridentError(
                f"topology {self._topology!r} did not end within {limit:g} seconds after it was told to stop; what it "
                "waits for is abandoned, and a restart goes on after the last recorded batch"
            )
        return error


_running: weakref.WeakSet[Watch] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop the topologies that the program did not stop, because a thread inside a C library crashes an ending interpreter.

    A topology that hangs is left behind.
    """
    until = time.monotonic() + _STOP_S
    watches = list(_running)
    for watch in watches:
        watch.stop()
    for watch in watches:
        watch.await_end(until)
