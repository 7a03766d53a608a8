"""What a server answered instead of STORED, as an error that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from trident.errors import BackendError
from trident.state.interfaces import Key

__all__ = ["CHANGED", "refused"]

CHANGED = (b"EXISTS", b"NOT_STORED", b"NOT_FOUND")
"""Replies that say: the item is not as it was when its token was read."""

_SHOWN = 3


def refused(state: str, server: str, failed: Sequence[tuple[Key, bytes]]) -> BackendError:
    """Return the error for keys that were not written, each with its reply; the gravest reply speaks for all."""
    what, keys = f"write to state {state!r} on memcached server {server}", _shown([key for key, _ in failed])
    too_large = [key for key, reply in failed if b"too large" in reply]
    if too_large:
        return BackendError(
            f"{what}: the value of {_shown(too_large)} is larger than an item may be (1 MB unless the server was "
            "started with -I); start it with a larger -I, or keep smaller values. The old value stands",
            retryable=False,
        )
    if any(b"out of memory" in reply for _, reply in failed):
        return BackendError(
            f"{what}: it is out of memory for {keys} and evicts nothing (-M); give it more memory (-m, or the command "
            "cache_memlimit), and the batch can be replayed"
        )
    changed = [key for key, reply in failed if reply in CHANGED]
    if len(changed) == len(failed):
        return BackendError(
            f"{what}: {keys} changed after they were read; another client writes them. Replay the batch"
        )
    other = next(reply for _, reply in failed if reply not in CHANGED).decode("ascii", "backslashreplace")
    return BackendError(f"{what}: {keys} were not stored: {other}; the batch may be replayed")


def _shown(keys: Sequence[Key]) -> str:
    text = ", ".join(f"{key!r:.80}" for key in keys[:_SHOWN])
    return f"key {text}" if len(keys) == 1 else f"{len(keys)} keys ({text}{', …' if len(keys) > _SHOWN else ''})"
