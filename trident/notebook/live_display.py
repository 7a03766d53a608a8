"""Shows something again and again: in place in a notebook, line by line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from trident.roles import has


class Showable(Protocol):
    """What is shown: as a line, and as HTML."""

    def __str__(self) -> str: ...
    def _repr_html_(self) -> str: ...


def show(now: Callable[[], Showable], is_over: Callable[[], bool]) -> None:
    """Show what `now` returns until `is_over`, which waits between two looks, or until Ctrl-C; then once more."""
    update = _in_place() or _Lines().update
    with suppress(KeyboardInterrupt):
        update(now())
        while not is_over():
            update(now())
    update(now())


def _in_place() -> Callable[[Showable], None] | None:
    """Return what brings one display up to date, None where this is no notebook.

    A notebook has loaded IPython by itself, and runs in its kernel; IPython in a terminal cannot change what it has printed.
    """
    ipython, module = sys.modules.get("IPython"), sys.modules.get("IPython.display")
    shell = None if ipython is None else ipython.get_ipython()
    if module is None or not has(shell, "kernel"):
        return None
    handles: list[Any] = []

    def update(shown: Showable) -> None:
        if handles:
            handles[0].update(shown)
        else:
            handles.append(module.display(shown, display_id=True))

    return update


class _Lines:
    """Prints a line where it is another one than before."""

    def __init__(self) -> None:
        self._last = ""

    def update(self, shown: Showable) -> None:
        if (line := str(shown)) != self._last:
            self._last = line
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
