"""What it saves to have log and state in one transaction: `python -m tests.benchmarks.one_transaction`.

Prints one JSON line: for batches of some sizes the milliseconds of a whole batch, counted in process by word with a state and
a log in one PostgreSQL. `together`: state and record are one transaction. `apart`: two, because the log's address names the
server otherwise. `files`: the log is in files. They take turns on one machine; the ratios are those of medians.
`--flush-us` lets the server wait so long before each sync, as a slower disk does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from tests.benchmarks._measuring import in_turns, medians, tell
from tests.harness.servers import start_postgres
from trident import TridentTopology
from trident.operations import Count

_numbers = count(1)


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--batches", type=int, default=300, help="batches a turn")
    options.add_argument("--sizes", type=int, nargs="+", default=[1, 100, 1000], help="distinct words of a batch")
    options.add_argument("--flush-us", type=int, default=0)
    given = options.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="trident-bench-") as work:
        slower = ("-c", f"commit_delay={given.flush_us}", "-c", "commit_siblings=0") if given.flush_us else ()
        with start_postgres(Path(work), *slower) as server:
            url = f"postgresql://trident@127.0.0.1:{server.port}/postgres"
            logs = {
                "together": f"{url}?topology=",
                "apart": f"{url.replace('127.0.0.1', 'localhost')}?topology=",
                "files": f"{work}/",
            }
            found = {str(size): _measure(url, logs, size, given.batches, given.rounds) for size in given.sizes}
    tell(**found)
    return 0


def _measure(url: str, logs: dict[str, str], size: int, batches: int, rounds: int) -> dict[str, float]:
    ways = {name: partial(_batch_ms, url, log, size, batches) for name, log in logs.items()}
    found = medians(in_turns(ways, rounds), 2)
    return {**found, "ratio": round(found["together"] / found["apart"], 2)}


def _batch_ms(url: str, log: str, size: int, batches: int) -> float:
    name = f"one-transaction-{next(_numbers)}"
    words = [(f"word{number}",) for number in range(size)]
    topology = TridentTopology(name)
    stream = topology.new_stream("words", FixedBatchSpout("word: string", size, *(words * batches)))
    stream.group_by("word").persistent_aggregate(PostgresState.opaque(url), Count(), "count")
    config = {"engine": "in_process", "log_dir": f"{log}{name}", "poll_interval_ms": 1, "max_spout_pending": 1}
    with topology.start(config) as running:
        running.process_all_available()
        assert running.txid == batches
        return 1000 * running.seconds / batches


if __name__ == "__main__":
    sys.exit(main())
