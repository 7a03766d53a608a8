"""What a cluster of three machines does when members of its ZooKeeper die, or a machine cannot reach it."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.daemons.counted import committed, counts, expected, goes_on, is_gone
from tests.harness.cluster_machines import MOVED_AFTER_S, MachineCluster
from tests.harness.commands import last_txid, until
from tests.harness.proxy import Point, Proxy
from tests.harness.zookeeper_servers import ZooKeeperEnsemble

pytestmark = [pytest.mark.server, pytest.mark.soak]


class CutNetwork(Proxy):
    """What one machine reaches a server through. While it is cut, bytes wait on the way, and arrive when it is whole again.

    Connections stay open while it is cut, as with a switch that is dark.
    """

    def __init__(self, server_port: int) -> None:
        self._whole = threading.Event()
        self._whole.set()
        super().__init__(server_port)

    def cut(self) -> None:
        """Hold back every byte from now on."""
        self._whole.clear()

    def heal(self) -> None:
        """Let what was held back arrive."""
        self._whole.set()

    def close(self) -> None:
        self._whole.set()
        super().close()

    def _pass_on(self, data: bytes, target: socket.socket, points: tuple[Point, ...]) -> bool:
        self._whole.wait()
        return super()._pass_on(data, target, points)


_AWAY_S = 20.0


@pytest.fixture
def cluster(tmp_path: Path, ensemble: ZooKeeperEnsemble) -> Iterator[MachineCluster]:
    """Three machines and two Nimbuses on a ZooKeeper of three members."""
    with MachineCluster(tmp_path, f"zookeeper://{ensemble.hosts}/faults", MOVED_AFTER_S) as made:
        made.up(machines=3, nimbuses=2)
        yield made


def test_drivers_outlast_a_lost_majority(cluster: MachineCluster, ensemble: ZooKeeperEnsemble, storm_id: str) -> None:
    file_log = cluster.folder / "file-log"
    other = cluster.submit("other", "counting.py:other", log_dir=str(file_log))
    until(lambda: last_txid(file_log) > 2, "the topology whose log is a file commits")
    until(lambda: cluster.beat(other) is not None, "its heartbeat is there")
    drivers = {each: cluster.driver_of(each) for each in (storm_id, other)}
    assigned = {each: cluster.state.assignment_info(each) for each in drivers}
    gone = ensemble.members[:2]
    for member in gone:
        member.kill()
    ends, last = time.monotonic() + _AWAY_S, last_txid(file_log)
    while time.monotonic() < ends:  # the one does not even wait
        wanted = last_txid(file_log) + 5
        until(lambda: last_txid(file_log) >= wanted, "five more batches are committed")  # noqa: B023  at once
        assert all(not is_gone(each) for each in drivers.values())
    assert last_txid(file_log) > last + 20
    for member in gone:
        member.start()
    goes_on(cluster)
    until(lambda: len(cluster.state.supervisors()) == 3, "the sessions of all supervisors are renewed")
    cluster.leader()
    goes_on(cluster, 50)
    assert {each: cluster.driver_of(each) for each in drivers} == drivers
    assert {each: cluster.state.assignment_info(each) for each in drivers} == assigned
    cluster.client.kill("other", 5)
    until(lambda: other not in cluster.state.active_storms(), "it is forgotten")
    until(lambda: is_gone(drivers[other]), "its driver has ended")
    assert counts(cluster, "other") == expected(last_txid(file_log))


@pytest.mark.parametrize("log", ["zookeeper", "file"])
def test_a_driver_behind_a_cut_network_is_fenced(tmp_path: Path, ensemble: ZooKeeperEnsemble, log: str) -> None:
    networks = [CutNetwork(member.port) for member in ensemble.members]
    behind = ",".join(f"127.0.0.1:{each.port}" for each in networks)
    conf = {"log_dir": str(tmp_path / "file-log")} if log == "file" else {}
    with MachineCluster(tmp_path, f"zookeeper://{ensemble.hosts}/cut", MOVED_AFTER_S) as cluster:
        cluster.nimbus()
        cut_off = cluster.machine(address=f"zookeeper://{behind}/cut")
        until(lambda: len(cluster.state.supervisors()) == 1, "the machine is known")
        storm_id = cluster.submit(**conf)

        def reads() -> int:
            return last_txid(tmp_path / "file-log") if log == "file" else committed(cluster)

        until(lambda: reads() > 3, "it commits")
        other = cluster.machine()
        until(lambda: len(cluster.state.supervisors()) == 2, "the other machine is known")
        until(lambda: cluster.beat(storm_id) is not None, "it has a heartbeat")
        old = cluster.driver_of(storm_id)
        for each in networks:
            each.cut()
        until(lambda: cluster.machine_of(storm_id) is other, "the topology is moved")
        until(lambda: (beat := cluster.beat(storm_id)) is not None and beat.state == "active", "it runs there")
        wanted = reads() + 10
        until(lambda: reads() >= wanted, "it commits on the other machine")
        if log == "file":  # which the old driver reaches; it was not told that it is replaced, and finds the claim
            said = cut_off.folder / "logs" / f"{storm_id}.log"
            until(lambda: "FencedError" in said.read_text(encoding="utf-8"), "the old driver is fenced")
        for each in networks:
            each.heal()
        until(lambda: is_gone(old), "the old driver has ended")
        until(lambda: not cut_off.drivers(), "its machine runs nothing")
        wanted = reads() + 3
        until(lambda: reads() >= wanted, "it goes on")
        cluster.client.kill(storm_id, 5)
        until(lambda: storm_id not in cluster.state.active_storms(), "it is forgotten")
        until(lambda: not list(cluster.left()), "every driver has ended")
        assert counts(cluster) == expected(reads())
    for each in networks:
        each.close()
