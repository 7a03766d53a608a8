"""`AtWork`: what a topology works on just now, and since when; `stalls` judges it.

A figure that is counted when something ends says nothing of what does not end. So these are read while it runs.
"""

from __future__ import annotations

import linecache
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from types import FrameType
from typing import Any, Literal, NamedTuple, Self

from trident.naming import duration
from trident.redaction import redacted

Tone = Literal["good", "quiet", "warn", "bad"]

_NOTED_S = 10.0
"""What takes longer than this is mentioned."""
_LONG_S = 30.0
"""What takes longer than this, and than `_TIMES` as long as is usual for it, is a warning."""
_TIMES = 3
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class RunningCall:
    """A call of a spout or bolt that has not returned.

    `seconds`: for how long it has run.
    `where`: the function and line that it is in; "" if that is not known.
    `usual_s`: how long its calls take on average; 0 if none has returned.
    """

    component: str
    tasks: tuple[int, ...]
    worker: int
    seconds: float
    where: str = ""
    usual_s: float = 0.0


@dataclass(frozen=True)
class RunningBatch:
    """The batch of a Trident topology that is to be committed next.

    `phase`: `define`, `process`, `wait`, `commit`, `record`, or `retry`: an attempt failed, and the next one has not begun.
    `seconds`: for how long this attempt has run; of `retry`, since the last batch was committed.
    `tries`: which attempt it is, 1 for the first.
    `step`, `where`: the step, and the function and line, that it is in; "" if that is not known.
    `usual_s`: how long batches take on average; 0 if none was committed yet.
    """

    txid: int
    phase: str
    seconds: float
    tries: int = 1
    step: str = ""
    where: str = ""
    usual_s: float = 0.0


@dataclass(frozen=True)
class AtWork:
    """What a topology works on.

    `moved_s`: seconds since a message was acknowledged, or a batch committed; or since there was nothing to do.
    `done`, `left`: what has not been done since then (`acknowledged`, `committed`), and to how much: messages that are not
    answered, or what sources still have; "" if to nothing.
    `usual_s`: how long it takes on average from one such moment to the next, or from the emit of a message to its ack.
    `limit_s`: `message_timeout_s`.
    """

    moved_s: float = 0.0
    done: str = ""
    left: str = ""
    usual_s: float = 0.0
    limit_s: float = _LONG_S
    batch: RunningBatch | None = None
    calls: tuple[RunningCall, ...] = ()

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> Self:
        """Read plain data; keys that this version does not know are ignored."""
        data = data or {}
        batch, calls = data.get("batch"), data.get("calls", ())
        running = RunningBatch(**_known(RunningBatch, batch)) if batch else None
        with_tasks = ({**each, "tasks": tuple(each.get("tasks", ()))} for each in calls)
        called = tuple(RunningCall(**_known(RunningCall, each)) for each in with_tasks)
        return cls(**{**_known(cls, data), "batch": running, "calls": called})


class Stall(NamedTuple):
    """Something that has not moved for long.

    `tone`: `warn`, or `quiet` where that may well be as it should be.
    `about`: what stalls: the same as long as it does.
    """

    tone: Tone
    about: tuple[Any, ...]
    text: str
    seconds: float


def stalls(at_work: AtWork) -> list[Stall]:
    """Return what has not moved for long, the most likely cause first."""
    return [*_of_batch(at_work), *_of_calls(at_work), *_of_all(at_work)]


def is_stalled(at_work: AtWork) -> bool:
    """Whether something has not moved for so long that it is a warning."""
    return any(each.tone == "warn" for each in stalls(at_work))


class StallLog:
    """Logs what stalls, once for each, in the words of the page."""

    def __init__(self, topology: str, logger: logging.Logger) -> None:
        self._topology, self._logger = topology, logger
        self._warned: set[tuple[Any, ...]] = set()

    def look(self, at_work: AtWork) -> None:
        """Log what stalls now and did not when this was called before."""
        warnings = {each.about: each.text for each in stalls(at_work) if each.tone == "warn"}
        for about, text in warnings.items():
            if about not in self._warned:
                self._logger.warning("topology %s: %s", self._topology, text)
        self._warned = set(warnings)


def visible(text: str) -> str:
    """Return a user's text with the characters spelt out that turn the direction of the words around it."""
    return _DIRECTIONS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def place_of(frame: FrameType) -> str:
    """Return the function and line that a thread is in."""
    name, file, line = frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals).strip()
    return visible(f"{name} ({_short(file)}, line {line})" + (f": {redacted(text)}" if text else ""))


def _short(file: str) -> str:
    """Return the path of a module from where it was imported: the code of a topology in a cluster is in a long one."""
    folders = [each for each in sys.path if each and file.startswith(each + os.sep)]
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
        text = f"Batch {batch.txid} has run for {duration(batch.seconds)}{step}{again}: {_ended(doing)}"
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
        must = (
            " next_tuple must return without a tuple when there is none."
            if call.where.startswith("next_tuple ")
            else ""
        )
        text = f"`{component}`{task} has been in one call for {duration(call.seconds)}{where}"
        yield Stall(
            tone,
            ("call", call.component, call.tasks),
            f"{_ended(text)} Its tuples, acks and timeouts wait for it.{must}{_usual(call.usual_s, 'Its calls take')}",
            call.seconds,
        )


def _of_all(at_work: AtWork) -> Iterator[Stall]:
    tone = _tone(at_work, at_work.moved_s, at_work.usual_s) if at_work.left and at_work.batch is None else None
    if tone is not None:
        yield Stall(
            tone,
            ("moved",),
            f"Nothing was {at_work.done} for {duration(at_work.moved_s)} with {at_work.left}.",
            at_work.moved_s,
        )


def _tone(at_work: AtWork, seconds: float, usual_s: float) -> Tone | None:
    limit_s = min(_LONG_S, at_work.limit_s)
    if seconds >= max(limit_s, _TIMES * usual_s):
        return "warn"
    return "quiet" if seconds >= min(_NOTED_S, limit_s) else None


def _usual(seconds: float, what: str) -> str:
    return f" {what} {duration(seconds)} on average." if seconds >= 1 else ""


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _nth(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
