"""A topology, its move, its migration as a process that gets a signal: `python -m tests.crash.mover WHAT POINT [SIGNAL]`.

WHAT is `run` (of `old`), `run new`, `move` or `migrate`.

The working directory has a module `words` with `old` and `new`. POINT is the number of the instant, among those at which
something durable changes, at which the process sends the signal (default: SIGKILL) to itself; 0: never.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from trident.cli import main
from trident.log.file_log import FileLog
from trident.run import moving
from trident.state.map_commits import CommittedMap

_ROWS = 25  # of one commit of a move, so that it has several


class _Points:
    def __init__(self, at: int, signum: int) -> None:
        self._left, self._signum = at, signum

    def reach(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), self._signum)

    def around(self, owner: type, name: str) -> None:
        """Make the begin and the end of a method points."""
        made: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(made)
        def method(*args: Any, **kwargs: Any) -> Any:
            self.reach()
            result = made(*args, **kwargs)
            self.reach()
            return result

        setattr(owner, name, method)


def _end_at(what: str, points: _Points) -> None:
    if what in ("run", "run new"):
        points.around(CommittedMap, "commit")
        return
    moving._ROWS = _ROWS
    for owner, name in ((CommittedMap, "move_sentinel"), (CommittedMap, "_begin"), (FileLog, "append")):
        points.around(owner, name)
    for name in ("put_stored", "commit"):
        points.around(CommittedMap, name)


if __name__ == "__main__":
    what, point, *signums = sys.argv[1:]
    _end_at(what, _Points(int(point), int(signums[0]) if signums else signal.SIGKILL))
    log, in_process = ["--log-dir", "log"], ["--once", "--conf", "engine=in_process"]
    words = {
        "run": ["run", "words.py:old", *in_process],
        "run new": ["run", "words.py:new", *in_process],
        "move": ["state", "move", "words.py:old", "count", "--to", "words.py:new"],
        "migrate": ["state", "migrate", "words.py:new", "count"],
    }
    sys.argv = ["trident", *words[what], *log]
    main()
