"""Finds user code that does not return: at which step and tuple a thread is.

Each thread notes the step that it is at (`AtStep`); its stack says in which function of the user's it is.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from trident.naming import shown
from trident.observe.health import RunningBatch, place_of
from trident.read import views
from trident.spout.interfaces import TransactionAttempt
from trident.state import values
from trident.state.interfaces import STORE_CALLS
from trident.steps.failures import CALLERS, ENTERED, AtStep, Failure

_OURS = str(Path(__file__).parents[1])
_STATE = str(Path(values.__file__).parent)
ASKED = -1
"""The attempt number while a spout is asked about a batch; no attempt has this number."""


class Begun(NamedTuple):
    """What a thread has begun for an attempt.

    `since`: when it began, in seconds of the monotonic clock.
    `watched`: whether only `Work.overdue` notices if it does not return.
    `commits`: whether it commits.
    `spout`: the one that it asks, if it does.
    """

    thread: int
    since: float
    watched: bool = False
    commits: bool = False
    spout: str = ""


class _Call(NamedTuple):
    """A call of user code that has not returned."""

    frame: FrameType  # of the function that the step called
    step: AtStep
    given: object  # how much it has given so far, if it gives many objects


class HangWatchdog:
    """The attempts that threads of this process work on.

    `beside`: returns the threads that a commit may wait for.
    `begun`: what threads are at, by attempt; each notes it here, and takes it out when it is done.
    """

    def __init__(self, beside: Callable[[], Iterable[int]] = tuple) -> None:
        self._beside = beside
        self.begun: dict[TransactionAttempt, Begun] = {}
        self._seen: dict[int, tuple[float, _Call]] = {}

    def overdue(self, limit_s: float, cause: str) -> tuple[int, Failure] | None:
        """Return a watched batch whose thread has been in one call of user code for `limit_s` seconds, and the place.

        One thread calls this again and again. A call hangs if two looks that far apart, and every look between them, find
        it. Many short calls may take as long as they like.
        """
        now, stacks = time.monotonic(), sys._current_frames()  # noqa: SLF001  nothing public gives another's stack
        before, self._seen = self._seen, {}
        for attempt, begun in list(self.begun.items()):
            for thread in self._threads(begun) if begun.watched else ():
                call = _call(stacks.get(thread), _step_of(thread, begun))
                if call is None:
                    continue
                since, earlier = before.get(thread, (now, call))
                since = since if (call.frame, call.given) == (earlier.frame, earlier.given) else now
                self._seen[thread] = since, call
                if now - since >= limit_s:
                    return attempt.txid, _failure(stacks[thread], call, cause)
        return None

    def hanging(self, attempt: TransactionAttempt, cause: str) -> Failure | None:
        """Return a failure that names what the attempt is at; None where no thread of this process is in the user's code."""
        for frame, step in self._at(attempt):
            if (call := _call(frame, step)) is not None:
                return _failure(frame, call, cause)
        return None

    def asked_batch(self) -> RunningBatch | None:
        """Return the batch that a spout is being asked for; None if none is."""
        for attempt, begun in list(self.begun.items()):
            if attempt.attempt == ASKED:
                return RunningBatch(attempt.txid, "define", time.monotonic() - begun.since, 1, *self.place_of(attempt))
        return None

    def place_of(self, attempt: TransactionAttempt) -> tuple[str, str]:
        """Return the step that a thread of this process is at for an attempt, and the line; "" for what is not known."""
        for frame, step in self._at(attempt):
            if (frames := _frames(frame)) and step is not None:
                users = [frame for frame in frames if not frame.f_code.co_filename.startswith(_OURS)]
                return step.step, place_of(users[-1] if users else frames[0])
        return "", ""

    def _at(self, attempt: TransactionAttempt) -> list[tuple[FrameType, AtStep | None]]:
        """Return where the threads are that work on an attempt: the innermost frame, and the step."""
        begun = self.begun.get(attempt)
        stacks = sys._current_frames()  # noqa: SLF001  as above
        threads = [] if begun is None else self._threads(begun)
        return [(stacks[thread], _step_of(thread, begun)) for thread in threads if thread in stacks]

    def _threads(self, begun: Begun) -> list[int]:
        return [begun.thread, *(self._beside() if begun.commits else ())]


def _step_of(thread: int, begun: Begun | None) -> AtStep | None:
    """Return the step that a thread is at, for what it has begun."""
    return next(reversed(ENTERED.get(thread, ())), AtStep(begun.spout) if begun and begun.spout else None)


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """Return a thread's frames up to the function that calls the user's code, the innermost first; none if it is elsewhere."""
    frames = [] if innermost is None else [frame for frame, _ in traceback.walk_stack(innermost)]
    callers = (at for at, frame in enumerate(frames) if frame.f_code in CALLERS)
    return frames[: next(callers, -1) + 1]


def _call(innermost: FrameType | None, step: AtStep | None) -> _Call | None:
    """Return the call of user code that a step made; None if the thread is elsewhere.

    A store does not count as user code, no matter who calls it: it has limits of its own, and a large commit may take long.
    But the operations that it calls do.
    """
    users = None
    for frame in _frames(innermost):
        file = frame.f_code.co_filename
        if file == values.__file__:  # of the modules of states only this one calls operations
            break
        if file.startswith(_STATE) or file == views.__file__ or frame.f_code in STORE_CALLS:
            return None
        if not file.startswith(_OURS):
            users = frame  # the last one found is the outermost
    return None if users is None or step is None else _Call(users, step, step.given())


def _failure(innermost: FrameType, call: _Call, cause: str) -> Failure:
    step, row = call.step.step, call.step.row()
    on = "" if row is None else f" on tuple {shown(row)}"
    where = f"{call.frame.f_code.co_name}, {call.frame.f_code.co_filename}:{call.frame.f_lineno}"
    details = "".join(traceback.format_stack(innermost))
    return Failure(step, None, f"{cause}; it is still{on} in {where}", details=details)
