"""Which calls of the user's keep threads from ending."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Collection

__all__ = ["blocked_calls"]


def blocked_calls(names: Collection[str]) -> list[str]:
    """Return, for each thread of these names that still runs, its name and the innermost line that it is in."""
    frames = sys._current_frames()  # noqa: SLF001  the only way to ask; its name is a warning to debuggers alone
    found = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.name in names and frame is not None:
            at = traceback.extract_stack(frame)[-1]
            found.append(f"{thread.name}: in {at.name} ({at.filename}, line {at.lineno}): {at.line}")
    return found
