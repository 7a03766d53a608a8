"""`verdict`: in sentences, whether all is well with a topology, and if not, what is wrong and what can be done.

One judgement for the page, the REST interface, `trident show` and the rows of the overview; what does not move is judged by
`at_work.py`, which the log and the metrics ask too. It is a function of a topology's page alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trident.naming import counted, duration
from trident.observe.at_work import AtWork, Stall, Tone, stalls, visible
from trident.spout.interfaces import REST

Line = tuple[Tone, str]

_RECENT_S = 600
_LONGEST_ERROR, _LONGEST_CAUSE = 600, 300


def verdict(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worst tone (`good`, `quiet`, `warn`, `bad`), and a line for each sentence: its tone and text.

    `recentFailures` counts the last ten minutes: older failures are mentioned, but no longer raise the alarm.

    `page`: as of `TopologyPages.topology`, or a heartbeat of it. A missing key means that the figure is unknown, not that it is
    0.
    """
    still = stalls(AtWork.of(page.get("atWork"))) if page.get("status") in ("ACTIVE", "INACTIVE", "KILLED") else []
    if _away(page):  # which is why its batch does not move
        still = [each for each in still if each.about[0] != "batch"]
    lines = [*_ended(page), *((each.tone, each.text) for each in still), *_unwell(page), *_busy(page, still)]
    lines += _behind(page, still)
    if all(tone in ("good", "quiet") for tone, _ in lines):
        lines.insert(0, _calm(page, still))
    worst = max((tone for tone, _ in lines), key=("good", "quiet", "warn", "bad").index)
    sentences = [{"tone": tone, "text": text} for tone, text in lines]
    return {"tone": worst, "lines": sentences, "recentFailures": _recent_failures(page)}


def _recent_failures(page: Mapping[str, Any]) -> int:
    recent = _recent(page)
    for failures in (recent.get("retries"), recent.get("failed"), _health(page).get("failures")):
        if failures is not None:
            return int(failures)
    return 0


