"""How fast a cluster gets over deaths, and what heartbeats cost: `python -m tests.benchmarks.cluster [deaths] [heartbeats]`.

Prints one JSON line for each measurement.

`deaths`: seconds from the SIGKILL of a driver to the first commit of the next one, in process and with a Spark of its own; and
from the loss of a machine, whose driver is silent for `--timeout` seconds before it is moved. `driver_cpu_s` is the CPU time of
the next driver, with Spark's, until then: what a busy machine stretches.

`heartbeats`: the share of a core that a Nimbus uses while `--workers` drivers, each of another topology, write a heartbeat of
4 kB each second; `idle_percent` is that of the same Nimbus before them, `forgets_after_s` how long it takes to forget a
killed topology, which shows that it keeps up. Embedded, and on a ZooKeeper.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.benchmarks._measuring import Figures, run_rows
from tests.harness.cluster_machines import Machine, MachineCluster
from tests.harness.cluster_states import set_assignment
from tests.harness.commands import until
from tests.harness.zookeeper_servers import start_zookeeper
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import (
    Assignment,
    NodePort,
    StormBase,
    SupervisorInfo,
    WantedStatus,
    WorkerHeartbeat,
)
from trident.cluster_state.storm_cluster_state import StormClusterState

_START, _SLOTS = 1000.0, 100
_STATISTICS = {
    "rates": {f"operation-{number}": [number * 1.5, number * 2.5, number * 3.5] for number in range(56)},
    "components": [{"id": f"step-{number}", "emitted": 10**6, "executeLatency": "1.234"} for number in range(38)],
}


@contextmanager
def _cluster(state: str, timeout_s: float) -> Iterator[MachineCluster]:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        if state == "embedded":
            with MachineCluster(folder, str(folder / "cluster"), timeout_s) as made:
                yield made
            return
        with (
            start_zookeeper(folder / "zookeeper") as ensemble,
            MachineCluster(folder, f"zookeeper://{ensemble.hosts}/measured", timeout_s) as made,
        ):
            yield made


def deaths(times: int = 5, timeout: float = 4.0) -> Iterator[Figures]:
    """Deaths of each kind, `--times` of them: a driver, in process and with Spark; a machine."""
    for engine in ("in_process", "spark"):
        with _cluster("embedded", timeout) as cluster:
            cluster.up(machines=2)
            storm_id = cluster.submit(engine=engine, **({"master": "local[1]"} if engine == "spark" else {}))
            restarted = [_got_over(cluster, storm_id, _kill_driver) for _ in range(times)]
            yield {"what": "driver killed", "engine": engine, **_figures(restarted)}
            moved = [_got_over(cluster, storm_id, _lose_machine) for _ in range(times)]
            yield {"what": "machine lost", "engine": engine, "driver_timeout_s": timeout, **_figures(moved)}
            cluster.client.kill(storm_id, 5)
            until(lambda cluster=cluster: not cluster.state.active_storms(), "it is forgotten")  # type: ignore[misc]


def _figures(measured: list[tuple[float, float]]) -> dict[str, object]:
    seconds, cpu = ([round(each[which], 2) for each in measured] for which in (0, 1))
    return {"median_s": statistics.median(seconds), "seconds": seconds, "driver_cpu_s": statistics.median(cpu)}


def _got_over(
    cluster: MachineCluster, storm_id: str, kill: Callable[[MachineCluster, str], Callable[[], None]]
) -> tuple[float, float]:
    """Return how long it takes from a death to the first commit of the next driver, and what CPU time that one has used."""
    _await_commits(cluster, storm_id)
    reader = cluster.log("counting")
    repair = kill(cluster, storm_id)
    began = time.monotonic()
    before = reader.refresh().txid
    until(lambda: reader.refresh().txid > before, "the next driver commits")
    took = time.monotonic() - began
    driver = cluster.driver_of(storm_id)
    used = sum(sum(each.cpu_times()[:2]) for each in [driver, *driver.children(recursive=True)])
    repair()
    return took, used


def _await_commits(cluster: MachineCluster, storm_id: str) -> None:
    reader = cluster.log("counting")
    until(lambda: (beat := cluster.beat(storm_id)) is not None and beat.state == "active", "its driver runs")
    until(reader.is_there, "there is a log")
    wanted = reader.refresh().txid + 5
    until(lambda: reader.refresh().txid >= wanted, "it commits")
    until(lambda: len(cluster.state.supervisors()) == len(cluster.machines), "all machines are there")


def _kill_driver(cluster: MachineCluster, storm_id: str) -> Callable[[], None]:
    cluster.driver_of(storm_id).kill()
    return lambda: None


def _lose_machine(cluster: MachineCluster, storm_id: str) -> Callable[[], None]:
    lost: Machine = cluster.machine_of(storm_id)
    lost.lose()
    return lost.start


def heartbeats(workers: int = 1000, seconds: float = 20.0) -> Iterator[Figures]:
    """The share of a core that a Nimbus uses beside `--workers` drivers, embedded and on a ZooKeeper, over `--seconds`."""
    yield from (_heartbeats(state, workers, seconds) for state in ("embedded", "zookeeper"))


def _heartbeats(state: str, workers: int, seconds: float) -> Figures:
    with _cluster(state, 600.0) as cluster:
        cluster.nimbus()
        until(lambda: cluster.state.leader() is not None, "a Nimbus leads")
        nimbus = psutil.Process(cluster.nimbuses[0].process.pid)
        idle = _share(nimbus, seconds / 4)
        write_topologies(cluster.state, workers)
        context = multiprocessing.get_context("spawn")
        parts = [range(first, workers, 4) for first in range(4)]
        beating = [context.Process(target=beat_all, args=(cluster.address, part), daemon=True) for part in parts]
        for each in beating:
            each.start()
        until(lambda: sum(map(len, cluster.state.all_heartbeats().values())) >= workers, "all of them beat")
        _share(nimbus, 3.0)  # warm
        first = newest(cluster.state)
        share = _share(nimbus, seconds)
        written = (newest(cluster.state) - first) / seconds
        began = time.monotonic()
        cluster.state.activate_storm("gone-1", _base("gone", WantedStatus("killed", _START)))
        until(lambda: cluster.state.storm_base("gone-1") is None, "a killed topology is forgotten")
        answered = round(time.monotonic() - began, 2)
        for each in beating:
            each.terminate()
            each.join()
        return {
            "state": state, "workers": workers, "bytes": len(_beat(1, 1).to_bytes()), "idle_percent": idle,
            "nimbus_percent": share, "beats_each_per_s": round(written, 2), "forgets_after_s": answered,
        }  # fmt: skip


def newest(cluster: StormClusterState) -> float:
    """Return the mean of how often each driver has beaten."""
    beats = cluster.all_heartbeats()
    return statistics.fmean(beat.uptime_secs for each in beats.values() for beat in each.values())


def _share(process: psutil.Process, seconds: float) -> float:
    """Return the share of a core that a process uses, in per cent."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, took = process.cpu_times(), time.monotonic() - began
    return round(100 * (after.user + after.system - before.user - before.system) / took, 1)


