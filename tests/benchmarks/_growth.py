"""One size of batch in a process of its own, so that its memory can be told: `python -m tests.benchmarks._growth {...}`."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks._stores import MEASURED
from tests.benchmarks._writers import Writer, keys_of, milliseconds, peak_rss_growth_mb

COMMITS = {1_000: 9, 10_000: 7, 100_000: 3}


def grow(store: str, port: int, work: Path, keys: int) -> dict[str, Any]:
    """Commit the same keys a few times: the first time they are new, then they are read, changed and written."""
    writer = Writer(MEASURED[store].spec(port, work / str(keys), 0), f"growth{keys}", keys_of(keys))
    commits = COMMITS.get(keys, 2)
    with peak_rss_growth_mb() as growth:
        first = milliseconds(writer.commit)
        times = [milliseconds(writer.commit) for _ in range(commits)]
    writer.check(1 + commits)
    writer.close()
    return {
        "keys": keys,
        "new_ms_per_1k": round(first / keys * 1000, 3),
        "ms_per_1k": round(statistics.median(times) / keys * 1000, 3),
        "peak_rss_growth_mb": round(growth[0], 1),
        "rss_growth_bytes_per_key": round(growth[0] * (1 << 20) / keys),
    }


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(grow(task["store"], task["port"], Path(task["work"]), task["keys"])))
