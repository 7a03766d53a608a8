"""redis-py's errors as errors of `trident.errors`."""

from __future__ import annotations

from trident.errors import BackendError, StoreAwayError
from trident.servers import redis_server
from trident.servers.redis_server import code_of, error_text

_MOVING = frozenset({"TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK"})
_AWAY = frozenset({"", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS"})
"""A server that is out of reach, or that cannot serve for a while; no code: nothing answered."""

_LATER = frozenset({"OOM", "MISCONF", "NOREPLICAS"})
_ADVICE = {
    "NOPERM": "grant the user the commands and keys that docs/states/redis.md lists",
    "WRONGTYPE": "the key is used for something else: give the state another prefix, or delete the key",
    "CROSSSLOT": "the server is a cluster: use redis+cluster:// or cluster=True",
    "MOVED": "the server is a node of a cluster: use redis+cluster:// or cluster=True; if that is given, its slots are being "
    "moved: wait until they have arrived",
}
_LOST = "is the server up, can it be reached, and is its address right?"


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed a moment later, on a new connection, perhaps to another node."""
    return redis_server.is_transient(error) or is_moving(error)


def is_moving(error: Exception) -> bool:
    """Whether a cluster is moving slots or replacing a node, which takes seconds."""
    return code_of(error) in _MOVING


def refused(error: Exception, doing: str, server: str) -> BackendError:
    """Return the error of a call that failed for good. It names neither user nor password."""
    code = code_of(error)
    retryable = is_transient(error) or code in _LATER
    default = _LOST if retryable else "nothing can be read or written before this is fixed"
    message = error_text(doing, server, error, _ADVICE, default)
    if retryable and code in _AWAY:
        return StoreAwayError(message, f"Redis at {server}")
    return BackendError(message, retryable)
