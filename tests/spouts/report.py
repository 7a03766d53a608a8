"""The suite of `trident.testing` over all spouts, as one table: `python -m tests.spouts.report [--spout kafka]`.

Exit code 1 if a promise is broken; what was found is printed below the table.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.harness.kafka_servers import start_kafka
from tests.harness.servers import start_redis
from tests.spouts.catalog import SPOUTS, Spout
from trident.spark.environment import pin_worker_python
from trident.testing import SpoutReport, spout_suite, spout_table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check all spouts and print what holds.")
    parser.add_argument("--spout", action="append", choices=sorted(SPOUTS), help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=20.0, help="of random schedules for each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with servers() as started:
        reports = {}
        for name in options.spout or SPOUTS:
            reports[name] = examine(SPOUTS[name], started, options.seconds, options.seed)
            sys.stderr.write(f"{name}: {str(reports[name]).splitlines()[-1]}\n")  # it takes long: say how far it is
    sys.stdout.write(spout_table(reports))
    wrong = [name for name, report in reports.items() if report.violated != set(SPOUTS[name].broken) or report.not_run]
    for name, report in reports.items():
        known = "".join(f"known: {promise.title}: {reason}\n" for promise, reason in SPOUTS[name].broken.items())
        if known or name in wrong:
            sys.stdout.write(f"\n{name}\n{known}{report if name in wrong else ''}")
    return 1 if wrong else 0


def examine(spout: Spout, started: Any, seconds: float, seed: int) -> SpoutReport:
    def source() -> Any:
        return spout.source(started(spout.server)) if spout.server else spout.source()

    return spout_suite(source, seconds=seconds, seed=seed, out=io.StringIO())


@contextmanager
def servers() -> Iterator[Any]:
    """Start each server when it is asked for first."""
    running: dict[str, Any] = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trident-spouts-")))

        def started(name: str) -> Any:
            if name not in running:
                folder = work / name
                folder.mkdir()
                running[name] = _STARTS[name](folder)
                stack.callback(running[name].stop)
            return running[name]

        yield started


def _start_spark(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    pin_worker_python()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    return (
        builder.config("spark.sql.shuffle.partitions", 2).config("spark.sql.warehouse.dir", str(folder)).getOrCreate()
    )


_STARTS: dict[str, Callable[[Path], Any]] = {
    "kafka": lambda folder: start_kafka(folder, 2),
    "redis": start_redis,
    "spark": _start_spark,
}


if __name__ == "__main__":
    sys.exit(main())
