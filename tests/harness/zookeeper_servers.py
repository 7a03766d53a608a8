"""A ZooKeeper for tests: one server, or an ensemble whose members are killed, paused and restarted one by one."""

import socket
from pathlib import Path

from tests.harness.servers import QUICK_JAVA, Server, Servers, free_ports, jars_of, java, write_settings

_COMMIT_LOG = "-Dzookeeper.commitLogCount=50"  # it keeps so many transactions in memory, each of up to a megabyte


class ZooKeeperEnsemble(Servers):
    """All members of a ZooKeeper."""

    @property
    def hosts(self) -> str:
        return self.addresses

    def leader(self) -> Server | None:
        """Return the member that leads; None while they elect one."""
        return next((each for each in self.members if each.runs and _mode(each.port) in ("leader", "standalone")), None)


def start_zookeeper(work: Path, members: int = 1) -> ZooKeeperEnsemble:
    """Start a ZooKeeper of one or three members; one takes half a second.

    A member of an ensemble is ready when its process is up: it serves only when it has found a majority.
    """
    ports = free_ports(3 * members)
    own = [ports[3 * number + 1 : 3 * number + 3] for number in range(members)]
    names = "\n".join(f"server.{number}=127.0.0.1:{one}:{other}" for number, (one, other) in enumerate(own, 1))
    started: list[Server] = []
    try:
        for number in range(members):
            folder = work / f"member{number + 1}"
            started.append(_start_member(folder, number + 1, ports[3 * number], names if members > 1 else ""))
    except BaseException:
        ZooKeeperEnsemble(started).stop()
        raise
    return ZooKeeperEnsemble(started)


def _start_member(work: Path, number: int, port: int, members: str) -> Server:
    (work / "data").mkdir(parents=True)
    (work / "data" / "myid").write_text(f"{number}\n", encoding="utf-8")
    settings = write_settings(work, "zookeeper.properties", PORT=port, MEMBERS=members)
    main = f"org.apache.zookeeper.server.{'quorum.QuorumPeerMain' if members else 'ZooKeeperServerMain'}"
    options = ["-Xms16m", "-Xmx256m", *QUICK_JAVA, _COMMIT_LOG, "-Dzookeeper.jmx.log4j.disable=true"]
    argv = [java(), *options, "-cp", jars_of("zookeeper"), main, settings]
    # Only one that serves tells its mode; one that still looks for others answers that it does not serve.
    answers = (lambda at: bool(_srvr(at))) if members else (lambda at: "Mode:" in _srvr(at))
    return Server(f"ZooKeeper {number}", argv, port, work, answers, grace=2.0)


def _srvr(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), 1) as link:
        link.settimeout(1)
        link.sendall(b"srvr")  # `ruok` is answered even by one that cannot serve
        return b"".join(iter(lambda: link.recv(4096), b"")).decode()


def _mode(port: int) -> str:
    try:
        lines = _srvr(port).splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")
