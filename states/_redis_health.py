"""What a Redis server says of its own memory and persistence: what it may lose, and what it has evicted."""

from __future__ import annotations

import logging
from typing import Any

from states._redis_options import RedisOptions
from states._redis_wire import Link
from trident.errors import StateLossDetected

__all__ = ["Health", "persistence_risk"]

_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()
_CONFIG = ("save", "appendfsync")


class Health:
    """Looks at each server when a writer connects, and at its evictions when a commit ends.

    Parameters
    ----------
    options
        Whether keys expire, and whether evictions are accepted.
    what
        The state, for messages.
    writes
        False looks at nothing.
    """

    def __init__(self, options: RedisOptions, what: str, writes: bool) -> None:
        self._options, self._what, self._writes = options, what, writes
        self._seen: dict[str, tuple[str, int]] = {}  # server -> its run and the evictions that are known of

    @property
    def watching(self) -> bool:
        """Whether a server may evict keys of the state."""
        return bool(self._seen)

    def greet(self, link: Link) -> None:
        """Ask a server what it keeps, and warn once in this process of what it may lose."""
        if not self._writes:
            return
        info_answer, *config_answers = link.ask((b"INFO",), *((b"CONFIG", b"GET", name) for name in _CONFIG))
        info = _info(info_answer)
        config = {name: _config(answer) for name, answer in zip(_CONFIG, config_answers, strict=True)}
        risk = persistence_risk(info, config)
        if risk:
            _warn_once(link.name, risk)
        policy = info.get("maxmemory_policy", "noeviction")
        if self._may_evict(policy, info):
            self._begin(link, info, policy)

    def evictions(self, link: Link) -> int:
        """Return how many keys the server evicted since this was asked or seen before."""
        if link.name not in self._seen:
            return 0
        (answer,) = link.ask((b"INFO",))
        info = _info(answer)
        run, before = self._seen[link.name]
        now = int(info.get("evicted_keys", 0))
        evicted = now - before if info.get("run_id", "") == run else now
        if self._options.allow_eviction:  # else they count until the sentinel is removed because of them
            self._seen[link.name] = (info.get("run_id", ""), now)
        return max(evicted, 0)

    def judge(self, evicted: int) -> None:
        """Say what the evictions of a commit mean.

        Raises
        ------
        StateLossDetected
            Keys were evicted, and `allow_eviction` was not given.
        """
        if not evicted:
            return
        found = f"{evicted} keys were evicted (maxmemory-policy); the evicted ones start anew"
        if not self._options.allow_eviction:
            raise StateLossDetected(f"state {self._what}", found)
        _warn_once(f"state {self._what}", found)

    def _may_evict(self, policy: str, info: dict[str, str]) -> bool:
        if info.get("maxmemory", "0") == "0":
            return False
        return policy.startswith("allkeys") or (policy.startswith("volatile") and self._options.ttl_s is not None)

    def _begin(self, link: Link, info: dict[str, str], policy: str) -> None:
        run, now = info.get("run_id", ""), int(info.get("evicted_keys", 0))
        before = self._seen.get(link.name)
        # Evictions before the first look are nobody's; those of a new run are all after it.
        self._seen[link.name] = (run, now if before is None else 0) if before is None or before[0] != run else before
        _warn_once(
            link.name,
            f"maxmemory-policy {policy} evicts keys of the state when memory runs out, and an evicted key starts anew. "
            "Evictions are found at the end of a commit (evicted_keys of INFO); set maxmemory-policy noeviction to have "
            "such a commit refused instead",
        )


def persistence_risk(info: dict[str, str], config: dict[str, str | None]) -> str:
    """Return what a crash of the server loses; empty for nothing, or where the server does not say.

    Parameters
    ----------
    info
        INFO.
    config
        `save` and `appendfsync` of CONFIG GET; None where that is forbidden.
    """
    if info.get("aof_enabled", "") == "1":
        fsync = config["appendfsync"]
        if fsync == "everysec":
            return "appendonly with appendfsync everysec: a crash of the machine loses up to the last second"
        if fsync == "no":
            return "appendonly with appendfsync no: a crash of the machine loses what the system had not yet written"
        return ""
    if "aof_enabled" not in info:
        return ""
    save = config["save"]
    if save == "":
        return (
            "there is no persistence (appendonly no, save ''): a restart loses the state. That is found, and the state "
            "must then start anew; set appendonly yes to keep it"
        )
    every = f" (save {save})" if save else ""
    return (
        f"there is no append-only file: a crash loses every batch since the last RDB snapshot{every}. That is found, and "
        "the state must then be adopted as it is or start anew; set appendonly yes to keep it"
    )


def _info(answer: Any) -> dict[str, str]:
    if not isinstance(answer, bytes):
        return {}
    lines = answer.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _config(answer: Any) -> str | None:
    return bytes(answer[1]).decode() if isinstance(answer, list) and len(answer) == 2 else None


def _warn_once(server: str, text: str) -> None:
    if (server, text) not in _warned:
        _warned.add((server, text))
        _LOGGER.warning("Redis %s: %s", server, text)
