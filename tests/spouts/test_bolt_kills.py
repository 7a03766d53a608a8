"""Sources over drivers and bolts that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import CsvFileSpout, DeltaSpout, JsonFileSpout, ParquetFileSpout, RateSpout
from states.memory import MemoryMapState
from tests.harness.commands import environment
from tests.harness.forked import ROOT, command_of
from tests.spouts.delta.test_delta_versions import append
from tests.spouts.files.test_parquet import parquet, table
from tests.spouts.files.test_text_files import write
from tests.spouts.places import Place
from trident import TridentTopology
from trident.operations import Sum
from trident.spout import ITridentSpout
from trident.spout.rich import Activated
from trident.storm import (
    BaseBasicBolt,
    BaseRichSpout,
    BasicOutputCollector,
    StormConfig,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

PENDING = 500
"""Messages that a spout's task takes from its queue before they are acknowledged there."""
_TIMEOUT_S, _EVERY_S, _GAP_S = 6.0, 0.2, 3.0
_VICTIMS = {"worker": 12, "both workers": 2, "executor": 3, "stopped": 2, "driver": 1}
_CHUNK = 1000
_LIMIT_S = 6000.0
_START_S = 180.0
_SPOUTS = 2
LEAVES = 3
RECORD = struct.Struct("<IIQ")
"""The message, the leaf, nanoseconds."""