# ---- drivers that only have heartbeats ------------------------------------------------------------------------------------


def write_topologies(cluster: StormClusterState, count: int) -> None:
    """Write the records of topologies that run, each in a slot of its own, and of their supervisors."""
    for number in range(count // _SLOTS):
        ports = list(range(_SLOTS))
        info = SupervisorInfo(time.time(), "127.0.0.1", "measured", ports, ports, {}, 1.0)
        cluster.supervisor_heartbeat(f"supervisor-{number}", info)
    for number in range(count):
        name, slot = name_of(number), slot_of(number)
        base = _base(name, WantedStatus("active", _START))
        driver = Assignment.DRIVER
        given = Assignment("code", {slot.node: "127.0.0.1"}, {driver: slot}, {driver: _START}, "0" * 64, 1)
        set_assignment(cluster, name, given)
        cluster.activate_storm(name, base)


def beat_all(address: str, numbers: range) -> None:
    """Write a heartbeat of each of these topologies' drivers every second, until this process is ended."""
    cluster = StormClusterState(open_cluster_state(address))
    beats, ends = 0, time.monotonic()
    while True:
        beats, ends = beats + 1, ends + 1.0
        for number in numbers:
            slot = slot_of(number)
            cluster.worker_heartbeat(name_of(number), slot.node, slot.port, _beat(number, beats))
        time.sleep(max(0.0, ends - time.monotonic()))


def _base(name: str, status: WantedStatus) -> StormBase:
    return StormBase(name, _START, status, 1, {}, "trident", "m:t", "0" * 64)


def _beat(number: int, beats: int) -> WorkerHeartbeat:
    """Return a heartbeat; its uptime is the number of those before it."""
    address = "http://127.0.0.1:1"
    return WorkerHeartbeat(
        time.time(), float(beats), name_of(number), "127.0.0.1", 1, 1, _START, "active", address, _STATISTICS
    )


def name_of(number: int) -> str:
    return f"measured-{number}-1"


def slot_of(number: int) -> NodePort:
    return NodePort(f"supervisor-{number // _SLOTS}", number % _SLOTS)


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, {"deaths": deaths, "heartbeats": heartbeats}))
