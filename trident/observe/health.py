"""`AtWork`: what a topology works on just now, and since when; `stalls` judges it, and `verdict` the topology, in sentences.

A figure that is counted when something ends says nothing of what does not end. So these are read while it runs.
"""

import linecache
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import FrameType
from typing import Any, Literal, NamedTuple, Self

from trident.naming import counted, cut, duration, visible
from trident.redaction import redacted
from trident.spout.interfaces import REST

Tone = Literal["good", "quiet", "warn", "bad"]
Line = tuple[Tone, str]

_NOTED_S = 10.0  # what takes longer than this is mentioned
_LONG_S = 30.0  # what takes longer than this, and than `_TIMES` as long as is usual for it, is a warning
_TIMES = 3
_RECENT_S = 600
_LONGEST_ERROR, _LONGEST_CAUSE = 600, 300


@dataclass(frozen=True)
class RunningCall:
    """A call of a spout or bolt that has not returned."""

    component: str
    tasks: tuple[int, ...]
    worker: int
    seconds: float
    where: str = ""  # the function and line; "" if that is not known
    usual_s: float = 0.0  # the mean of its calls; 0 if none has returned


@dataclass(frozen=True)
class RunningBatch:
    """The batch of a Trident topology that is to be committed next."""

    txid: int
    phase: str  # one of `Phases`, or `retry`: an attempt failed, and the next one has not begun
    seconds: float  # of this attempt; of `retry`, since the last batch was committed
    tries: int = 1
    step: str = ""
    where: str = ""
    usual_s: float = 0.0


@dataclass(frozen=True)
class AtWork:
    """What a topology works on; what has not been `done` (acknowledged, committed) since `moved_s`, and how much is `left`."""

    moved_s: float = 0.0  # or since there was nothing to do
    done: str = ""
    left: str = ""
    usual_s: float = 0.0
    limit_s: float = _LONG_S  # `message_timeout_s`
    batch: RunningBatch | None = None
    calls: tuple[RunningCall, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> Self:
        """Read plain data; keys that this version does not know are ignored."""
        data = data or {}
        batch, calls = data.get("batch"), data.get("calls", ())
        running = RunningBatch(**_known_fields(RunningBatch, batch)) if batch else None
        with_tasks = ({**each, "tasks": tuple(each.get("tasks", ()))} for each in calls)
        called = tuple(RunningCall(**_known_fields(RunningCall, each)) for each in with_tasks)
        return cls(**{**_known_fields(cls, data), "batch": running, "calls": called})


class Stall(NamedTuple):
    """Something that has not moved for long."""

    tone: Tone  # `warn`, or `quiet` where that may well be as it should be
    about: tuple[Any, ...]  # the same as long as it stalls
    text: str
    seconds: float


def stalls(at_work: AtWork) -> list[Stall]:
    """Return what has not moved for long, the most likely cause first."""
    return [*_of_batch(at_work), *_of_calls(at_work), *_of_all(at_work)]


def is_stalled(at_work: AtWork) -> bool:
    return any(each.tone == "warn" for each in stalls(at_work))


class StallLog:
    """Logs what stalls, once for each, in the words of the page."""

    def __init__(self, topology: str, logger: logging.Logger) -> None:
        self._topology, self._logger = topology, logger
        self._warned: set[tuple[Any, ...]] = set()

    def look(self, at_work: AtWork) -> None:
        warnings = {each.about: each.text for each in stalls(at_work) if each.tone == "warn"}
        for about, text in warnings.items():
            if about not in self._warned:
                self._logger.warning("topology %s: %s", self._topology, text)
        self._warned = set(warnings)


def place_of(frame: FrameType) -> str:
    name, file, line = frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals).strip()
    return visible(f"{name} ({_short(file)}, line {line})" + (f": {redacted(text)}" if text else ""))


def _short(file: str) -> str:
    """Return the path of a module from where it was imported: the code of a topology in a cluster is in a long one."""
    paths = map(str, sys.path)  # a user may have put a Path there, which an import passes over
    folders = [each for each in paths if each and file.startswith(each + os.sep)]
    return file[len(max(folders, key=len)) + 1 :] if folders else file


_DOING = {
    "define": "its sources are asked for it",
    "process": "it is being processed",
    "wait": "it waits for the commit before it",
    "commit": "it is being committed",
    "record": "its record is being written to the log",
}


def _of_batch(at_work: AtWork) -> Iterator[Stall]:
    batch = at_work.batch
    if batch is None or (tone := _tone(at_work, batch.seconds, batch.usual_s)) is None:
        return
    about = ("batch", batch.txid, batch.tries)
    if batch.phase == "retry":
        text = f"Batch {batch.txid} waits for its {_nth(batch.tries)} try; nothing was committed for {duration(batch.seconds)}."
    else:
        step = f" in step `{visible(batch.step)}`" if batch.step else ""
        again = f", in its {_nth(batch.tries)} try" if batch.tries > 1 else ""
        doing = f"it is in {batch.where}" if batch.where else _DOING.get(batch.phase, batch.phase)
        text = f"Batch {batch.txid} has run for {duration(batch.seconds)}{step}{again}: {_sentence(doing)}"
    yield Stall(tone, about, text + _usual(batch.usual_s, "Batches take"), batch.seconds)


