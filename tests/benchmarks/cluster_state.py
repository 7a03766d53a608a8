"""The state of a cluster, embedded and in a ZooKeeper: `python -m tests.benchmarks.cluster_state`.

Prints one JSON line for each kind. Operations of one session, one after the other: `set_s`, `get_s`, `cas_s`, each a number a
second. `watch_ms`: from the change of another process's session to the event here, the median. `idle_share`: what an open
session costs, as a share of a core. Then another process writes `--beats` heartbeats of `bytes` bytes each second, while this
one reads all of them every five seconds: `beats_share` is what that costs here, as a share of a core, over `--seconds`;
`read_ms` is the processor time of one reading by slots, without statistics, as Nimbus does it; `all_ms` that of one of all
heartbeats with their statistics; `written_s` how many were written in a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from tests.benchmarks._measuring import tell
from tests.benchmarks.cluster import beat_all, beat_bytes, name_of, newest, slot_of
from tests.harness.commands import until
from tests.harness.zookeeper_servers import start_zookeeper
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_state import ClusterState
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.nodes.interface import NodeEvent

_EVERY_S = 5.0


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kind or ("sqlite", "zookeeper"):
            with start_zookeeper(Path(folder)) if kind == "zookeeper" else nullcontext() as server:
                address = f"{folder}/cluster" if server is None else f"zookeeper://{server.hosts}/storm"
                figures = {"kind": kind, "beats": options.beats, "bytes": beat_bytes(), **_measure(address, options)}
            tell(**figures)
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", action="append", choices=("sqlite", "zookeeper"), help="repeatable; both by default")
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--beats", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    return parser.parse_args(argv)


def _measure(address: str, options: argparse.Namespace) -> dict[str, float | bool]:
    state = open_cluster_state(address)
    try:
        figures = _operations(state, options.operations)
        figures["watch_ms"] = _watch_ms(state, address)
        figures["idle_share"] = _share(lambda: time.sleep(_EVERY_S))
        return {**figures, **_beats(state, address, options)}
    finally:
        state.close()


def _operations(state: ClusterState, count: int) -> dict[str, float]:
    state.set_data("/a", b"x" * 100)
    versions = iter(range(10**9))
    state.compare_and_set("/versions", b"", None)

    def rate(act: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            act()
        return round(count / (time.perf_counter() - begin))

    return {
        "set_s": rate(lambda: state.set_data("/a", b"x" * 100)),
        "get_s": rate(lambda: state.get_data("/a")),
        "cas_s": rate(lambda: state.compare_and_set("/versions", b"x" * 100, next(versions))),
    }


def _watch_ms(state: ClusterState, address: str) -> float:
    told, times = threading.Event(), []

    def tell(event: NodeEvent) -> None:
        times.append(time.monotonic() - float(state.get_data("/watched") or b"0"))
        told.set()

    state.register(tell)
    other = open_cluster_state(address)
    other.set_data("/watched", b"0")
    for number in range(100):
        told.clear()
        state.get_data("/watched", watch=True)
        time.sleep(0.001 * (number % 50))  # at all moments between two looks
        other.set_data("/watched", str(time.monotonic()).encode())
        told.wait()
    other.close()
    return round(statistics.median(times) * 1000, 1)


def _share(act: Callable[[], object]) -> float:
    """Return the share of a core that this process used meanwhile."""
    begin, used = time.perf_counter(), time.process_time()
    act()
    return round((time.process_time() - used) / (time.perf_counter() - begin), 4)


def _beats(state: ClusterState, address: str, options: argparse.Namespace) -> dict[str, float | bool]:
    cluster = StormClusterState(state)
    slots = {name_of(number): slot_of(number) for number in range(options.beats)}
    readings: list[float] = []
    found = 0

    def as_nimbus_does() -> None:
        nonlocal found
        end = time.monotonic() + options.seconds
        cluster.assignments(watch=True)
        while time.monotonic() < end:
            begin = time.process_time()
            found = len(cluster.heartbeats_at(slots))
            readings.append(time.process_time() - begin)
            time.sleep(min(_EVERY_S, max(0.0, end - time.monotonic())))

    spawned = multiprocessing.get_context("spawn")
    writer = spawned.Process(target=beat_all, args=(address, range(options.beats)), daemon=True)
    writer.start()
    until(lambda: len(cluster.heartbeats_at(slots)) == options.beats, "each was written once")
    before, began = newest(cluster), time.monotonic()
    share = _share(as_nimbus_does)
    written = (newest(cluster) - before) * options.beats / (time.monotonic() - began)
    begin = time.process_time()
    complete = sum(map(len, cluster.all_heartbeats().values()))
    all_s = time.process_time() - begin
    writer.terminate()
    writer.join()
    return {
        "beats_share": share,
        "read_ms": round(statistics.median(readings) * 1000, 1),
        "all_ms": round(all_s * 1000, 1),
        "written_s": round(written),
        "all_read": found == complete == options.beats,
    }


if __name__ == "__main__":
    raise SystemExit(main())
