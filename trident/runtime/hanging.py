"""Code of the user's that does not return: which step and tuple a thread is at, found only when somebody asks.

It is read off the thread's stack, so nobody has to note for each tuple where he is.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from trident.runtime import committer, worker
from trident.runtime.fragments import run_fragment
from trident.runtime.plain import Calls
from trident.runtime.rows import Failure, iterate, shown
from trident.spout.interfaces import TransactionAttempt
from trident.state import values

__all__ = ["Work"]

_OURS = str(Path(__file__).parents[1])
_STATE = str(Path(values.__file__).parent)

Local = Mapping[str, Any]

_STEPS: dict[CodeType, Callable[[Local], tuple[str, object]]] = {
    iterate.__code__: lambda local: (local["step"], local.get("row")),
    Calls.run.__code__: lambda local: local["self"].position(),
    run_fragment.__code__: lambda local: (local["sink"].target if "sink" in local else local["step"].id, None),
    worker._read.__code__: lambda local: (local["fragment"].entry, None),  # noqa: SLF001
    worker.run_entry.__code__: lambda local: (local["entry"], None),
    committer._update_rows.__code__: lambda local: (local["node"].id, None),  # noqa: SLF001
}
"""The functions that call code of the user's, and what their locals say of the step and the tuple."""


class _Begun(NamedTuple):
    thread: int
    at: float
    watched: bool


class Work:
    """Which attempts threads of this process are at, and since when.

    Parameters
    ----------
    beside
        How the names of threads begin that a commit may be waiting for.
    """

    def __init__(self, beside: str) -> None:
        self._beside = beside
        self._begun: dict[TransactionAttempt, _Begun] = {}

    def begin(self, attempt: TransactionAttempt, watched: bool) -> None:
        """The calling thread begins; `watched` where nothing but `overdue` notices that it does not come back."""
        self._begun[attempt] = _Begun(threading.get_ident(), time.monotonic(), watched)

    def end(self, attempt: TransactionAttempt) -> None:
        """It is done with it."""
        self._begun.pop(attempt, None)

    def overdue(self, limit_s: float) -> TransactionAttempt | None:
        """Return a watched attempt that a thread is at for longer than so many seconds."""
        late = time.monotonic() - limit_s
        begun = list(self._begun.items())
        return next((attempt for attempt, since in begun if since.watched and since.at < late), None)

    def hanging(self, attempt: TransactionAttempt, cause: str) -> Failure | None:
        """Return a failure that names what the attempt is at; None where no thread of this process is in the user's code.

        A store is not the user's code: it has limits of its own, and a large commit may take its time.
        """
        begun = self._begun.get(attempt)
        if begun is None:
            return None
        threads = [begun.thread]
        if begun.watched:
            threads += [one.ident for one in threading.enumerate() if one.ident and one.name.startswith(self._beside)]
        return next(filter(None, (_hanging(thread, cause) for thread in threads)), None)


def _hanging(thread: int, cause: str) -> Failure | None:
    innermost = frame = users = sys._current_frames().get(thread)  # noqa: SLF001  nothing public gives another's stack
    while frame is not None and frame.f_code not in _STEPS:
        if not frame.f_code.co_filename.startswith(_OURS):
            users = frame  # at last the outermost one: what the step called
        frame = frame.f_back
    if frame is None or users is None or _is_store(users):
        return None
    step, row = _STEPS[frame.f_code](frame.f_locals)
    on = "" if row is None else f" on tuple {shown(row)}"
    where = f"{users.f_code.co_name}, {users.f_code.co_filename}:{users.f_lineno}"
    return Failure(
        step, None, f"{cause}; it is still{on} in {where}", details="".join(traceback.format_stack(innermost))
    )


def _is_store(called: FrameType) -> bool:
    """Whether what was called is a store: of the modules of states only that of the value rules calls operations."""
    caller = called.f_back.f_code.co_filename if called.f_back is not None else ""
    return caller.startswith(_STATE) and caller != values.__file__
