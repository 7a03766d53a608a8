"""Reads CSV, JSON and Parquet files through their spouts, and with bare pyarrow, on the same files in one run.

    python -m tests.benchmarks.file_reading [rows]

Both use as many threads as there are cores: a spout a part for each, pyarrow its own pool. A ratio is the time of pyarrow
divided by that of the spout; 1 is as fast. The best of several rounds that take turns. The processor's time is that of all
threads, and other processes hardly change it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from spouts import CsvFileSpout, JsonFileSpout, ParquetFileSpout
from trident.spout import ITridentSpout, TransactionAttempt

ROUNDS = 5
FILES = 4
CORES = len(os.sched_getaffinity(0))
FIELDS = "id: bigint, name: string, amount: double, town: string"


def rows_of(count: int) -> pa.Table:
    numbers = np.arange(count)
    amounts = np.random.default_rng(1).integers(0, 100_000, count) / 100
    names = pa.array([f"user{k}" for k in range(5000)]).take(pa.array(numbers % 5000))
    towns = pa.array([f"town{k}" for k in range(97)]).take(pa.array(numbers % 97))
    return pa.table({"id": numbers, "name": names, "amount": amounts, "town": towns})


def write_files(folder: Path, table: pa.Table) -> None:
    each = table.num_rows // FILES
    for number in range(FILES):
        part = table.slice(number * each, each)
        pa.csv.write_csv(part, folder / f"{number}.csv")
        pa.parquet.write_table(part, folder / f"{number}.parquet", row_group_size=max(1, each // 4))
        with (folder / f"{number}.json").open("w") as file:
            for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
                file.write('{"id": %d, "name": "%s", "amount": %r, "town": "%s"}\n' % row)  # noqa: UP031


def by_spout(spout: ITridentSpout) -> int:
    coordinator = spout.get_coordinator({})
    emitter: Any = spout.get_emitter({})
    previous: Any = None
    rows = 0

    def read(part: Any) -> int:
        return sum(table.num_rows for table in emitter.emit(part))

    with ThreadPoolExecutor(CORES) as threads:
        while (previous := coordinator.initialize_transaction(1, previous)) is not None:
            rows += sum(threads.map(read, coordinator.parts(TransactionAttempt(1, 0), previous, CORES)))
    return rows


def by_pyarrow(folder: Path, kind: str, schema: pa.Schema) -> int:
    rows = 0
    for path in sorted(folder.glob(f"*.{kind}")):
        if kind == "csv":
            convert = pa.csv.ConvertOptions(column_types=schema)
            rows += pa.csv.read_csv(path, convert_options=convert).num_rows
        elif kind == "json":
            parse = pa.json.ParseOptions(explicit_schema=schema)
            rows += pa.json.read_json(path, parse_options=parse).num_rows
        else:
            rows += pa.parquet.read_table(path).num_rows
    return rows


class Cost(NamedTuple):
    """Seconds on the clock, and of the processor."""

    clock: float
    processor: float


def cost(work: Callable[[], int], expected: int) -> Cost:
    began, used = time.perf_counter(), time.process_time()
    assert work() == expected
    return Cost(time.perf_counter() - began, time.process_time() - used)


def best(costs: Sequence[Cost]) -> Cost:
    return Cost(min(one.clock for one in costs), min(one.processor for one in costs))


def costs(count: int, rounds: int = ROUNDS) -> dict[str, tuple[Cost, Cost, int]]:
    """Return the best costs of spout and pyarrow for each kind of file, with the bytes of the files."""
    found: dict[str, tuple[Cost, Cost, int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name), rows_of(count // FILES * FILES)
        write_files(folder, table)
        settings: dict[str, Any] = {"max_batch_bytes": 64 << 20, "follow": False}
        spouts: dict[str, ITridentSpout] = {
            "csv": CsvFileSpout(folder, FIELDS, **settings),
            "json": JsonFileSpout(folder, FIELDS, **settings),
            "parquet": ParquetFileSpout(folder, **settings),
        }
        for kind, spout in spouts.items():
            pairs = []
            for _ in range(rounds):
                ours = cost(lambda spout=spout: by_spout(spout), table.num_rows)  # type: ignore[misc]
                bare = cost(lambda kind=kind: by_pyarrow(folder, kind, table.schema), table.num_rows)  # type: ignore[misc]
                pairs.append((ours, bare))
            size = sum(path.stat().st_size for path in folder.glob(f"*.{kind}"))
            found[kind] = best([one for one, _ in pairs]), best([one for _, one in pairs]), size
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    print(f"{count:,} rows in {FILES} files of each kind, {CORES} cores, the best of {ROUNDS} rounds")
    for kind, (ours, bare, size) in costs(count).items():
        print(
            f"{kind:8} {size / 1e6:5.0f} MB  spout {ours.clock:6.3f} s {count / ours.clock / 1e6:5.1f} M rows/s  "
            f"pyarrow {bare.clock:6.3f} s  ratio {bare.clock / ours.clock:.2f}  "
            f"processor {ours.processor:6.3f} s, {bare.processor:6.3f} s  ratio {bare.processor / ours.processor:.2f}"
        )


if __name__ == "__main__":
    main()
