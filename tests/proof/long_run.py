"""P9: a cluster of processes under random faults for a long time; what may not grow is sampled after each fault."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import redis

from tests.benchmarks._flatness import _sizes, change_of
from tests.cluster.daemons.campaign import Campaign
from tests.cluster.daemons.counted import committed
from tests.cluster.daemons.ledgers import LEDGERS, check_ledger, submit_ledger, write_ledgers
from tests.harness.cluster_machines import MOVED_AFTER_S, MachineCluster
from tests.harness.commands import until
from tests.proof.proof_row import RowServers, Trial

_BATCHES = 100
_HOUR_S = 3600.0
_FLAT = 1.05


def long_run(work: Path, seed: int) -> Iterator[Trial]:
    """Give one fault after the other; at the end the totals must be exact and, after an hour, memory flat."""
    samples: list[dict[str, float]] = []
    with RowServers(work) as servers:
        url, folder, began = servers.redis_url, work / "cluster", time.monotonic()
        folder.mkdir()
        with MachineCluster(folder, str(folder / "state"), MOVED_AFTER_S, max_deaths=100, LEDGER_REDIS=url) as cluster:
            cluster.up(machines=3, nimbuses=2)
            write_ledgers(cluster)
            storms = {name: submit_ledger(cluster, name) for name in LEDGERS}
            campaign = Campaign(cluster, seed, storms, lambda line: None)
            campaign.both_commit()
            try:
                while True:
                    yield Trial("fault", partial(_fault, campaign, url, began, samples), samples)
            except GeneratorExit:  # enough
                _check_end(cluster, storms, url)
    if time.monotonic() - began > 0.9 * _HOUR_S:
        memory = {name: change for name, change in grown(samples).items() if name.startswith("largest")}
        assert max(memory.values()) <= _FLAT, memory


def _check_end(cluster: MachineCluster, storms: Mapping[str, str], url: str) -> None:
    """Kill both topologies; every total must be exact."""
    for storm_id in storms.values():
        cluster.client.kill(storm_id, 5)
    until(lambda: not set(storms.values()) & set(cluster.state.active_storms()), "both are forgotten")
    until(lambda: not list(cluster.left()), "every driver has ended")
    for name in LEDGERS:
        check_ledger(cluster, name, url)


def _fault(campaign: Campaign, url: str, began: float, samples: list[dict[str, float]]) -> Mapping[str, int]:
    before = {name: committed(campaign.cluster, name) for name in LEDGERS}
    campaign.run(1)
    samples.append({"seconds": round(time.monotonic() - began, 1), **_sample(campaign.cluster, url)})
    return {"faults": 1, "batches": sum(committed(campaign.cluster, name) - before[name] for name in LEDGERS)}


def _sample(cluster: MachineCluster, url: str) -> dict[str, float]:
    """Return the memory of each process, the sizes of log and state, and how long a batch takes while nothing is broken."""
    first, began = committed(cluster, "redis"), time.monotonic()
    until(lambda: committed(cluster, "redis") >= first + _BATCHES, "it commits")
    sample = {"batch, ms": (time.monotonic() - began) / (committed(cluster, "redis") - first) * 1000}
    for at, each in enumerate([*cluster.nimbuses, *cluster.machines]):
        sample[f"{'Nimbus' if at < len(cluster.nimbuses) else 'supervisor'} {at + 1}, MB"] = _megabytes(
            each.process.pid
        )
    for role in ("Nimbus", "supervisor"):  # each start has another size, by 6 %
        sample[f"largest {role}, MB"] = max(value for name, value in sample.items() if name.startswith(role))
    sample["largest driver, MB"] = max((_megabytes(each.pid) for each in cluster.left()), default=0.0)
    for name, what in {"delta": "log of the Delta ledger", "redis": "log of the Redis ledger"}.items():
        log = _sizes(Path(cluster.log_address(name)))
        sample |= {f"{what}, KB": sum(log) / 1024, f"{what}, files": len(log)}
    table = _sizes(cluster.folder / "states" / "delta")
    sample |= {"Delta table, KB": sum(table) / 1024, "Delta table, files": len(table)}
    with redis.Redis.from_url(url) as client:
        sample["Redis, KB"] = client.info("memory")["used_memory_dataset"] / 1024
    return {name: round(value, 2) for name, value in sample.items()}


def _megabytes(pid: int) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).memory_info().rss) / (1 << 20)
    return 0.0


def grown(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return by how much each figure has grown: the median of the last third as a multiple of that of the second.

    Of the largest process of a role, the largest one of the last third is compared with the largest one before: a process takes
    104 or 110 MB from its start on, as it happens, so the median jumps when there is one more of these.
    """
    names = [name for name in (samples[0] if samples else ()) if name != "seconds"]
    values = {name: [sample[name] for sample in samples] for name in names}
    return {name: (_peak_of if name.startswith("largest") else change_of)(each) for name, each in values.items()}


def _peak_of(values: Sequence[float]) -> float:
    third = max(1, len(values) // 3)
    return round(max(values[-third:]) / max(values[:-third] or values), 3)
