"""What a Redis may lose: asked when a writer connects, and evictions since then at the end of each commit."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, NamedTuple

from states.redis.options import RedisOptions
from states.redis.wire import Link, Wire
from trident.storekit import warn_of_eviction, warn_once

_LOGGER = logging.getLogger(__name__)
_STATS = (b"INFO", b"stats")
_COUNTED = re.compile(rb"^(evicted_keys|total_commands_processed):(\d+)", re.MULTILINE)


class _Counters(NamedTuple):
    """How many keys a server has evicted, and how many commands it has had, which shows whether both restarted at 0."""

    evicted: int
    commands: int

    @classmethod
    def of(cls, info: Any) -> _Counters | None:
        """Read them from the answer to INFO; None if the server does not say."""
        counts = dict(_COUNTED.findall(info)) if isinstance(info, bytes) else {}
        return cls(int(counts[b"evicted_keys"]), int(counts[b"total_commands_processed"])) if len(counts) == 2 else None

    def differ(self, before: _Counters) -> bool:
        """Whether keys were evicted since, or may have been."""
        return self.evicted != before.evicted or self.commands < before.commands


_OF_A_NEW_RUN = _Counters(0, sys.maxsize)


class Evictions:
    """The known evictions of each server, and what else each may lose: `risks`, until it is known whether the state is new."""

    def __init__(self, options: RedisOptions, what: str) -> None:
        self._options, self._what = options, what
        self._seen: dict[str, tuple[str, _Counters]] = {}  # server -> its run, and its counters at the last check
        self.risks: list[tuple[str, str]] = []

    def say_risks(self, is_new: bool) -> None:
        """Say what servers may lose: a warning where the state is new, and not later."""
        while self.risks:
            warn_once(_LOGGER, *self.risks.pop(), logging.WARNING if is_new else logging.INFO)

    def note_connected(self, server: str, info: Any) -> None:
        """Note a server's INFO when a connection was made."""
        counted = _Counters.of(info)
        if counted is not None:
            run, before = info_of(info).get("run_id", ""), self._seen.get(server)
            # Evictions before the first check do not concern this state. A new run of the server does not know
            # how many keys the last run evicted.
            if before is None or before[0] != run:
                self._seen[server] = (run, counted if before is None else _OF_A_NEW_RUN)

    def check(self, wire: Wire, buckets: int) -> None:
        """Ask each server of so many buckets, all at once, how many keys it has evicted: memory may be limited at any time.

        Raises `StateLossDetected`: keys were evicted since this writer connected, or the counters restarted so that it cannot
        be known; and `allow_eviction` was not given.
        """
        doing = f"look for evictions of {self._what}"
        # A server that did not say it when a connection was made is not asked: it may not permit it.
        answers = wire.ask_each(doing, _STATS, buckets, self._seen)
        now = {name: counted for name, answer in answers.items() if (counted := _Counters.of(answer)) is not None}
        suspect = {name for name, counted in now.items() if counted.differ(self._seen[name][1])}

        def read_memory() -> dict[str, dict[str, str]]:
            return {link.name: info_of(link.ask((b"INFO", b"memory"))[0]) for link in wire.servers.links()}

        memory = wire.persist(doing, read_memory) if suspect else {}
        for name, counted in now.items():
            run, before = self._seen[name]
            if name in suspect:
                self._judge(name, counted, before, memory.get(name, {}))
            self._seen[name] = (run, counted)

    def may_evict(self, info: dict[str, str]) -> bool:
        """Whether a server with this INFO may evict keys of the state."""
        policy = info.get("maxmemory_policy", "noeviction")
        if info.get("maxmemory", "0") == "0":
            return False
        return policy.startswith("allkeys") or (policy.startswith("volatile") and self._options.ttl_s is not None)

    def _judge(self, name: str, now: _Counters, before: _Counters, memory: dict[str, str]) -> None:
        # A volatile policy evicts keys that expire. Any other policy may have been changed back by now.
        if memory.get("maxmemory_policy", "").startswith("volatile") and self._options.ttl_s is None:
            return
        found = f"{now.evicted - before.evicted} keys were evicted (maxmemory-policy)"
        if now.commands < before.commands:
            if not now.evicted and not self.may_evict(memory):
                return
            found = (
                "keys may have been evicted (maxmemory-policy): the counters restarted at 0 (a restart, or CONFIG RESETSTAT), "
                "so it cannot be known"
            )
        warn_of_eviction(_LOGGER, f"state {self._what} on Redis {name}", found, self._options.allow_eviction)


def info_of(answer: Any) -> dict[str, str]:
    if not isinstance(answer, bytes):
        return {}
    lines = answer.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


_CONFIG = ("save", "appendfsync")


def inspect_server(evictions: Evictions, link: Link) -> None:
    """Ask a server what it keeps, and how many keys it has evicted so far."""
    info_answer, *config_answers = link.ask((b"INFO",), *((b"CONFIG", b"GET", name) for name in _CONFIG))
    info, server = info_of(info_answer), f"Redis {link.name}"
    config = {
        name: bytes(answer[1]).decode() if isinstance(answer, list) and len(answer) == 2 else None
        for name, answer in zip(_CONFIG, config_answers, strict=True)
    }
    risk = persistence_risk(info, config)
    if risk:
        evictions.risks.append((server, risk))
    if evictions.may_evict(info):
        risk = (
            f"maxmemory-policy {info['maxmemory_policy']} evicts keys of the state when memory runs out, and an evicted key "
            "begins again as if it had never been written. Evictions are found at the end of a commit (evicted_keys of INFO); "
            "set maxmemory-policy noeviction to have such a commit refused instead"
        )
        evictions.risks.append((server, risk))
    evictions.note_connected(link.name, info_answer)


def persistence_risk(info: dict[str, str], config: dict[str, str | None]) -> str:
    """Return what a crash of the server loses, by INFO and CONFIG GET; empty for nothing, or if the server does not say."""
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
            "there is no persistence (appendonly no, save ''): a restart loses the state. That is detected, and the "
            "state must then start again; set appendonly yes to keep it"
        )
    every = f" (save {save})" if save else ""
    return (
        f"there is no append-only file: a crash loses every batch since the last RDB snapshot{every}. That is "
        "detected, and the start then says what keeps the totals right; set appendonly yes to keep them"
    )