def _of_calls(at_work: AtWork) -> Iterator[Stall]:
    for call in sorted(at_work.calls, key=lambda each: -each.seconds):
        component = visible(call.component)
        tone = _tone(at_work, call.seconds, call.usual_s)
        if tone is None:
            continue
        tasks = ", ".join(map(str, call.tasks))
        task = f" ({'task' if len(call.tasks) == 1 else 'tasks'} {tasks})" if tasks else ""
        where = f": {call.where}" if call.where else ""
        text = _sentence(f"`{component}`{task} has been in one call for {duration(call.seconds)}{where}")
        text += " Its tuples, acks and timeouts wait for it."
        if call.where.startswith("next_tuple "):
            text += " next_tuple must return without a tuple when there is none."
        text += _usual(call.usual_s, "Its calls take")
        yield Stall(tone, ("call", call.component, call.tasks), text, call.seconds)


def _of_all(at_work: AtWork) -> Iterator[Stall]:
    tone = _tone(at_work, at_work.moved_s, at_work.usual_s) if at_work.left and at_work.batch is None else None
    if tone is not None:
        text = f"Nothing was {at_work.done} for {duration(at_work.moved_s)} with {at_work.left}."
        yield Stall(tone, ("moved",), text, at_work.moved_s)


def _tone(at_work: AtWork, seconds: float, usual_s: float) -> Tone | None:
    limit_s = min(_LONG_S, at_work.limit_s)
    if seconds >= max(limit_s, _TIMES * usual_s):
        return "warn"
    return "quiet" if seconds >= min(_NOTED_S, limit_s) else None


def _usual(seconds: float, what: str) -> str:
    return f" {what} {duration(seconds)} on average." if seconds >= 1 else ""


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _nth(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _known_fields(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def verdict(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worst tone (`good`, `quiet`, `warn`, `bad`), and a line for each sentence: its tone and text.

    `page`: as of `TopologyPages.topology`, or a heartbeat of it. A missing key is unknown, not 0.
    """
    still = stalls(AtWork.of(page.get("atWork"))) if page.get("status") in ("ACTIVE", "INACTIVE", "KILLED") else []
    if _away(page):  # which is why its batch does not move
        still = [each for each in still if each.about[0] != "batch"]
    lines = [*_end_lines(page), *((each.tone, each.text) for each in still), *_unwell(page), *_busy(page, still)]
    lines += _behind(page, still)
    if all(tone in ("good", "quiet") for tone, _ in lines):
        lines.insert(0, _calm(page, still))
    worst = max((tone for tone, _ in lines), key=("good", "quiet", "warn", "bad").index)
    sentences = [{"tone": tone, "text": text} for tone, text in lines]
    return {"tone": worst, "lines": sentences, "recentFailures": _recent_failures(page)}


def _recent_failures(page: Mapping[str, Any]) -> int:
    recent = _recent(page)
    counts = (recent.get("retries"), recent.get("failed"), _health(page).get("failures"))
    # Of ten minutes: older ones are mentioned, but no longer raise the alarm.
    return next((int(each) for each in counts if each is not None), 0)


def _recent(page: Mapping[str, Any]) -> Mapping[str, Any]:
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


def _end_lines(page: Mapping[str, Any]) -> Iterator[Line]:
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
    status, reason = page.get("status"), page.get("statusReason")
    if status == "INACTIVE":
        yield "warn", "Deactivated: its sources are not asked for more until it is activated."
    elif status == "STOPPED":
        yield "quiet", "It was stopped."
    elif status == "KILLED":
        yield "warn", "It is being killed: what is pending is finished, then it is gone."
    elif status == "STARTING" and page.get("driverDied"):
        yield "warn", f"It starts again, after: {_cut(page['driverDied'], _LONGEST_CAUSE)}"
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
        yield _failure_line(page, failures)
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


def _failure_line(page: Mapping[str, Any], failures: int) -> Line:
    tone: Tone = "warn" if _recent_failures(page) else "quiet"
    share, since = (_share(page), "") if tone == "warn" else ("", " None of them in the last ten minutes.")
    one = failures == 1
    if page.get("kind") != "trident":
        whose = "its spout was" if one else "their spouts were"
        return tone, f"{counted(failures, 'message')} failed or timed out; {whose} notified{share}.{since}"
    last = _health(page).get("lastFailure")
    cause = f"; the last: {_cut(last, _LONGEST_CAUSE)}." if last else "."
    was = "was" if one else "were"
    return tone, f"{counted(failures, 'attempt')} failed and {was} tried again{share}{cause}{since}"


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
    # Those that are full of one call, which more executors do not end.
    stuck = {each.about[1] for each in still if each.about[0] == "call"}
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
    return cut(visible(str(text)), most)
