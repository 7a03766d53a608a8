"""Two ledgers of totals, one in Delta and one in Redis, and what their totals must be."""

from __future__ import annotations

import pyarrow as pa
import redis
from deltalake import DeltaTable, QueryBuilder

from tests.cluster.daemons.counted import committed
from tests.harness.cluster_machines import MachineCluster
from tests.harness.commands import write_module

__all__ = ["LEDGERS", "check_ledger", "submit_ledger", "totals", "write_ledgers"]

LEDGERS = ("delta", "redis")

_SOURCE = """
    import os
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Sum

    BOOKED = [["ann", 3], ["bob", 5], ["ann", -1], ["cy", 7]]

    def made(name, state):
        topology = TridentTopology(name)
        spout = FixedBatchSpout("account: string, amount: bigint", len(BOOKED), *BOOKED, cycle=True)
        booked = topology.new_stream("bookings", spout)
        booked.group_by("account").persistent_aggregate(state, "amount", Sum(), "total", state_name="totals")
        return topology

    REDIS = os.environ.get("LEDGER_REDIS", "redis://127.0.0.1:6379/0")
    delta = made("delta", DeltaState.opaque(os.environ.get("COUNTING_FOLDER", "states") + "/delta"))
    redis = made("redis", RedisState.opaque(REDIS, prefix="totals", layout="fields"))
"""

_EACH_BATCH = {"ann": 2, "bob": 5, "cy": 7}


def write_ledgers(cluster: MachineCluster) -> None:
    """Write the module of both."""
    write_module(cluster.folder, "ledgers", _SOURCE)


def submit_ledger(cluster: MachineCluster, name: str, every_ms: int = 50) -> str:
    """Submit one of them; returns its id."""
    return cluster.submit(name, f"ledgers.py:{name}", batch_emit_interval_ms=str(every_ms))


def check_ledger(cluster: MachineCluster, name: str, redis_url: str) -> int:
    """Check that every total is exact; returns the number of committed batches."""
    batches = committed(cluster, name)
    assert totals(cluster, name, redis_url) == {name: each * batches for name, each in _EACH_BATCH.items()}
    return batches


def totals(cluster: MachineCluster, name: str, redis_url: str) -> dict[str, int]:
    """Return the totals of a ledger that has stopped, read with the clients of its store."""
    if name == "delta":
        table = DeltaTable(cluster.folder / "states" / name)
        rows = pa.table(QueryBuilder().register("t", table).execute("SELECT account, total FROM t"))
        return dict(zip(rows["account"].to_pylist(), rows["total"].to_pylist(), strict=True))
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        return {key.partition(":")[2]: int(client.hget(key, "total")) for key in client.scan_iter("totals:[a-z]*")}
