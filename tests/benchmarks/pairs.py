"""Two checkouts beside each other, in turns: `make pairs BASE=<checkout>`, or `python -m tests.benchmarks.pairs <checkout>`.

Each checkout has a process of its own for each row, and the two take turns; what is printed is how many times as fast this
checkout is as the other, as the median of the turns. Rows: the word count (words counted and recorded) in process, as Spark
jobs, on resident workers and as Spark is used by default, on a state in memory and in Redis; a commit of 10,000 keys for each
store; bolts; DRPC over HTTP. The last two start anew for each turn, so they take fewer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks._stores import MEASURED
from tests.harness.servers import ROOT as HERE

WARM_UP = 2
ENGINES = ("in_process", "jobs", "resident", "default")
SIZES = {1: 20, 1_000: 10, 10_000: 4, 100_000: 1}
"""Sentences a batch, and the batches of a turn."""

_WORDS = """
import sys, tempfile, time
from pathlib import Path
from spouts import FixedBatchSpout, FeederBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from trident import TridentTopology
from trident.operations import Count, Split
engine, size, batches, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rows = [[" ".join(f"w{(at * 10 + word) * 7919 % 10_007}" for word in range(10))] for at in range(size)]
prefix = f"{sys.argv[5]}{engine}{size}"
state = RedisState.opaque(f"redis://127.0.0.1:{port}/0", prefix=prefix) if port else MemoryMapState.opaque()
feeder, topology = FeederBatchSpout("sentence: string"), TridentTopology("pairs")
words = topology.new_stream("lines", feeder).each("sentence", Split(), "word: string")
words.group_by("word").persistent_aggregate(state, Count(), "count")
conf = {"in_process": {"engine": "in_process"}, "jobs": {"engine": "spark", "workers": "jobs"},
        "resident": {"engine": "spark", "workers": "resident"}, "default": {"engine": "spark"}}[engine]
if engine != "in_process":
    conf["master"] = "local[2]"
with tempfile.TemporaryDirectory() as folder, topology.start(log_dir=Path(folder, "log"), **conf) as running:
    for _ in sys.stdin:
        began = time.monotonic()
        for number in range(batches):
            feeder.feed_nowait(rows)
        running.process_all_available()
        print(time.monotonic() - began, flush=True)
"""
_COMMITS = """
import sys, time
from pathlib import Path
from states.memory import MemoryMapState
from tests.benchmarks._stores import MEASURED
from tests.benchmarks._writers import Writer, keys_of
store, port, work = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
spec = MemoryMapState.opaque() if store == "memory" else MEASURED[store].spec(port, work, 0)
writer = Writer(spec, work.name, keys_of(10_000))
for _ in sys.stdin:
    began = time.monotonic()
    writer.commit()
    print(time.monotonic() - began, flush=True)
"""

Turn = Callable[[], float]  # does the work of one turn; returns how long it took, in any unit


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table: for each row the ratio, its quartiles, and what each checkout took."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pairs", description=__doc__)
    parser.add_argument("base", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rows", default="", help="only rows whose name has this text")
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and measure nothing")
    asked = parser.parse_args(argv)
    base = asked.base.resolve()
    if not (base / "trident").is_dir():
        parser.error(f"{base} is no checkout of this project: it has no folder trident")
    with tempfile.TemporaryDirectory(prefix="pairs-") as work, ExitStack() as ends:
        rows = {name: pair for name, pair in _rows(base, Path(work), ends).items() if asked.rows in name}
        for name, (pair, turns) in rows.items():
            sys.stdout.write(f"{name}\n" if asked.list else _measured(name, pair, min(turns, asked.turns)))
            sys.stdout.flush()
    return 0


Pair = Callable[[ExitStack], list[Turn]]  # starts both checkouts, this one first


def _rows(base: Path, work: Path, ends: ExitStack) -> dict[str, tuple[Pair, int]]:
    """Return by name how to start a row, and how many turns it has at most."""
    ports: dict[str, int] = {}

    def port_of(store: str) -> int:
        server = MEASURED[store].server if store in MEASURED else None
        if server is not None and store not in ports:
            folder = work / f"server-{store}"
            folder.mkdir()
            started = server(folder)
            ends.enter_context(started)
            ports[store] = started.port
        return ports.get(store, 0)

    def words(engine: str, size: int, store: str) -> Pair:
        return lambda open_: [
            open_.enter_context(_process(checkout, _WORDS, engine, size, SIZES[size], port_of(store), name))
            for checkout, name in ((HERE, "here"), (base, "base"))
        ]

    def commits(store: str) -> Pair:
        def pair(open_: ExitStack) -> list[Turn]:
            folders = [work / f"{store}_{name}" for name in ("here", "base")]
            for folder in folders:
                folder.mkdir(exist_ok=True)
            return [
                open_.enter_context(_process(checkout, _COMMITS, store, port_of(store), folder))
                for checkout, folder in zip((HERE, base), folders, strict=True)
            ]

        return pair

    rows: dict[str, tuple[Pair, int]] = {}
    for engine in ENGINES:
        for size in SIZES:
            for store in ("memory", "redis"):
                rows[f"words {engine} {size} {store}"] = words(engine, size, store), 20
    for store in ("memory", *MEASURED):
        rows[f"commit {store}"] = commits(store), 20
    bolts = "tests.benchmarks.bolts", "tracked", "--engine", "local", "--seconds", "3", "--warm", "2"
    rows["bolts"] = lambda open_: [_command(each, "sentences_per_s", *bolts) for each in (HERE, base)], 5
    drpc = "tests.benchmarks.drpc", "--clients", "8", "--requests", "2000"
    rows["drpc"] = lambda open_: [_command(each, "requests_s", *drpc) for each in (HERE, base)], 5
    return rows


def _measured(name: str, pair: Pair, turns: int) -> str:
    """Let both take turns; return the row of the table."""
    took: list[list[float]] = [[], []]
    with ExitStack() as open_:
        both = pair(open_)
        for turn in range(turns + WARM_UP):
            for at in (0, 1) if turn % 2 else (1, 0):
                took[at].append(both[at]())
    ours, theirs = (each[WARM_UP:] for each in took)
    ratios = sorted(other / own for own, other in zip(ours, theirs, strict=True))
    lower, _, upper = statistics.quantiles(ratios, n=4)
    median = statistics.median(ratios)
    figures = f"{median:6.2f}   {lower:5.2f} … {upper:5.2f}"
    return f"{name:32}{figures}   {statistics.median(ours):10.5f} {statistics.median(theirs):10.5f}\n"


@contextmanager
def _process(checkout: Path, program: str, *arguments: object) -> Iterator[Turn]:
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def turn() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield turn


def _command(checkout: Path, rate: str, module: str, *arguments: str) -> Turn:
    """Return what runs a benchmark of a checkout; its rate becomes a time."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}

    def turn() -> float:
        command = [sys.executable, "-m", module, *arguments]
        ran = subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.PIPE, text=True, check=False)
        return 1 / float(json.loads(ran.stdout.splitlines()[-1])[rate])

    return turn


if __name__ == "__main__":
    raise SystemExit(main())
