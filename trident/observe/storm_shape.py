"""What the pages of both kinds of topologies share: names, durations and numbers as Storm UI's REST API has them.

Latencies and capacities are texts with three digits after the point there, and so they are here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from trident.observe.reported_errors import ReportedError
from trident.observe.rolling_totals import ALL_TIME
from trident.redaction import redacted

_OF_LAST = ("errorTask", "errorHost", "errorTime", "errorLapsedSecs")


def pretty_seconds(seconds: float) -> str:
    """Return a duration as Storm UI writes it: "1d 2h 3m 4s", without the leading units that are 0."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    d, h = divmod(hours, 24)
    parts = [(d, "d"), (h, "h"), (m, "m"), (s, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{amount}{unit}" for amount, unit in parts)


def window_names(window_s: int) -> dict[str, Any]:
    """Return the names of a window."""
    if window_s == ALL_TIME:
        return {"window": ":all-time", "windowPretty": "All time"}
    return {"window": str(window_s), "windowPretty": pretty_seconds(window_s)}


def number_text(value: float | None) -> str:
    """Return a latency or a capacity as text; what was not measured is 0."""
    return f"{value or 0.0:.3f}"


def last_error(component: str, errors: Iterable[ReportedError]) -> dict[str, Any]:
    """Return the last error of a component."""
    last = None
    for each in errors:
        last = each if each.component == component else last
    if last is None:
        return {"lastError": "", "errorHost": "", "errorTime": None, "errorLapsedSecs": None}
    return {
        "lastError": redacted(last.text),
        **{key: value for key, value in error_entry(last).items() if key in _OF_LAST},
    }


def error_entry(error: ReportedError) -> dict[str, Any]:
    """Return an error as an entry of a page."""
    attempt, place = error.attempt, {}
    if attempt is not None:
        place = {"row": attempt.row, "txid": attempt.txid, "attempt": attempt.attempt, "willRetry": attempt.will_retry}
    return {
        "component": error.component,
        "error": redacted(error.text),
        "cause": redacted(error.text.rstrip().rpartition("\n")[2] if attempt is None else attempt.cause),
        **place,
        "errorTask": error.task or None,
        "errorHost": error.host,
        "errorTime": int(error.time),
        "errorLapsedSecs": max(0, int(time.time() - error.time)),
    }
