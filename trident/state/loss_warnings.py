"""Warnings that a server may lose data come from the driver, once. The worker processes of its topology do not repeat them.

It is a property of the process, because a store warns where it connects, and knows nothing of drivers and workers.
"""

from __future__ import annotations

_left = False


def suppress_warnings() -> None:
    """Say that this process is a worker: the driver has opened the same states, and has warned."""
    global _left
    _left = True


def warnings_suppressed() -> bool:
    """Whether this process is a worker."""
    return _left
