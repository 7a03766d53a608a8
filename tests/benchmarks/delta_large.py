"""A Delta state of more keys than a writer keeps in memory: `python -m tests.benchmarks.delta_large`.

Builds an opaque count of `--keys` words, then starts on it in another process and commits batches of random words; and
the same with a state that fits into memory, for comparison. Each phase is a process of its own. Prints one JSON line:

- `build_s`, `build_peak_mb`: a million new words a batch.
- `start_s`, `start_mb`: until the state has read its sentinel, and the memory of the process then; `idle_mb` before.
- `first_s`, `median_s`, `max_s`: a batch; the first one opens what the start left alone. Merges run beside the batches.
- `peak_mb`: the most memory of the process that ran the batches.
- `ratio`: a median batch, against that of the state in memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_IN_MEMORY = 1_000_000


def phase(**task: Any) -> dict[str, Any]:
    """Run a phase; return its figures."""
    command = [sys.executable, "-m", "tests.benchmarks._large_state", json.dumps(task)]
    done: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return done


def measure(folder: Path, keys: int, size: int, batches: int) -> dict[str, Any]:
    """Build a state and run batches on it."""
    path = str(folder / str(keys))
    built = phase(phase="build", path=path, keys=keys)
    return {**phase(phase="run", path=path, keys=keys, size=min(size, keys), batches=batches), **built}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Commits to a Delta state beyond memory.")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--in-memory", type=int, default=_IN_MEMORY, help="keys of the state to compare with")
    parser.add_argument("--size", type=int, default=100_000, help="keys of a batch")
    parser.add_argument("--batches", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large = measure(Path(folder), args.keys, args.size, args.batches)
        small = measure(Path(folder), args.in_memory, args.size, args.batches)
    ratio = round(large["median_s"] / small["median_s"], 1)
    sys.stdout.write(
        json.dumps({"benchmark": "delta_large", "large": large, "in_memory": small, "ratio": ratio}) + "\n"
    )


if __name__ == "__main__":
    main()
