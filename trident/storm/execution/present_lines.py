"""Which calls of the user's keep threads busy, or from ending."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import FrameType

from trident.observe.at_work import place_of

__all__ = ["line_of", "lines_of"]

_OURS = str(Path(__file__).parents[2])
_CALLERS = str(Path(__file__).parent)
_THREAD = str(Path(__file__).with_name("storm_worker.py"))


def line_of(thread: int | None) -> str:
    """Return where a thread is: the line of the spout or bolt that is called, the innermost one if none is."""
    # The only way to ask; its name is a warning to debuggers alone.
    innermost = sys._current_frames().get(thread or 0)  # noqa: SLF001
    return "" if innermost is None else place_of(_of_user(innermost) or innermost)


def lines_of(names: Collection[str]) -> list[str]:
    """Return, for each thread of these names that still runs, its name and where it is."""
    found = [(each.name, line_of(each.ident)) for each in threading.enumerate() if each.name in names]
    return [f"{name}: in {line}" for name, line in found if line]


def _of_user(innermost: FrameType) -> FrameType | None:
    """Return the outermost frame of code that is not Trident's, below the executor that called it."""
    frame: FrameType | None = innermost
    users = None
    while frame is not None and (file := frame.f_code.co_filename) != _THREAD:
        if not file.startswith(_OURS):
            users = frame
        elif users is not None and file.startswith(_CALLERS):
            return users
        frame = frame.f_back
    return None
