"""Commits and reads of many keys, beside the raw clients of the stores: `python -m tests.benchmarks.commits --store redis`.

Prints one JSON line a store. `commit_ms`: one opaque, fenced commit of `--keys` distinct keys, each an int count, through
the public `StateSpec`. `raw_commit_ms`: one bulk read and one bulk write of the same number of keys with the same bytes,
through the store's own client; `raw_write_ms`: the write alone. `read_ms` and `raw_read_ms`: reads of all keys. Ours and raw
take turns, round by round; a ratio is raw time by our time, so above 1 ours is the faster. `growth`: batches of 1,000 to
1,000,000 keys, each size in a process of its own, with the growth of its memory above what the keys themselves take.

Delta commits into a state of `--table-keys` keys, beside a MERGE of the same rows through delta-rs and through Spark.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks._measuring import apart, in_turns, tell
from tests.benchmarks._stores import MEASURED, RustMerge, spark_merge
from tests.benchmarks._writers import Writer, keys_of, milliseconds, peak_rss_growth_mb, stored_bytes

GROWTH = (1_000, 10_000, 100_000, 1_000_000)
WARM_UP = 2
_COMMITS = {1_000: 9, 10_000: 7, 100_000: 3}  # by the keys of each
COMPARED = [name for name, store in MEASURED.items() if store.raw is not None or name == "delta"]


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    for store in options.store or COMPARED:
        with tempfile.TemporaryDirectory(prefix="trident-bench-") as work:
            measure = _measure_delta if store == "delta" else _measure_server
            tell(**measure(store, options, Path(work)))
    return 0


def _measure_server(store: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    measured, keys = MEASURED[store], keys_of(options.keys)
    assert measured.server is not None
    assert measured.raw is not None
    with measured.server(work) as server:
        writer = Writer(measured.spec(server.port, work, options.cache), "side_by_side", keys)
        with measured.raw(server.port, [key[0] for key in keys], stored_bytes()) as raw:

            def raw_commit() -> None:
                raw.read_for_commit()
                raw.write()

            actions = {
                "commit_ms": writer.commit, "raw_commit_ms": raw_commit, "raw_write_ms": raw.write, "read_ms": writer.read,
                "raw_read_ms": raw.read,
            }  # fmt: skip
            times = _timed(options.rounds, actions)
        writer.check(writer.txid)
        writer.close()
        growth = _growth(store, server.port, work, options)
    return {
        "store": store,
        **{name: value for name, value in vars(options).items() if name in ("keys", "rounds", "cache")},
        **{name: _figures(values) for name, values in times.items()},
        "commit_ratio": _ratio(times["raw_commit_ms"], times["commit_ms"]),
        "write_ratio": _ratio(times["raw_write_ms"], times["commit_ms"]),
        "read_ratio": _ratio(times["raw_read_ms"], times["read_ms"]),
        "growth": growth,
    }


def _measure_delta(store: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    all_keys = keys_of(options.table_keys)
    keys = all_keys[:: max(1, len(all_keys) // options.keys)][: options.keys]
    writer = Writer(MEASURED[store].spec(0, work, options.cache), "side_by_side", all_keys)
    load_ms = milliseconds(writer.commit)
    writer.use(keys)
    rust = RustMerge(work / "rust", all_keys, keys)
    actions: dict[str, Callable[[], object]] = {
        "commit_ms": writer.commit, "rust_merge_ms": rust.commit, "read_ms": writer.read, "raw_read_ms": rust.read,
    }  # fmt: skip
    if options.spark:
        with spark_merge(work / "spark", all_keys, keys) as spark:
            times = _timed(options.delta_rounds, {**actions, "spark_merge_ms": spark.commit})
    else:
        times = _timed(options.delta_rounds, actions)
    writer.check(writer.txid)
    writer.close()
    commit = times["commit_ms"]
    return {
        "store": store, "keys": len(keys), "table_keys": len(all_keys), "rounds": options.delta_rounds,
        "first_commit_ms": round(load_ms, 1), **{name: _figures(values) for name, values in times.items()},
        "time_by_rust_merge": _ratio(commit, times["rust_merge_ms"]),
        **({"time_by_spark_merge": _ratio(commit, times["spark_merge_ms"])} if options.spark else {}),
        "read_ratio": _ratio(times["raw_read_ms"], times["read_ms"]), "growth": _growth(store, 0, work, options),
    }  # fmt: skip


def _timed(rounds: int, actions: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    return in_turns({name: partial(milliseconds, action) for name, action in actions.items()}, rounds, WARM_UP)


def _growth(store: str, port: int, work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    return [apart(grow, store=store, port=port, work=str(work / "growth"), keys=size) for size in options.growth]


def grow(store: str, port: int, work: str, keys: int) -> dict[str, Any]:
    """Commit the same keys a few times: the first time they are new, then they are read, changed and written."""
    writer = Writer(MEASURED[store].spec(port, Path(work, str(keys)), 0), f"growth{keys}", keys_of(keys))
    commits = _COMMITS.get(keys, 2)
    with peak_rss_growth_mb() as growth:
        first = milliseconds(writer.commit)
        times = [milliseconds(writer.commit) for _ in range(commits)]
    writer.check(1 + commits)
    writer.close()
    return {
        "keys": keys, "new_ms_per_1k": round(first / keys * 1000, 3),
        "ms_per_1k": round(statistics.median(times) / keys * 1000, 3), "peak_rss_growth_mb": round(growth[0], 1),
        "rss_growth_bytes_per_key": round(growth[0] * (1 << 20) / keys),
    }  # fmt: skip


def _figures(times: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(times), 2), "best": round(min(times), 2)}


def _ratio(upper: Sequence[float], lower: Sequence[float]) -> dict[str, float]:
    above, below = _figures(upper), _figures(lower)
    return {name: round(above[name] / below[name], 3) for name in above}


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure commits and reads beside the stores' own clients.")
    parser.add_argument("--store", action="append", choices=sorted(COMPARED), help="may be repeated; default: all")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct keys of a commit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cache", type=int, default=0, help="entries of a CachedMap before the store")
    parser.add_argument("--growth", type=int, nargs="*", default=list(GROWTH), help="sizes of batches; none: skip")
    parser.add_argument("--table-keys", type=int, default=1_000_000, help="keys in the Delta state")
    parser.add_argument("--delta-rounds", type=int, default=5)
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="without the MERGE through Spark")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
