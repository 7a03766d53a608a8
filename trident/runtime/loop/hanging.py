"""Finds user code that does not return: at which step and tuple a thread is.

It reads the thread's stack when it is asked, so no thread has to note its place for each tuple.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from trident.errors import BatchFailedError
from trident.naming import shown
from trident.observe.at_work import place_of
from trident.runtime.reading import views
from trident.runtime.steps.failures import MARKED, Failure, calls_user_code
from trident.spout.interfaces import TransactionAttempt
from trident.state import values

_OURS = str(Path(__file__).parents[2])
_STATE = str(Path(values.__file__).parent)
_ASKED = -1
"""The attempt number while a spout is asked about a batch; no attempt has this number."""

T = TypeVar("T")


@calls_user_code(lambda local: (local["spout"], None))
def _ask(spout: str, call: Callable[..., T], arguments: Iterable[Any]) -> T:
    return call(*arguments)


class _Begun(NamedTuple):
    thread: int
    watched: bool
    commits: bool
    since: float


class Asked(NamedTuple):
    """A spout that is being asked for a batch.

    `step`, `where`: as of `Work.place_of`.
    """

    txid: int
    seconds: float
    step: str
    where: str


class _Call(NamedTuple):
    """A call of user code that has not returned."""

    frame: FrameType  # of the function that the step called
    step: FrameType
    given: object  # the last object that it gave, if it gives several

    def goes_on(self, earlier: _Call) -> bool:
        """Whether it is the same call as the earlier one, at the same place."""
        return self.frame is earlier.frame and self.given is earlier.given


class Work:
    """The attempts that threads of this process work on.

    `beside`: returns the threads that a commit may wait for.
    """

    def __init__(self, beside: Callable[[], Iterable[int]] = tuple) -> None:
        self._beside = beside
        self._begun: dict[TransactionAttempt, _Begun] = {}
        self._seen: dict[int, tuple[float, _Call]] = {}

    def begin(self, attempt: TransactionAttempt, watched: bool, commits: bool = False) -> None:
        """Note that the calling thread begins; `watched`: only `overdue` notices if it does not return."""
        self._begun[attempt] = _Begun(threading.get_ident(), watched, commits, time.monotonic())

    def end(self, attempt: TransactionAttempt) -> None:
        """Note that the thread is done with the attempt."""
        self._begun.pop(attempt, None)

    def ask(self, txid: int, spout: str, call: Callable[..., T], *arguments: Any) -> T:
        """Call a spout because of a batch, watched."""
        asked = TransactionAttempt(txid, _ASKED)
        self._begun[asked] = _Begun(
            threading.get_ident(), True, False, time.monotonic()
        )  # as `begin`, without the call
        try:
            return _ask(spout, call, arguments)
        finally:
            self._begun.pop(asked, None)

    def overdue(self, limit_s: float, cause: str) -> tuple[int, Failure] | None:
        """Return a watched batch whose thread has been in one call of user code for `limit_s` seconds, and the place.

        One thread calls this again and again. A call hangs if two looks that far apart, and every look between them, find
        it. Many short calls may take as long as they like.
        """
        now, stacks = time.monotonic(), sys._current_frames()  # noqa: SLF001  nothing public gives another's stack
        before, self._seen = self._seen, {}
        for attempt, begun in list(self._begun.items()):
            for thread in self._threads(begun) if begun.watched else ():
                call = _call(stacks.get(thread))
                if call is None:
                    continue
                since, earlier = before.get(thread, (now, call))
                since = since if call.goes_on(earlier) else now
                self._seen[thread] = since, call
                if now - since >= limit_s:
                    return attempt.txid, _failure(stacks[thread], call, cause)
        return None

    def hanging_batch(self, limit_s: float, failures: Callable[[int], int]) -> BatchFailedError | None:
        """Return `overdue` as the error that ends the topology; `failures` says how often a batch failed before."""
        overdue = self.overdue(limit_s, f"no end within message_timeout_s={limit_s:g} seconds")
        if overdue is None:
            return None
        txid, failure = overdue
        return BatchFailedError(txid, failures(txid) + 1, failure.step, None, failure.cause)

    def hanging(self, attempt: TransactionAttempt, cause: str) -> Failure | None:
        """Return a failure that names what the attempt is at; None where no thread of this process is in the user's code."""
        begun = self._begun.get(attempt)
        stacks = sys._current_frames()  # noqa: SLF001  as above
        for thread in () if begun is None else self._threads(begun):
            call = _call(stacks.get(thread))
            if call is not None:
                return _failure(stacks[thread], call, cause)
        return None

    def asked(self) -> Asked | None:
        """Return the spout that is being asked for a batch; None if none is."""
        for attempt, begun in list(self._begun.items()):
            if attempt.attempt == _ASKED:
                return Asked(attempt.txid, time.monotonic() - begun.since, *self.place_of(attempt))
        return None

    def place_of(self, attempt: TransactionAttempt) -> tuple[str, str]:
        """Return the step that a thread of this process is at for an attempt, and the line; "" for what is not known."""
        begun = self._begun.get(attempt)
        stacks = sys._current_frames()  # noqa: SLF001  as above
        for thread in () if begun is None else self._threads(begun):
            innermost = stacks.get(thread)
            place = None if innermost is None else _place(innermost)
            if place is not None:
                return place
        return "", ""

    def _threads(self, begun: _Begun) -> list[int]:
        return [begun.thread, *(self._beside() if begun.commits else ())]


def _call(innermost: FrameType | None) -> _Call | None:
    """Return the call of user code that a step made; None if the thread is elsewhere.

    A store does not count as user code, no matter who calls it: it has limits of its own, and a large commit may take long.
    But the operations that it calls do.
    """
    frame, users, is_operation = innermost, None, False
    while frame is not None and frame.f_code not in MARKED:
        file = frame.f_code.co_filename
        if not is_operation:
            if file == values.__file__:  # of the modules of states only this one calls operations
                is_operation = True
            elif _is_store(frame, file):
                return None
            elif not file.startswith(_OURS):
                users = frame  # the last one found is the outermost
        frame = frame.f_back
    if frame is None or users is None:
        return None
    given = MARKED[frame.f_code].given
    return _Call(users, frame, frame.f_locals.get(given) if given else None)


def _place(innermost: FrameType) -> tuple[str, str] | None:
    """Return the step of a thread, and the line: the user's, or of a store the innermost; None if it is at no step."""
    frame: FrameType | None = innermost
    users = None
    while frame is not None and frame.f_code not in MARKED:
        if not frame.f_code.co_filename.startswith(_OURS):
            users = frame
        frame = frame.f_back
    if frame is None:
        return None
    try:
        step, _ = MARKED[frame.f_code].place(frame.f_locals)
    except KeyError:  # it has just begun, or has ended
        return None
    return step, place_of(users or innermost)


def _is_store(frame: FrameType, file: str) -> bool:
    """Whether this is a method of a state, or a function of the modules that make up states."""
    if file.startswith(_STATE) or file == views.__file__:
        return True
    return frame.f_code.co_varnames[:1] == ("self",) and hasattr(type(frame.f_locals.get("self")), "begin_commit")


def _failure(innermost: FrameType, call: _Call, cause: str) -> Failure:
    step, row = MARKED[call.step.f_code].place(call.step.f_locals)
    on = "" if row is None else f" on tuple {shown(row)}"
    where = f"{call.frame.f_code.co_name}, {call.frame.f_code.co_filename}:{call.frame.f_lineno}"
    details = "".join(traceback.format_stack(innermost))
    return Failure(step, None, f"{cause}; it is still{on} in {where}", details=details)
