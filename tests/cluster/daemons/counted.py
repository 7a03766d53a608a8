"""What the counting topology of `tests.harness.cluster_machines` has counted, and who committed its batches."""

import re
import threading
from itertools import pairwise
from pathlib import Path
from typing import Self

import psutil
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.harness.cluster_machines import MachineCluster
from tests.harness.commands import lives, until
from trident.cluster_state.cluster_address import folder_of
from trident.errors import ClusterError, LogError
from trident.log.lock import list_log
from trident.log.log_address import open_reader
from trident.log.log_state import LogState
from trident.state.txid import epoch_of


def log_of(cluster: MachineCluster, name: str = "counting") -> LogState | None:
    """Return what the log of a topology says, None before the first start."""
    reader = cluster.log(name)
    return reader.refresh() if reader.is_there() else None


def committed(cluster: MachineCluster, name: str = "counting") -> int:
    log = log_of(cluster, name)
    return 0 if log is None else log.txid


def counts(cluster: MachineCluster, name: str = "counting") -> dict[str, int]:
    table = DeltaTable(cluster.folder / "states" / name)
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT word, count FROM t"))
    return dict(zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True))


def expected(batches: int) -> dict[str, int]:
    return {"the": 2 * batches, "cow": batches, "moon": batches}


def goes_on(cluster: MachineCluster, batches: int = 3, name: str = "counting") -> int:
    """Wait until more batches are committed; returns the last one."""
    wanted = committed(cluster, name) + batches
    until(lambda: committed(cluster, name) >= wanted, f"batch {wanted} of {name} is committed")
    return committed(cluster, name)


def is_gone(process: psutil.Process) -> bool:
    return not lives(process)


def stop_and_check(cluster: MachineCluster, storm_id: str, name: str = "counting") -> None:
    """Kill the topology; everything of it is gone, and every count is exact."""
    driver = cluster.driver_of(storm_id)
    cluster.client.kill(storm_id, 5)
    until(lambda: storm_id not in cluster.state.active_storms(), "the topology is forgotten")
    until(lambda: is_gone(driver), "its driver has ended")
    assert counts(cluster, name) == expected(committed(cluster, name))
    assert storm_id not in cluster.state.assignments()
    assert storm_id not in cluster.state.all_heartbeats()


_EVERY_S = 0.2
_CLAIM = re.compile(r"(\d+)-.*")


class LogWatch:
    """Reads the claims, then the log, again and again. A context manager.

    Whatever a log gains after a claim was seen is of that claim's epoch or a later one; else a driver has committed that was
    replaced. The winners of the log name the epoch of every batch, so that nothing between two looks is missed.
    """

    def __init__(self, cluster: MachineCluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._address = cluster.log_address(name)
        self._reader = open_reader(self._address)
        self._floors: list[tuple[int, int]] = []
        self._seen: dict[int, int] = {}
        self.looks = 0
        self.wrong: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join(30)
        self._reader.close()

    def check(self) -> list[str]:
        """Look a last time, check all that was seen, and return a line for each driver that has committed."""
        self._stopped.set()
        self._thread.join(30)
        state = self._look()
        assert state is not None, "there is no log"
        assert self.wrong == []
        ranges = [(first, epoch_of(attempt)) for first, attempt in state.winners.ranges]
        assert all(before[1] <= after[1] for before, after in pairwise(ranges)), f"an older driver came after: {ranges}"
        for claimed, at in self._floors:
            late = [(txid, epoch) for txid, epoch in _ends(ranges, state.txid) if txid > at and epoch < claimed]
            assert not late, f"committed by a driver that was replaced: {late}, after epoch {claimed} had claimed"
        return _lines(ranges, state.txid)

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            try:
                self._look()
            except (LogError, ClusterError):  # ZooKeeper is away; nothing can be claimed or committed meanwhile
                continue

    def _look(self) -> LogState | None:
        claimed = self._claimed()
        if not self._reader.is_there():
            return None
        state = self._reader.refresh()
        self.looks += 1
        # The reader of a file leaves out the last record while a driver takes over: that one may be older than the claim.
        at = state.txid + (folder_of(self._cluster.address) is not None)
        if claimed is not None and (not self._floors or self._floors[-1][0] < claimed):
            self._floors.append((claimed, at))
        for each in state.history:
            if self._seen.setdefault(each.txid, each.attempt) != each.attempt:
                self.wrong.append(f"batch {each.txid}: attempt {self._seen[each.txid]}, then {each.attempt}")
        return state

    def _claimed(self) -> int | None:
        if folder_of(self._cluster.address) is not None:
            folder = Path(self._address)
            claims = list_log(folder).claims if folder.is_dir() else []
        else:
            found = self._cluster.state.state.get_children(f"/transactional/{self._name}/claim")
            claims = [int(match[1]) for each in found if (match := _CLAIM.fullmatch(each))]
        return max(claims, default=None)


def _ends(ranges: list[tuple[int, int]], last: int) -> list[tuple[int, int]]:
    starts = [first for first, _ in ranges[1:]] + [last + 1]
    return [(end - 1, epoch) for end, (_, epoch) in zip(starts, ranges, strict=True)]


def _lines(ranges: list[tuple[int, int]], last: int) -> list[str]:
    found: dict[int, list[int]] = {}
    for (first, epoch), (end, _) in zip(ranges, _ends(ranges, last), strict=True):
        found.setdefault(epoch, [first, end])[1] = end
    return [f"epoch {epoch:3d}: batches {first} to {end}" for epoch, (first, end) in found.items()]
