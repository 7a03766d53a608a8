"""What it costs to keep changes, and how fast they are read: `python -m tests.benchmarks.changes`.

Prints one JSON line a store: the milliseconds of an opaque, fenced commit of `--keys` keys without `changes=` and with it,
which take turns, their ratio (medians), and how many changes a second a feed reads of what was written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from states.postgres import PostgresState
from states.redis import RedisState
from tests.benchmarks._measuring import in_turns, medians, tell
from tests.benchmarks._writers import Writer, keys_of, milliseconds
from tests.harness.servers import start_postgres, start_redis


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--keys", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=15)
    given = options.parse_args(argv)
    for store in ("postgres", "redis", "redis fields"):
        start = start_postgres if store == "postgres" else start_redis
        with tempfile.TemporaryDirectory(prefix="trident-bench-") as work, start(Path(work)) as server:
            tell(store=store, **_measure(store, server.port, given.keys, given.rounds))
    return 0


def _measure(store: str, port: int, keys: int, rounds: int) -> dict[str, Any]:
    def writer(name: str, **options: Any) -> Writer:
        if store == "postgres":
            url = f"postgresql://trident@127.0.0.1:{port}/postgres"
            return Writer(PostgresState.opaque(url, table=name, **options), name, keys_of(keys))
        layout: Any = "fields" if store == "redis fields" else "strings"
        spec = RedisState.opaque(f"redis://127.0.0.1:{port}/0", prefix=name, layout=layout, **options)
        return Writer(spec, name, keys_of(keys))

    without, kept = writer("without"), writer("kept", changes="7d")
    ways = {name: partial(milliseconds, each.commit) for name, each in (("without", without), ("kept", kept))}
    ms = medians(in_turns(ways, rounds, 3))
    started = time.perf_counter()
    changes = sum(len(pairs) for _, pairs in kept.state.kept_changes.read(0, kept.txid))
    seconds = time.perf_counter() - started
    assert changes == keys * kept.txid
    for each in (without, kept):
        each.close()
    return {
        "keys": keys,
        "commit_ms": round(ms["without"], 1),
        "commit_with_changes_ms": round(ms["kept"], 1),
        "ratio": round(ms["kept"] / ms["without"], 2),
        "changes_per_s": round(changes / seconds),
    }


if __name__ == "__main__":
    sys.exit(main())
