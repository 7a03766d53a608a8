"""What this process holds: threads, and open files and connections."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import NamedTuple

__all__ = ["Held"]

_OPEN = Path("/dev/fd")


class Held(NamedTuple):
    """What was held at one moment.

    Attributes
    ----------
    threads, files
        The names of Python's threads; what each open file or connection leads to, by its number.
    """

    threads: dict[int, str]
    files: dict[int, str]

    @classmethod
    def now(cls) -> Held:
        """Look."""
        gc.collect()
        threads = {thread.ident or 0: thread.name for thread in threading.enumerate()}
        return cls(threads, _open_files())

    def more_than(self, before: Held, least: int) -> str:
        """Say what there is more than before, if it is at least so much; what comes and goes by chance is less."""
        said = []
        for name, now, then in (("thread", self.threads, before.threads), ("open file", self.files, before.files)):
            new = [each for at, each in now.items() if then.get(at) != each]
            if len(now) - len(then) >= least:
                said.append(f"{len(now) - len(then)} more {name}s are there, such as {new[0] if new else '?'}")
        return " and ".join(said)


def _open_files() -> dict[int, str]:
    try:
        numbers = [int(name) for name in os.listdir(_OPEN)]  # noqa: PTH208  Path.iterdir holds the folder open
    except OSError:
        return {}  # a system without the folder
    return {number: _target(number) for number in numbers}


def _target(number: int) -> str:
    try:
        return str((_OPEN / str(number)).readlink())
    except OSError:
        return "?"
