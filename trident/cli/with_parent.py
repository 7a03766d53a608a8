"""`python -m trident.cli.with_parent …`: the command line in a process that ends with the one that started it.

Its parent starts it in a session of its own and holds the other end of its standard input. However the parent ends, also by
SIGKILL, the system closes that end, and this process kills its process group. Spark's JVM is in it,
and the workers of a JVM end with it.
"""

from __future__ import annotations

import os
import signal
import threading


def end_with_parent() -> None:
    """From now on, end this process group when standard input ends."""
    threading.Thread(target=_watch, name="trident-with-parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1 << 10):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    from trident.cli import main

    end_with_parent()
    main()
