"""redis-py's errors as errors of `trident.errors`; and the drivers themselves, imported when first needed."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from trident.errors import BackendError, StoreAwayError
from trident.storekit import driver_package

__all__ = ["driver", "is_moving", "is_transient", "refused"]

# The code of an error, which Redis before 7 hides in the text of the error of a script.
_CODE = re.compile(
    r"\b(OOM|READONLY|LOADING|BUSY|MISCONF|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOAUTH|WRONGPASS|NOPERM|WRONGTYPE|"
    r"CROSSSLOT|MOVED|ASK)\b"
)
_TRANSIENT = frozenset({"READONLY", "LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK"})
_MOVING = frozenset({"TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK"})
_AWAY = frozenset({"", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS"})
"""A server that is out of reach, or that cannot serve for a while; no code: nothing answered."""

_LATER = _TRANSIENT | {"OOM", "MISCONF", "NOREPLICAS"}
_ADVICE = {
    "OOM": "raise maxmemory, or free memory",
    "READONLY": "the server is a replica: give the address of the primary, or wait until the failover is over",
    "LOADING": "the server is loading its data; wait until it has",
    "NOAUTH": "the server asks for a password: give user and password in the URL or the options",
    "WRONGPASS": "check user and password",
    "NOPERM": "grant the user the commands and keys that docs/states/redis.md lists",
    "WRONGTYPE": "the key is used for something else: give the state another prefix or hash_key, or delete the key",
    "CROSSSLOT": "the server is a cluster: use redis+cluster:// or cluster=True",
    "MOVED": "the server is a node of a cluster: use redis+cluster:// or cluster=True; if that is given, its slots are being "
    "moved: wait until they have arrived",
    "TRYAGAIN": "a slot is being moved to another node: wait until it has arrived (redis-cli --cluster check shows it)",
    "ASK": "a slot is being moved to another node: wait until it has arrived (redis-cli --cluster check shows it)",
    "CLUSTERDOWN": "wait until the cluster has recovered, or repair it (redis-cli --cluster check shows what is wrong)",
    "NOREPLICAS": "wait until the replicas are back",
    "MISCONF": "the server cannot save its data: look into its log",
}
_LOST = "is the server up, can it be reached, and is its address right?"


@cache
def driver() -> Any:
    """Return the module `redis`; its C parts (`hiredis`) are checked for as well."""
    with driver_package("Redis", "hiredis", "redis"):
        import hiredis  # noqa: F401
    with driver_package("Redis", "redis", "redis"):
        import redis
    return redis


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed a moment later, on a new connection."""
    errors = driver().exceptions
    if _code(error) in ("NOAUTH", "WRONGPASS", "NOPERM"):
        return False
    return isinstance(error, (errors.ConnectionError, errors.TimeoutError)) or _code(error) in _TRANSIENT


def is_moving(error: Exception) -> bool:
    """Whether a cluster is moving slots or replacing a node, which takes seconds."""
    return _code(error) in _MOVING


def refused(error: Exception, doing: str, server: str) -> BackendError:
    """Return the error of a call that failed for good. It names neither user nor password."""
    code = _code(error)
    retryable = is_transient(error) or code in _LATER
    text = str(error).rstrip(".")
    found = text if not code or code in text else f"{code} {text}"
    default = _LOST if retryable else "nothing can be read or written before this is fixed"
    message = f"{doing} on Redis {server}: {found}; {_ADVICE.get(code, default)}"
    return (
        StoreAwayError(message, f"Redis at {server}")
        if retryable and code in _AWAY
        else BackendError(message, retryable)
    )


def _code(error: Exception) -> str:
    errors = driver().exceptions
    for known, code in (
        (errors.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
        (errors.BusyLoadingError, "LOADING"),
        (errors.NoPermissionError, "NOPERM"),
        (errors.OutOfMemoryError, "OOM"),
        (errors.ReadOnlyError, "READONLY"),
        (errors.TryAgainError, "TRYAGAIN"),
        (errors.MasterDownError, "MASTERDOWN"),
        (errors.ClusterDownError, "CLUSTERDOWN"),
        (errors.ClusterCrossSlotError, "CROSSSLOT"),
        (errors.MovedError, "MOVED"),
        (errors.AskError, "ASK"),
    ):
        if isinstance(error, known):
            return code
    if isinstance(error, errors.AuthenticationError):
        return "NOAUTH" if "required" in str(error).lower() else "WRONGPASS"
    found = _CODE.search(str(error)) if isinstance(error, errors.ResponseError) else None
    return found[1] if found is not None else ""