class _Record:
    def __init__(self, folder: Path, kind: str) -> None:
        self._file = os.open(folder / f"{kind}-{uuid.uuid4().hex}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, message: int, leaf: int) -> None:
        os.write(self._file, RECORD.pack(message, leaf, time.monotonic_ns()))


class _Collector:
    """Tells a spout's collector from its own which message has which id."""

    def __init__(self, collector: Any, messages: dict[Any, int]) -> None:
        self._collector, self._messages = collector, messages
        self.report_error = collector.report_error

    def emit(self, values: Any, message_id: Any = None, stream_id: str = "default") -> Any:
        self._messages[message_id] = values[1]
        return self._collector.emit([values[1]], message_id, stream_id)


class RecordedSpout(BaseRichSpout):
    """Another spout, whose acknowledgements are written down before it hears of them."""

    def __init__(self, spout: Any, folder: Path) -> None:
        self._spout, self._folder = spout, folder

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        self._messages: dict[Any, int] = {}
        self._record = _Record(self._folder, "acks")
        self._spout.open(conf, context, _Collector(collector, self._messages))

    def next_tuple(self) -> None:
        self._spout.next_tuple()

    def ack(self, msg_id: Any) -> None:
        self._record.write(self._messages.pop(msg_id), 0)
        self._spout.ack(msg_id)

    def fail(self, msg_id: Any) -> None:
        self._spout.fail(msg_id)

    def activate(self) -> None:
        if isinstance(self._spout, Activated):
            self._spout.activate()

    def deactivate(self) -> None:
        if isinstance(self._spout, Activated):
            self._spout.deactivate()

    def close(self) -> None:
        self._spout.close()

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("message: bigint")


class SplitBolt(BaseBasicBolt):
    """One tuple for each leaf."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        for leaf in range(LEAVES):
            collector.emit([tuple["message"], leaf])

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("message: bigint", "leaf: int")


class LeafBolt(BaseBasicBolt):
    """Writes down each leaf; it is acknowledged afterwards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self._record = _Record(self._folder, "leaves")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        self._record.write(tuple["message"], tuple["leaf"])

    def declare_output_fields(self, declarer: StreamDeclarer) -> None: ...


def run_until_stopped(spout: Any, master: str | None, folder: Path) -> None:
    """Run the topology until `folder/stop` is there, and show which processes its workers are."""
    builder = TopologyBuilder()
    builder.set_spout("messages", RecordedSpout(spout, folder), _SPOUTS)
    builder.set_bolt("split", SplitBolt(), 2).shuffle_grouping("messages")
    builder.set_bolt("leaves", LeafBolt(folder), 2).fields_grouping("split", ["message", "leaf"])
    conf = StormConfig(
        name="kills", workers=2, acker_executors=2, message_timeout_s=_TIMEOUT_S, max_spout_pending=PENDING,
        worker_timeout_s=5.0, max_worker_deaths=10_000, master=master,
    )  # fmt: skip
    with builder.start(conf) as running:
        while not (folder / "stop").exists():
            shown = folder / "workers.part"
            shown.write_text(json.dumps([each["pid"] for each in running.workers]))
            shown.rename(folder / "workers.json")
            running.await_termination(_EVERY_S)


_TYPE = np.dtype([("message", "<u4"), ("leaf", "<u4"), ("at", "<u8")])


@dataclass(frozen=True)
class Verdict:
    """All counts are of messages, but for `extra`, which is of leaves.

    Attributes
    ----------
    lost
        With a leaf that was never executed, or without an acknowledgement.
    early
        Acknowledged before the first execution of its last leaf.
    extra
        Executions beyond one of each leaf.
    """

    lost: int
    early: int
    extra: int


def acked(folder: Path) -> int:
    return len(np.unique(_read(folder, "acks")["message"]))


def judge(folder: Path, messages: int) -> Verdict:
    """Compare what was executed with what was acknowledged, message by message."""
    leaves, acks = _read(folder, "leaves"), _read(folder, "acks")
    first = np.full(messages * LEAVES, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, leaves["message"].astype(np.int64) * LEAVES + leaves["leaf"], leaves["at"])
    complete = first.reshape(messages, LEAVES).max(axis=1)
    never = complete == np.iinfo(np.uint64).max
    answered = np.zeros(messages, bool)
    answered[acks["message"]] = True
    early = np.unique(acks["message"][acks["at"] < complete[acks["message"]]])
    return Verdict(int((never | ~answered).sum()), len(early), len(leaves) - messages * LEAVES)


def _read(folder: Path, kind: str) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = [np.fromfile(each, _TYPE) for each in folder.glob(f"{kind}-*")]
    return np.concatenate([*found, np.empty(0, _TYPE)])


@dataclass(frozen=True)
class Outcome:
    """What a campaign did and found."""

    kills: Counter[str]
    verdict: Verdict
    left: int

    @property
    def bound(self) -> int:
        """How many leaves may have been executed once more: of all that was pending at each kill."""
        return sum(self.kills.values()) * _SPOUTS * PENDING * LEAVES


class _Driver:
    """The process of the driver, and those that it started."""

    def __init__(self, spout: Any, master: str | None, folder: Path) -> None:
        self._folder = folder
        self._argv = command_of(run_until_stopped, spout, master, folder)
        self.start()

    def start(self) -> None:
        """Start it; return when its workers run."""
        (self._folder / "workers.json").unlink(missing_ok=True)
        with (self._folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._argv,
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ends = time.monotonic() + _START_S
        while not self.workers():
            assert self.process.poll() is None, (self._folder / "driver.log").read_text()[-5000:]
            assert time.monotonic() < ends, "the driver does not start"
            time.sleep(0.1)

    def workers(self) -> list[int]:
        try:
            return [pid for pid in json.loads((self._folder / "workers.json").read_text()) if pid]
        except FileNotFoundError:
            return []

    def executors(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        commands = {one: " ".join(one.as_dict(["cmdline"])["cmdline"] or []) for one in children}
        return [one for one, command in commands.items() if "CoarseGrainedExecutorBackend" in command]

    def hit(self, victim: str, chance: random.Random) -> bool:
        """Kill; whether there was anyone."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if victim == "driver":
                self.process.kill()
                self.process.wait()
                self.start()
                return True
            if victim == "executor":
                found = self.executors()
                if found:
                    chance.choice(found).kill()
                return bool(found)
            workers = [psutil.Process(pid) for pid in self.workers()]
            if victim == "worker":
                workers = workers and [chance.choice(workers)]
            for each in workers:
                each.send_signal(signal.SIGSTOP if victim == "stopped" else signal.SIGKILL)
            if victim == "stopped":
                time.sleep(chance.uniform(0.5, 8.0))
                for each in workers:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.send_signal(signal.SIGCONT)
            return bool(workers)
        return False

    def end(self) -> None:
        (self._folder / "stop").touch()
        code = self.process.wait(_START_S)
        assert code == 0, (self._folder / "driver.log").read_text()[-5000:]

    def close(self) -> None:
        """Kill what is left."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait()


def campaign(place: Place, folder: Path, messages: int, kills: int, seed: int, master: str | None) -> Outcome:
    """Fill a queue while a topology reads it and is killed; return what was found when all is acknowledged."""
    chance, hits, began = random.Random(seed), Counter[str](), time.monotonic()
    place.spread(_SPOUTS)
    place.fill([0])
    spout = place.spout(max_pending=PENDING, first_pause_s=0.1, longest_pause_s=1.0, **place.for_kills)
    with contextlib.closing(_Driver(spout, master, folder)) as driver:
        feeder = threading.Thread(target=_feed, args=(place, messages, kills * _GAP_S), daemon=True)
        feeder.start()
        while hits.total() < kills:
            time.sleep(chance.expovariate(1 / _GAP_S))
            victim = chance.choices(list(_VICTIMS), list(_VICTIMS.values()))[0]
            hits[victim] += driver.hit(victim, chance)
        feeder.join()
        _wait(folder, messages, began)
        driver.end()
    return Outcome(hits, judge(folder, messages), place.left())


def _feed(place: Place, messages: int, seconds: float) -> None:
    """Spread the messages over the time of the kills."""
    began = time.monotonic()
    for first in range(1, messages, _CHUNK):
        place.fill(range(first, min(messages, first + _CHUNK)))
        ahead = began + seconds * first / messages - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def _wait(folder: Path, messages: int, began: float) -> None:
    while (done := acked(folder)) < messages:
        assert time.monotonic() - began < _LIMIT_S, f"{messages - done} of {messages} messages are not acknowledged"
        time.sleep(1.0)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("master", "messages", "kills"), [("local-cluster[2,1,1024]", 1_000_000, 100), (None, 20_000, 10)]
)
def test_no_message_is_lost_or_acked_early(
    master: str | None, messages: int, kills: int, place: Place, tmp_path: Path
) -> None:
    found = campaign(place, tmp_path, messages, kills, seed=14, master=master)
    assert (found.verdict.lost, found.verdict.early, found.left) == (0, 0, 0)
    assert 0 <= found.verdict.extra <= found.bound
    assert found.kills.total() == kills


def _write(folder: Path, kind: str, *records: tuple[int, int, int]) -> None:
    (folder / f"{kind}-1").write_bytes(b"".join(RECORD.pack(*each) for each in records))


def test_the_judge_sees_what_is_lost_early_and_executed_again(tmp_path: Path) -> None:
    leaves = [(message, leaf, 10 + leaf) for message in range(4) for leaf in range(LEAVES)]
    _write(tmp_path, "leaves", *leaves[:-1], (0, 0, 50))
    _write(tmp_path, "acks", (0, 0, 20), (1, 0, 11), (3, 0, 30), (0, 0, 60))
    assert judge(tmp_path, 4) == Verdict(lost=2, early=2, extra=0)


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
