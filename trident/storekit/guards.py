"""Errors and warnings that all stores word alike: writes of a reader, and risks and losses of a server."""

from __future__ import annotations

import logging

from trident.errors import StateLossDetected, UnsupportedOperation
from trident.state.risks_told import warnings_suppressed

__all__ = ["refuse_read_only", "warn_of_eviction", "warn_once"]

_warned: set[tuple[str, str]] = set()


def refuse_read_only(read_only: bool, doing: str, what: str) -> None:
    """Raise `UnsupportedOperation` if the instance was opened read-only. Call it first in every method that writes.

    Parameters
    ----------
    doing
        "write 10 keys", "move the sentinel".
    what
        The state, its partition and the server.
    """
    if read_only:
        raise UnsupportedOperation(f"cannot {doing}: {what} was opened to be read only")


def warn_once(logger: logging.Logger, server: str, risk: str) -> None:
    """Log a warning about what a server may lose, once per process, server and risk; a worker leaves it to the driver."""
    if (server, risk) not in _warned:
        _warned.add((server, risk))
        logger.log(logging.DEBUG if warnings_suppressed() else logging.WARNING, "%s: %s", server, risk)


def warn_of_eviction(logger: logging.Logger, what: str, found: str, allowed: bool) -> None:
    """Warn that keys were evicted, if the user allows it (`allow_eviction`).

    Raises
    ------
    StateLossDetected
        It is not allowed. The commit must not go on.
    """
    if not allowed:
        raise StateLossDetected(what, found)
    logger.warning("%s: %s; a key that was evicted begins again as if it had never been written", what, found)
