"""Runs a program beside real servers, in an empty folder; both are gone afterwards. `make reach` and its like use it.

    python -m tests.harness.with_servers redis kafka -- examples/ledger.py

The program finds each server by a variable: REDIS_URL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.harness.servers import ROOT, Server, start_redis

__all__ = ["run_with"]


def _redis(work: Path) -> tuple[Server, dict[str, str]]:
    server = start_redis(work, "--appendonly", "yes", "--appendfsync", "always")
    return server, {"REDIS_URL": f"redis://{server.address}/0"}


_STARTS: dict[str, Callable[[Path], tuple[Server, dict[str, str]]]] = {"redis": _redis}


def run_with(servers: Sequence[str], program: Sequence[str], environment: dict[str, str] | None = None) -> int:
    """Run a Python program beside new servers; returns its exit code."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trident-example-")))
        env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        for name in servers:
            (folder / name).mkdir()
            server, variables = _STARTS[name](folder / name)
            stack.callback(server.stop)
            env.update(variables)
        (folder / "work").mkdir()
        running = subprocess.Popen([sys.executable, *program], cwd=folder / "work", env=env)
        signal.signal(signal.SIGTERM, lambda *_: running.terminate())
        while True:
            try:
                return running.wait()
            except KeyboardInterrupt:  # the program has the signal as well, and ends by itself
                continue


def main() -> int:
    """Read the arguments, run, and return the exit code."""
    at = sys.argv.index("--")
    return run_with(sys.argv[1:at], [str(ROOT / sys.argv[at + 1]), *sys.argv[at + 2 :]])


if __name__ == "__main__":
    sys.exit(main())
