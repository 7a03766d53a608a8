"""P6: other processes read two states beside commits; both are of one batch, and no reader goes back."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from states.delta import DeltaState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.commands import environment
from tests.harness.topology_runs import start
from tests.proof.proof_table import RowServers, Trial
from tests.read.test_joint_reader import SHOPS, Orders
from trident.state import StateSpec

_READERS, _READS = 4, 8_000
_PACE_MS = 50
"""Between two batches: where commits follow each other at once they overtake most reads, which are then made again."""

_STORES = {"Redis and PostgreSQL": 20, "Redis twice": 1, "PostgreSQL twice": 20, "Delta twice": 10}
"""The pairs, and what part of the reads each has: a read of PostgreSQL takes four times as long as one of Redis, or more."""


def reads(work: Path, seed: int, count: int = _READS) -> Iterator[Trial]:
    """Give so many reads of each reader of two states, fewer where they take longer, in each pair of stores in turn."""
    with RowServers(work) as servers:
        for at in itertools.count(seed):
            store = list(_STORES)[at % len(_STORES)]
            folder = work / f"orders{at}"
            folder.mkdir()
            task = {"folder": str(folder), "store": store, "reads": count // _STORES[store]}
            yield Trial(store, partial(_read, task, servers))


def _orders(task: Mapping[str, object]) -> Orders:
    folder, store = Path(str(task["folder"])), str(task["store"])
    specs: list[StateSpec]
    if store == "Delta twice":
        specs = [DeltaState.opaque(folder / name) for name in "ab"]
    elif store == "PostgreSQL twice":
        specs = [PostgresState.opaque(str(task["postgres"]), table=f"{folder.name}{name}") for name in "ab"]
    else:
        first = RedisState.opaque(str(task["redis"]), prefix=f"{folder.name}a")
        second = RedisState.opaque(str(task["redis"]), prefix=f"{folder.name}b")
        in_postgres = "and PostgreSQL" in store
        specs = [first, PostgresState.opaque(str(task["postgres"]), table=folder.name) if in_postgres else second]
    return Orders(folder, specs[0], specs[1], partitions=(2, 3))


def _read(task: dict[str, object], servers: RowServers) -> Mapping[str, int]:
    """Commit until every reader has read enough; what a reader finds wrong ends it."""
    if "Redis" in str(task["store"]):
        task["redis"] = servers.redis_url
    if "PostgreSQL" in str(task["store"]):
        task["postgres"] = f"postgresql://trident@{servers['postgres'].address}/postgres"
    orders = _orders(task)
    program = [sys.executable, "-m", "tests.proof.snapshot_reads", json.dumps(task)]
    with start(orders.topology, "in_process", log_dir=orders.log_dir, batch_emit_interval_ms=_PACE_MS) as running:
        orders.spout.feed([(shop, 1) for shop in SHOPS])
        running.process_all_available()
        readers = [
            subprocess.Popen(program, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(_READERS)
        ]
        for number in itertools.count():
            if all(reader.poll() is not None for reader in readers):
                break
            orders.spout.feed_nowait([(SHOPS[(number + at) % 3], 1) for at in range(1 + number % 4)])
            running.process_all_available()
        batches = running.txid
    told = [reader.communicate() for reader in readers]
    assert not any(reader.returncode for reader in readers), told
    assert batches is not None
    counts = [json.loads(said) for said, _ in told]
    return {"batches": batches, **{what: sum(count[what] for count in counts) for what in ("reads", "batches seen")}}


def _rows_after(batch: int) -> int:
    """Return how many rows all batches up to this one have: three, then one, two, three, four, one …"""
    whole, rest = divmod(batch - 1, 4)
    return 3 + 10 * whole + rest * (rest + 1) // 2


def _main(task: dict[str, object]) -> None:
    """Read so often, and say how often it was, and how many batches were seen: commits go on all the time."""
    seen, last = 0, 0
    with _orders(task).opened() as states:
        for at in range(int(str(task["reads"]))):
            found = states.multi_get({"revenue": SHOPS, "sales": SHOPS})
            total, batch = sum(found["sales"]), states.txid
            assert found["revenue"] == found["sales"], f"read {at} of batch {batch}: {found}"
            assert total == _rows_after(batch), f"read {at} of batch {batch}: {total} rows, not {_rows_after(batch)}"
            assert batch >= last, f"read {at}: batch {batch} after batch {last}"
            seen, last = seen + (batch > last), batch
    sys.stdout.write(json.dumps({"reads": task["reads"], "batches seen": seen}))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
