"""Runs a program beside real servers, in an empty folder; both are gone afterwards. `make reach` and its like use it.

    python -m tests.harness.with_servers redis kafka -- examples/ledger.py

The program finds each server by a variable: KAFKA, REDIS_URL.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.harness.kafka_servers import start_kafka
from tests.harness.servers import ROOT, start_redis

Started = tuple[Callable[[], None], dict[str, str]]
"""What stops a server, and the variable that names its address."""


def _kafka(work: Path) -> Started:
    cluster = start_kafka(work)
    return cluster.stop, {"KAFKA": cluster.bootstrap}


def _redis(work: Path) -> Started:
    server = start_redis(work, "--appendonly", "yes", "--appendfsync", "always")
    return server.stop, {"REDIS_URL": f"redis://{server.address}/0"}


_STARTS: dict[str, Callable[[Path], Started]] = {"kafka": _kafka, "redis": _redis}


def run_with(servers: Sequence[str], program: Sequence[str], environment: dict[str, str] | None = None) -> int:
    """Run a Python program beside new servers; returns its exit code."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trident-example-")))
        env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        for name in servers:
            (folder / name).mkdir()
            stop, variables = _STARTS[name](folder / name)
            stack.callback(stop)
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
    at = sys.argv.index("--")
    return run_with(sys.argv[1:at], [str(ROOT / sys.argv[at + 1]), *sys.argv[at + 2 :]])


if __name__ == "__main__":
    sys.exit(main())
