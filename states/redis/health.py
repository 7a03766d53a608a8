"""What a Redis server says of its own memory and persistence: what it may lose, and what it has evicted."""

from __future__ import annotations

import logging
import re
import sys
from functools import partial
from typing import Any, NamedTuple

from states.redis.calls import Exchange
from states.redis.options import RedisOptions
from states.redis.wire import Call, Link, Servers
from trident.errors import StateLossDetected

__all__ = ["Health", "persistence_risk"]

_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()
_CONFIG = ("save", "appendfsync")
_STATS = (b"INFO", b"stats")
_COUNTED = re.compile(rb"^(evicted_keys|total_commands_processed):(\d+)", re.MULTILINE)


class _Counters(NamedTuple):
    """How many keys a server has evicted, and how many commands it has had, which tells whether both began anew."""

    evicted: int
    commands: int

    @classmethod
    def of(cls, info: Any) -> _Counters | None:
        """Read them from the answer to INFO; None where the server does not say."""
        found = dict(_COUNTED.findall(info)) if isinstance(info, bytes) else {}
        return cls(int(found[b"evicted_keys"]), int(found[b"total_commands_processed"])) if len(found) == 2 else None

    def differ(self, before: _Counters) -> bool:
        """Whether keys were evicted since, or may have been."""
        return self.evicted != before.evicted or self.commands < before.commands


_BEGUN_ANEW = _Counters(0, sys.maxsize)


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
        self._seen: dict[str, tuple[str, _Counters]] = {}  # server -> its run, and what is known of

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
        if self._may_evict(info):
            _warn_once(
                link.name,
                f"maxmemory-policy {info['maxmemory_policy']} evicts keys of the state when memory runs out, and an evicted "
                "key starts anew. Evictions are found at the end of a commit (evicted_keys of INFO); set maxmemory-policy "
                "noeviction to have such a commit refused instead",
            )
        counted = _Counters.of(info_answer)
        if counted is not None:
            run, before = info.get("run_id", ""), self._seen.get(link.name)
            # Evictions before the first look are nobody's; a new run does not know how many there were in the last one.
            if before is None or before[0] != run:
                self._seen[link.name] = (run, counted if before is None else _BEGUN_ANEW)

    def check_evictions(self, exchange: Exchange, servers: Servers) -> None:
        """Ask each server, all at once, how many keys it has evicted. Memory may be bounded at any time: so at each commit.

        Raises
        ------
        StateLossDetected
            Keys were evicted since this writer connected, or the counters began anew so that nobody knows; and
            `allow_eviction` was not given.
        """
        doing = f"look for evictions of {self._what}"
        now: dict[str, _Counters] = {}

        def take(bucket: int, answer: bytes) -> None:
            counted = _Counters.of(answer)
            if counted is not None:
                now[servers.link(bucket).name] = counted

        def one_of_each() -> dict[str, int]:
            return {servers.link(bucket).name: bucket for bucket in reversed(range(self._options.buckets))}

        asked = [bucket for name, bucket in exchange.look(doing, one_of_each).items() if name in self._seen]
        exchange.run(doing, [Call(bucket, lambda: _STATS, partial(take, bucket), True) for bucket in asked])
        suspect = {name for name, counted in now.items() if counted.differ(self._seen[name][1])}
        memory = dict(exchange.each(doing, _memory, servers.links)) if suspect else {}
        for name, counted in now.items():
            run, before = self._seen[name]
            if name in suspect:
                self._judge(name, counted, before, memory.get(name, {}))
            self._seen[name] = (run, counted)

    def _judge(self, name: str, now: _Counters, before: _Counters, memory: dict[str, str]) -> None:
        # A volatile policy takes keys that expire. Any other may have been set back by now.
        if memory.get("maxmemory_policy", "").startswith("volatile") and self._options.ttl_s is None:
            return
        found = f"{now.evicted - before.evicted} keys were evicted (maxmemory-policy); the evicted ones start anew"
        if now.commands < before.commands:
            if not now.evicted and not self._may_evict(memory):
                return
            found = (
                "it may evict keys (maxmemory-policy), and its counters began anew (a restart, or CONFIG RESETSTAT), so nobody "
                "knows whether it did"
            )
        if not self._options.allow_eviction:
            raise StateLossDetected(f"state {self._what} on Redis {name}", found)
        _warn_once(f"{name}, state {self._what}", found)

    def _may_evict(self, info: dict[str, str]) -> bool:
        policy = info.get("maxmemory_policy", "noeviction")
        if info.get("maxmemory", "0") == "0":
            return False
        return policy.startswith("allkeys") or (policy.startswith("volatile") and self._options.ttl_s is not None)


def _memory(link: Link) -> tuple[str, dict[str, str]]:
    (answer,) = link.ask((b"INFO", b"memory"))
    return link.name, _info(answer)


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
