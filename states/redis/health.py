"""When a writer connects, asks a Redis server what it may lose, and warns about it once per process."""

from __future__ import annotations

import logging
from typing import Any

from states.redis.evictions import Evictions, info_of
from states.redis.wire import Link
from trident.storekit import warn_once

__all__ = ["greeted", "persistence_risk"]

_LOGGER = logging.getLogger(__name__)
_CONFIG = ("save", "appendfsync")


def greeted(evictions: Evictions, link: Link) -> None:
    """Ask a server what it keeps, and how many keys it has evicted so far."""
    info_answer, *config_answers = link.ask((b"INFO",), *((b"CONFIG", b"GET", name) for name in _CONFIG))
    info, server = info_of(info_answer), f"Redis {link.name}"
    config = {name: _config(answer) for name, answer in zip(_CONFIG, config_answers, strict=True)}
    risk = persistence_risk(info, config)
    if risk:
        warn_once(_LOGGER, server, risk)
    if evictions.may_evict(info):
        risk = (
            f"maxmemory-policy {info['maxmemory_policy']} evicts keys of the state when memory runs out, and an evicted key "
            "begins again as if it had never been written. Evictions are found at the end of a commit (evicted_keys of INFO); "
            "set maxmemory-policy noeviction to have such a commit refused instead"
        )
        warn_once(_LOGGER, server, risk)
    evictions.connected(link.name, info_answer)


def persistence_risk(info: dict[str, str], config: dict[str, str | None]) -> str:
    """Return what a crash of the server loses; empty for nothing, or if the server does not say.

    Parameters
    ----------
    info
        INFO.
    config
        `save` and `appendfsync` of CONFIG GET; None if that is forbidden.
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
            "must then start again; set appendonly yes to keep it"
        )
    every = f" (save {save})" if save else ""
    return (
        f"there is no append-only file: a crash loses every batch since the last RDB snapshot{every}. That is found, and "
        "the state must then be adopted as it is or start again; set appendonly yes to keep it"
    )


def _config(answer: Any) -> str | None:
    return bytes(answer[1]).decode() if isinstance(answer, list) and len(answer) == 2 else None
