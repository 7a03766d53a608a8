"""What the counting topology of `tests.harness.cluster_machines` has counted, and what it should have."""

from __future__ import annotations

import psutil
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.harness.cluster_machines import MachineCluster
from tests.harness.commands import until
from trident.coordination.log_state import LogState

__all__ = ["committed", "counts", "expected", "goes_on", "is_gone", "log_of", "stop_and_check"]


def log_of(cluster: MachineCluster, name: str = "counting") -> LogState | None:
    """Return what the log of a topology says, None before the first start."""
    reader = cluster.log(name)
    return reader.refresh() if reader.is_there() else None


def committed(cluster: MachineCluster, name: str = "counting") -> int:
    """Return the last batch that the log holds."""
    log = log_of(cluster, name)
    return 0 if log is None else log.txid


def counts(cluster: MachineCluster, name: str = "counting") -> dict[str, int]:
    """Return the counts of a topology that has stopped."""
    table = DeltaTable(cluster.folder / "states" / name)
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT word, count FROM t"))
    return dict(zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True))


def expected(batches: int) -> dict[str, int]:
    """Return the counts after so many batches."""
    return {"the": 2 * batches, "cow": batches, "moon": batches}


def goes_on(cluster: MachineCluster, batches: int = 3, name: str = "counting") -> int:
    """Wait until more batches are committed; returns the last one."""
    wanted = committed(cluster, name) + batches
    until(lambda: committed(cluster, name) >= wanted, f"batch {wanted} of {name} is committed")
    return committed(cluster, name)


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def stop_and_check(cluster: MachineCluster, storm_id: str, name: str = "counting") -> None:
    """Kill the topology; everything of it is gone, and every count is exact."""
    driver = cluster.driver_of(storm_id)
    cluster.client.kill(storm_id, 5)
    until(lambda: storm_id not in cluster.state.active_storms(), "the topology is forgotten")
    until(lambda: is_gone(driver), "its driver has ended")
    assert counts(cluster, name) == expected(committed(cluster, name))
    assert storm_id not in cluster.state.assignments()
    assert storm_id not in cluster.state.heartbeat_storms()
