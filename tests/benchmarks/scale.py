"""What limits a topology's size, measured: `python -m tests.benchmarks.scale [ROW …] [--size 1.0] [--rounds 3] [--base PATH]`.

Each row starts drivers of its own, in turns, watches them from outside, and prints one JSON line: what was wanted, the
figures, and whether they are as wanted. Compare ratios; they are taken in one run, and are medians over the rounds. With
`--size 0.01` everything is a hundredth as large, to see that a row works. `docs/performance.md` explains the rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import _scale_rows as rows
from tests.benchmarks._drivers import DriverFailed
from tests.benchmarks._flatness import flat, flat_resident
from tests.benchmarks._measuring import tell
from tests.benchmarks._stores import MEASURED


@dataclass(frozen=True)
class Row:
    """One row: the bounds in words, and what gives the figures; `ok` among them says whether they are within the bounds."""

    wanted: str
    measure: Callable[[rows.Sizes], dict[str, Any]]


ROWS = {
    "driver": Row(
        "driver's Python CPU for 1 M distinct keys ≤ 0.15 s, ± 0.1 s of that for 10 k; < 100 kB collected", rows.driver
    ),
    "distinct": Row("words/s of executors ≥ 1.5 × those of the driver, 1 M distinct words", rows.distinct),
    "persist": Row("partition_persist of 10 M rows: most memory of the driver ≤ 300 MB above idle", rows.persist),
    "huge": Row("50 M words, 5 M distinct, one batch: ≤ 1,500 MB for any process", rows.huge),
    "skewed": Row("as `huge` with half of the words equal: ≤ 1,500 MB for any process", rows.skewed),
    "delta": Row("Delta, 10 M keys, 100 k random ones a batch: ≤ 5 s a batch, driver ≤ 1,000 MB", rows.delta),
    "backlog": Row("10 k sentences a batch with a backlog, memory and Redis: ≥ 2 × the base's words/s", rows.backlog),
    "smallest": Row("smallest batch, executors: ≤ 2.5 × the driver's time", rows.smallest),
    "base": Row("driver placement, all sizes: ≥ 0.95 × the base's words/s", rows.base),
    "flat": Row("10,000 batches: memory, time of a batch, log size and files flat within 5 %", flat),
    "resident": Row(
        "10,000 batches on resident workers: memory and descriptors of driver, JVM and workers, time, flat within 5 %",
        flat_resident,
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Measure rows and print a line for each; exit code 1 if one is not as wanted or cannot be measured."""
    options = _options(argv)
    sizes = rows.Sizes(options.size, options.rounds, options.base, options.state)
    ok = True
    for name in options.row or ROWS:
        started = time.monotonic()
        try:
            figures = ROWS[name].measure(sizes)
        except (DriverFailed, rows.NotAsked) as error:
            figures = {"ok": False, "error": str(error)}
        ok = ok and figures["ok"]
        took_s = round(time.monotonic() - started)
        tell(row=name, wanted=ROWS[name].wanted, size=options.size, **figures, took_s=took_s)
    return 0 if ok else 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:10} {row.wanted}" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.scale",
        description=f"{__doc__}\nrows:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("row", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--size", type=float, default=1.0, help="of everything, 1 is that of the table")
    parser.add_argument("--rounds", type=int, default=3, help="how often each pair is run")
    parser.add_argument("--base", type=Path, help="a tree of the commit to compare with (rows base and backlog)")
    parser.add_argument("--state", choices=sorted(MEASURED), default="redis", help="the store of the row distinct")
    options = parser.parse_args(argv)
    unknown = [name for name in options.row if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
