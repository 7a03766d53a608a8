"""What the transaction log costs, in files and on servers: `python -m tests.benchmarks.log_append`.

Prints one JSON line: ZooKeeper of one server (with `--members 3` an ensemble), PostgreSQL, an S3 server in Python, whose own
time is most of what a request to it takes. The logs take turns, round by round, on the same machine, so a ratio is that of
one run: the median time by the median time in files.

`append`: one durable record. `batch`: what a batch of an opaque topology does: a definition that need not be durable, a
look at the claim before the commit, the record of the commit. `topology`: a whole batch of 100 words in this process, counted
in memory. `cpu_ms`: the processor time of this process instead of the wall clock. `start`: seconds, and with an object store
requests, to open a log of `--batches` batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from typing import Any, Literal
from unittest import mock

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import Figures, in_turns, medians, ratios, run_rows, work_folder
from tests.harness.servers import start_postgres, start_s3
from tests.harness.zookeeper_servers import start_zookeeper
from trident import TridentTopology
from trident.log.file_log import FileLog
from trident.log.log_address import open_log
from trident.log.records import CommitRecord, DefineRecord
from trident.log.stored_log import StoredLog
from trident.operations import Count
from trident.servers.patience import Patience

_WORDS = [(f"word{number % 37}",) for number in range(100)]
_DEFINITION = {"offsets": [[partition, 1_000_000, 1_001_000] for partition in range(8)]}


class _Log:
    """One of the logs that take turns."""

    def __init__(self, address: str) -> None:
        self.address, self.log = address, open_log(address, "log-append")
        self._topologies = count(1)

    def append(self) -> None:
        txid = self.log.state.txid + 1
        self.log.append(
            CommitRecord(txid, 1 << 20, {"lines": _DEFINITION}, {"counts": [0, 1, 2, 3]}, {"tuples": 1000}, 0)
        )

    def batch(self) -> None:
        self.log.append(DefineRecord(self.log.state.txid + 1, "lines", _DEFINITION), durable=False)
        self.log.check_owner()
        self.append()

    def topology(self, batches: int) -> float:
        """Return the seconds of a batch of a whole topology."""
        name = f"log-append-{next(self._topologies)}"
        topology = TridentTopology(name)
        stream = topology.new_stream("words", FixedBatchSpout("word", len(_WORDS), *(_WORDS * batches)))
        stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
        with topology.start(engine="in_process", log_dir=f"{self.address}-{name}", poll_interval_ms=1) as running:
            running.process_all_available()
            assert running.txid == batches
            return running.seconds / batches


def logs(rounds: int = 40, records: int = 25, members: Literal[1, 3] = 1, batches: int = 100_000) -> Figures:
    """`--rounds` turns of each log, with `--records` each; ZooKeeper has `--members`; a log of `--batches` is opened."""
    with work_folder() as work, ExitStack() as stack:
        zookeeper = stack.enter_context(start_zookeeper(work / "zookeeper", members))
        servers = {}
        for name, start in {"postgres": start_postgres, "s3": start_s3}.items():
            (work / name).mkdir()
            servers[name] = stack.enter_context(start(work / name))
        os.environ |= {"AWS_ENDPOINT_URL": f"http://{servers['s3'].address}", "AWS_REGION": "us-east-1"}
        os.environ |= {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret"}
        logs = {
            "files": _Log(str(work / "log")),
            "zookeeper": _Log(f"zookeeper://{zookeeper.hosts}/bench/log"),
            "postgres": _Log(f"postgresql://trident@{servers['postgres'].address}/postgres?topology=bench"),
            "s3": _Log("s3://logs/bench/log"),
        }
        closing_all = stack.enter_context(ExitStack())
        for log in logs.values():
            closing_all.enter_context(closing(log.log))
        found: dict[str, Any] = {"members": members}
        for what in ("append", "batch"):
            acts = {name: getattr(log, what) for name, log in logs.items()}
            found[what] = _in_turn(acts, rounds, records)
        whole = {name: partial(log.topology, 4 * records) for name, log in logs.items()}
        found["topology"] = _compared(medians(in_turns(whole, max(3, rounds // 8), 0)))
        closing_all.close()
        return {**found, "start": {name: _start(log, batches) for name, log in logs.items()}}


def _start(log: _Log, batches: int) -> dict[str, Any]:
    """Let a log have so many batches, which fail now and then; return what opening it takes."""
    with closing(open_log(log.address, "log-append")) as writer:
        state, epoch = writer.state, writer.epoch
        while state.txid < batches - 1000:  # folded as if they had been read, because each append takes its time
            txid = state.txid + 1
            state.fold(CommitRecord(txid, epoch << 20 | txid // 100, {"lines": _DEFINITION}, {"counts": [0]}, {}, 0))
        if isinstance(writer, StoredLog):
            writer._begin_segment()
        elif isinstance(writer, FileLog):
            writer._begin_segment(None)
        while state.txid < batches:
            writer.append(CommitRecord(state.txid + 1, 1 << 40, {"lines": _DEFINITION}, {"counts": [0]}, {}, 0))
    requests, run = [0], Patience.run

    def counted(self: Patience, request: Callable[[], Any], *more: Any) -> Any:
        requests[0] += 1
        return run(self, request, *more)

    with mock.patch.object(Patience, "run", counted):
        since = time.perf_counter()
        with closing(open_log(log.address, "log-append")) as again:
            seconds = time.perf_counter() - since
            assert again.state.txid == batches
            return {"seconds": round(seconds, 3), "requests": requests[0]}


def _in_turn(acts: dict[str, Callable[[], None]], rounds: int, records: int) -> dict[str, Any]:
    def cost(act: Callable[[], None]) -> tuple[float, float]:
        since, used = time.perf_counter(), time.process_time()
        for _ in range(records):
            act()
        return (time.perf_counter() - since) / records, (time.process_time() - used) / records

    costs = in_turns({name: partial(cost, act) for name, act in acts.items()}, rounds)
    wall, cpu = ({name: [pair[at] for pair in each] for name, each in costs.items()} for at in (0, 1))
    used_ms = {name: round(1000 * each, 3) for name, each in medians(cpu).items()}
    return {**_compared(medians(wall)), "cpu_ms": used_ms}


def _compared(middle: dict[str, float]) -> dict[str, Any]:
    ms = {name: round(1000 * seconds, 3) for name, seconds in middle.items()}
    return {"ms": ms, "ratio": ratios(middle, "files", 2)}


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, {"logs": logs}))
