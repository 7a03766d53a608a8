"""What the heartbeat of a driver contains: a topology's page, cut to a few kilobytes whatever the topology has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

HEARTBEAT_BYTES = 6000
"""About how many bytes of JSON it has at most."""

_OF_TOPOLOGY = (
    "id", "name", "kind", "status", "message", "uptime", "uptimeSeconds", "window", "windowHint", "windowSeconds",
    "workersTotal", "executorsTotal", "tasksTotal", "rates", "lags", "lagTrend", "atWork",
    "health", "txid", "engine", "share", "pending", "replays",
)  # fmt: skip
_OF_COMPONENT = (
    "spoutId", "boltId", "kind", "state", "executors", "tasks", "emitted", "executed", "acked", "failed", "completeLatency",
    "executeLatency", "capacity", "lag",
)  # fmt: skip
_LONGEST_TEXT, _MOST_ENTRIES = 200, 10


def heartbeat_of(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heartbeat that carries a topology's page, of either kind.

    Components are included as long as there is room: first spouts, in half of it at most, then the busiest bolts. `omitted`
    says how many were left out.
    """
    beat: dict[str, Any] = {key: _short(page[key]) for key in _OF_TOPOLOGY if key in page}
    beat["topologyStats"] = [
        {key: value for key, value in each.items() if not isinstance(value, dict)}  # without the means of each phase
        for each in page.get("topologyStats", ())
    ]
    beat.update(spouts=[], bolts=[], omitted=0)
    room = HEARTBEAT_BYTES - _size(beat)
    busiest = sorted(page.get("bolts", ()), key=lambda each: -float(each.get("capacity") or 0.0))
    left = room / 2
    for kind, components in (("spouts", page.get("spouts", ())), ("bolts", busiest)):
        for each in components:
            entry = {key: _short(each[key]) for key in _OF_COMPONENT if each.get(key) is not None}
            size = _size(entry) + 1
            if size > left:
                beat["omitted"] += 1
            else:
                beat[kind].append(entry)
                left, room = left - size, room - size
        left = room
    return beat


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value[:_MOST_ENTRIES]]
    return value


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
