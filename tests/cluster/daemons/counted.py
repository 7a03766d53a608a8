"""What the counting topology of `tests.harness.cluster_machines` has counted, and what it should have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.harness.cluster_machines import MachineCluster
from trident.coordination.log_state import LogState
from trident.coordination.transaction_log import LogReader, exists

__all__ = ["committed", "counts", "expected"]


def log_folder(cluster: MachineCluster, name: str = "counting") -> Path:
    return Path(cluster.address) / "transactional" / name


def log_of(cluster: MachineCluster, name: str = "counting") -> LogState | None:
    """Return what the log of a topology says, None before the first start."""
    folder = log_folder(cluster, name)
    return LogReader(folder).refresh() if exists(folder) else None


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
