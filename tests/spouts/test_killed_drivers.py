"""Topologies that read files, tables or a rate: on Spark, and with drivers that are killed; each row counts once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import CsvFileSpout, DeltaSpout, JsonFileSpout, ParquetFileSpout, RateSpout
from states.memory import MemoryMapState
from tests.spouts.delta.test_delta_versions import append
from tests.spouts.files.test_parquet import parquet, table
from tests.spouts.files.test_text_files import write
from trident import TridentTopology
from trident.operations import Sum
from trident.spout import ITridentSpout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill_files(folder: Path, rows: int) -> None:
    """Write the numbers below a multiple of 3, a third into each of three files of each kind."""
    for at in range(0, rows, rows // 3):
        numbers = range(at, at + rows // 3)
        write(folder / "in" / f"{at}.csv", b"name,id\n" + b"".join(b"x,%d\n" % k for k in numbers))
        write(folder / "in" / f"{at}.json", b"".join(b'{"id": %d, "n": {"a": 1}}\n' % k for k in numbers))
        parquet(folder / "in" / f"{at}.parquet", table(at, at + rows // 3), 250)


def run_killed(folder: Path, kill_at: int | None = None) -> str:
    """Run the driver to its end, or kill it when it has printed so many lines; return its last line."""
    last = ""
    with subprocess.Popen(
        [sys.executable, "-c", CHANGING_SOURCES, folder], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        for number, line in enumerate(driver.stdout, 1):
            last = line.strip()
            if number == kill_at:
                os.kill(driver.pid, signal.SIGKILL)
    assert driver.returncode == (-signal.SIGKILL if kill_at else 0)
    return last


CHANGING_SOURCES = """
import sys
from spouts import CsvFileSpout, DeltaSpout, ParquetFileSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import BaseFunction, Count, Filter, Sum

class Tell(Filter):
    def is_keep(self, tuple):
        print(tuple[0], flush=True)
        return True

class Sign(BaseFunction):
    def execute(self, tuple, collector):
        collector.emit([1 if tuple[0] in ("insert", "update_postimage") else -1])

folder = sys.argv[1]
topology = TridentTopology("sources")
found = []

def add(name, stream):
    for what, aggregate in (("count", Count()), ("sum", Sum())):
        state = DeltaState.opaque(f"{folder}/states/{name}-{what}")
        inputs = ("n",) if what == "sum" else ()
        found.append(stream.persistent_aggregate(state, *inputs, aggregate, what, state_name=f"{name}-{what}"))

add("csv", topology.new_stream("csv", CsvFileSpout(folder + "/csv", "n: bigint", max_batch_bytes=400)).each("n", Tell()))
add("parquet", topology.new_stream("parquet", ParquetFileSpout(folder + "/parquet", "n", max_batch_rows=40)))
table = DeltaSpout(folder + "/delta", "n", mode="changes", starting_version=0, max_batch_files=2)
changes = topology.new_stream("changes", table).each("_change_type", Sign(), "sign: bigint")
counts = changes.group_by("n").persistent_aggregate(DeltaState.opaque(folder + "/states/rows"), "sign", Sum(), "rows")
with topology.start(engine="in_process", log_dir=folder + "/log") as running:
    running.process_all_available()
    rows = {key: value for key, value in running.state(counts).get_tuples() if value}
    print(*(running.state(one).get() for one in found), sorted(rows.items()), flush=True)
"""


class Writer:
    """Writes to all three sources, and knows what they hold."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.n, self.written, self.steps = 0, {"csv": list[int](), "parquet": list[int]()}, 0
        for name in ("csv", "parquet"):
            (folder / name).mkdir()
        write_deltalake(folder / "delta", self.table(5), configuration={"delta.enableChangeDataFeed": "true"})

    def table(self, rows: int) -> pa.Table:
        self.n += rows
        return pa.table({"n": pa.array(range(self.n - rows, self.n), pa.int64())})

    def write(self) -> None:
        self.steps += 1
        numbers = self.table(self.chance.randrange(1, 60))["n"].to_pylist()
        path = self.folder / "csv" / f"{self.chance.randrange(4)}.csv"
        text = "" if path.exists() else "name,n\n"
        with path.open("a") as file:
            file.write(text + "".join(f'"a, b",{n}\n' for n in numbers))
        self.written["csv"] += numbers
        data = self.table(self.chance.randrange(1, 60))
        part = self.folder / "parquet" / f"{self.steps}.part"
        pq.write_table(data, part, row_group_size=15)
        part.rename(part.with_suffix(".parquet"))
        self.written["parquet"] += data["n"].to_pylist()
        table = DeltaTable(self.folder / "delta")
        low = self.chance.randrange(self.n)
        for what in self.chance.choices(["append", "append", "delete", "update", "compact"], k=3):
            if what == "append":
                write_deltalake(table, self.table(5), mode="append")
            elif what == "delete":
                table.delete(f"n > {low} and n < {low + 20}")
            elif what == "update":
                table.update(updates={"n": "n + 1000000"}, predicate=f"n > {low} and n < {low + 20}")
            else:
                table.optimize.compact()

    def expected(self) -> str:
        counted: dict[int, int] = {}
        for n in sorted(pa.table(DeltaTable(self.folder / "delta").to_pyarrow_table())["n"].to_pylist()):
            counted[n] = counted.get(n, 0) + 1
        sums = [f"{len(rows)} {sum(rows)}" for rows in self.written.values()]
        return f"{' '.join(sums)} {sorted(counted.items())}"


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.long), *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))]
)
def test_sums_are_exact_after_kills_at_random_while_the_sources_change(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    writer = Writer(tmp_path, chance)
    for _ in range(8):
        for _ in range(chance.randrange(4, 8)):
            writer.write()
        run_killed(tmp_path, chance.randrange(1, 50))
    assert run_killed(tmp_path) == writer.expected()


def test_they_run_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    fill_files(tmp_path, 3000)
    spark.range(3000).repartition(3).write.parquet(str(tmp_path / "spark"))
    for start in range(0, 3000, 1000):
        append(tmp_path / "table", start, start + 1000)
    topology, folder = TridentTopology("files"), tmp_path / "in"
    spouts: dict[str, ITridentSpout] = {
        "csv": CsvFileSpout(folder, "id: bigint, name: string", max_batch_bytes=8192),
        "json": JsonFileSpout(folder, "id: bigint, n: struct<a:int>", max_batch_bytes=32_768),
        "parquet": ParquetFileSpout(folder, max_batch_rows=1500),
        "spark": ParquetFileSpout(tmp_path / "spark"),
        "delta": DeltaSpout(tmp_path / "table", max_batch_files=2),
        "rate": RateSpout(rows_per_batch=1200, rows=3000),
    }
    sums = [
        topology.new_stream(name, spout).persistent_aggregate(
            MemoryMapState(), "value" if name == "rate" else "id", Sum(), "sum", state_name=name
        )
        for name, spout in spouts.items()
    ]
    with topology.start(engine="spark", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        assert [running.state(one).get() for one in sums] == [2999 * 1500] * 6
        assert running.txid > 2