def _recent(page: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures of the last ten minutes."""
    return next((each for each in page.get("topologyStats") or () if str(each.get("window")) == str(_RECENT_S)), {})


def _calm(page: Mapping[str, Any], still: Sequence[Stall]) -> Line:
    status = page.get("status")
    if status == "STARTING":
        return "quiet", "It starts."
    if status != "ACTIVE":
        return "quiet", "Nothing is processed now."
    failures = _health(page).get("failures")
    if failures is None:
        return "quiet", "Its driver has not reported yet."
    if still:  # it may be as slow as it should be, but it has not moved
        return "quiet", "It is at work: no failures."
    return "good", "All is well now." if failures else "All is well: no failures."


def _ended(page: Mapping[str, Any]) -> Iterator[Line]:
    health, status, reason = _health(page), page.get("status"), page.get("statusReason")
    if (silent := page.get("heardSecondsAgo") or 0) >= 10:
        yield "warn", f"Its driver has not been heard from for {duration(silent)}: the figures here are that old."
    if health.get("fenced"):
        yield "bad", "Fenced: another driver has taken this topology over; this one writes nothing more."
    elif health.get("error"):
        yield "bad", f"It has ended: {_cut(health['error'], _LONGEST_ERROR)}"
    elif status == "FAILED":
        yield "bad", f"It was marked as failed: {_cut(reason, _LONGEST_ERROR)}" if reason else "It has failed."
    yield from _idle(page)


def _idle(page: Mapping[str, Any]) -> Iterator[Line]:
    """Say why it does nothing, or nothing more."""
    status, reason = page.get("status"), page.get("statusReason")
    if status == "INACTIVE":
        yield "warn", "Deactivated: its sources are not asked for more until it is activated."
    elif status == "STOPPED":
        yield "quiet", "It was stopped."
    elif status == "KILLED":
        yield "warn", "It is being killed: what is pending is finished, then it is gone."
    elif status == "STARTING" and page.get("driverDied"):
        yield "warn", f"It starts again; its last driver died: {_cut(page['driverDied'], _LONGEST_CAUSE)}"
    elif status == "WAITING":
        free = "It waits for a free slot. Start a supervisor, or free a slot."
        yield "warn", f"It waits: {_cut(reason, _LONGEST_ERROR)}" if reason else free


def _unwell(page: Mapping[str, Any]) -> Iterator[Line]:
    health = _health(page)
    if away := _away(page):
        yield "bad", f"It is {_cut(away, _LONGEST_CAUSE)}. It goes on by itself when that answers."
    elif waiting := health.get("waiting"):
        yield "quiet", f"It is {_cut(waiting, _LONGEST_CAUSE)}. Everything else goes on."
    if failures := health.get("failures"):
        yield _failed(page, failures)
    if letters := health.get("deadLetters"):
        waits, them = ("waits: a tuple that was", "it") if letters == 1 else ("wait: tuples that were", "them")
        text = f"{counted(letters, 'dead letter')} {waits} left out. “trident dead-letters” shows {them} and puts {them} back."
        yield "warn", text
    if differed := (page.get("replays") or {}).get("differed"):
        checked = f"({differed:,} of the batches checked differed)"
        yield "warn", f"A replay may give other totals: see the errors of its steps {checked}."
    for each in health.get("leftOut") or ():
        yield (
            "warn",
            f"{each['tuples']:,} of the last {each['of']:,} tuples were left out of {each['state']!r}: they came too late, or "
            "have no time that it can use. Its errors and its counters say more.",
        )
    if deaths := health.get("workerDeaths"):
        times = "once" if deaths == 1 else f"{deaths:,} times"
        yield "warn" if _is_recent(page) else "quiet", f"Workers have died {times} and were started again."


def _failed(page: Mapping[str, Any], failures: int) -> Line:
    tone: Tone = "warn" if _recent_failures(page) else "quiet"
    share, since = (_share(page), "") if tone == "warn" else ("", " None of them in the last ten minutes.")
    one = failures == 1
    if page.get("kind") != "trident":
        whose = "its spout was" if one else "their spouts were"
        return tone, f"{counted(failures, 'message')} failed or timed out; {whose} notified{share}.{since}"
    last = _health(page).get("lastFailure")
    cause = f"; the last: {_cut(last, _LONGEST_CAUSE)}." if last else "."
    return (
        tone,
        f"{counted(failures, 'attempt')} failed and {'was' if one else 'were'} tried again{share}{cause}{since}",
    )


def _share(page: Mapping[str, Any]) -> str:
    """Say how many of the last ten minutes failed, of how many, and whether they become more."""
    recent = _recent(page)
    failed, of, trend = recent.get("failed"), recent.get("failedOf"), recent.get("failures")
    if not failed or not of:
        return ""
    return f" (within ten minutes {failed:,} of {of:,}: {failed / of:.1%}{f', {trend}' if trend else ''})"


def _is_recent(page: Mapping[str, Any]) -> bool:
    if (page.get("uptimeSeconds") or 0) < _RECENT_S:
        return True
    return any((each.get("errorLapsedSecs") or 0) < _RECENT_S for each in page.get("errors") or ())


def _busy(page: Mapping[str, Any], still: Sequence[Stall]) -> Iterator[Line]:
    stuck = {
        each.about[1] for each in still if each.about[0] == "call"
    }  # full of one call, which more executors do not end
    full = [
        f"{each.get('label') or each['boltId']} works at {float(each['capacity']):.0%} of its capacity"
        for each in page.get("bolts") or ()
        if float(each.get("capacity") or 0) >= 0.9 and each.get("boltId") not in stuck
    ]
    if full:
        more = " More executors help (rebalance)." if page.get("kind") == "bolts" else ""
        yield "warn", f"{', '.join(full[:3])}.{more}"


def _behind(page: Mapping[str, Any], still: Sequence[Stall]) -> Iterator[Line]:
    share = page.get("share")
    if share is not None and share < 1:
        yield "warn", f"The states cannot keep up: sources are held back to {share:.0%} of their limits."
    trend = page.get("lagTrend")
    if page.get("status") != "ACTIVE" or trend is None:
        return
    if trend == "grows":
        yield "warn", "It falls behind: the lag grows."
    elif trend == "shrinks":
        yield "quiet", "It catches up: the lag shrinks."
    elif not still:
        yield "quiet", "It keeps up with its sources."


def _health(page: Mapping[str, Any]) -> Mapping[str, Any]:
    health: Mapping[str, Any] = page.get("health") or {}
    return health


def _away(page: Mapping[str, Any]) -> str:
    """Return what it waits for that does not answer; a writer that has not come to an end is no fault."""
    waiting = str(_health(page).get("waiting") or "")
    return "" if waiting.startswith(f"waiting for {REST}") else waiting


def _cut(text: Any, most: int) -> str:
    whole = visible(str(text))
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"
