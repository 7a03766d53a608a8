"""Where the logs of the contract tests are: in a folder, or in a ZooKeeper. Both are asked in the same way."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.coordination.log_samples import TOPOLOGY
from trident.coordination import lock, zookeeper_claim
from trident.coordination.log_reader import LogReader
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import TransactionLog
from trident.coordination.transaction_log import FileLog
from trident.coordination.zookeeper_log import ZooKeeperLog
from trident.coordination.zookeeper_nodes import LogNodes
from trident.coordination.zookeeper_reader import ZooKeeperReader
from trident.servers.zookeeper_address import ZooKeeperAddress

__all__ = ["FileHome", "Home", "ZooKeeperHome", "reopened"]


class FileHome:
    """A log in a folder.

    Attributes
    ----------
    claim
        The module and the name of the function that look for the claims there are, when a claim is taken.
    keeps_undurable
        Whether a record that is not durable can be read before one that is.
    """

    claim = (lock, "list_log")
    claim_type = lock.Claim
    keeps_undurable = True

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    def open(self, topology: str = TOPOLOGY, **options: Any) -> FileLog:
        return FileLog.open(self.path, topology, **options)

    def reader(self) -> LogReader:
        return LogReader(self.path)

    def contents(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.iterdir()}

    def spoil_claim(self) -> None:
        (claim,) = self.path.glob("epoch-*")
        claim.write_bytes(b"\xff")

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def segments(self) -> list[lock.SegmentName]:
        return lock.list_log(self.path).segments


class ZooKeeperHome:
    """A log in a ZooKeeper."""

    claim = (zookeeper_claim, "_claims")
    claim_type = zookeeper_claim.ZooKeeperClaim
    keeps_undurable = False

    def __init__(self, hosts: str, path: str, client: Any) -> None:
        self.path, self.address, self.client = path, f"zookeeper://{hosts}{path}", client

    def open(self, topology: str = TOPOLOGY, **options: Any) -> ZooKeeperLog:
        return ZooKeeperLog.open(self.address, topology, **options)

    def reader(self) -> ZooKeeperReader:
        return ZooKeeperReader(ZooKeeperAddress.of(self.address))

    def contents(self) -> dict[str, bytes]:
        return self._below(self.path)

    def spoil_claim(self) -> None:
        (claim,) = self.client.get_children(f"{self.path}/claim")
        self.client.set(f"{self.path}/claim/{claim}", b"\xff")

    def remove(self) -> None:
        self.client.delete(self.path, recursive=True)

    def segments(self) -> list[lock.SegmentName]:
        names = self.client.get_children(LogNodes(self.path).segments)
        return sorted(lock.SegmentName(*map(int, name.split("-"))) for name in names)

    def _below(self, path: str) -> dict[str, bytes]:
        found = {path: self.client.get(path)[0]}
        for child in self.client.get_children(path):
            found |= self._below(f"{path}/{child}")
        return found


Home = FileHome | ZooKeeperHome


def reopened(home: Home, **options: Any) -> LogState:
    """Open the log and close it; return what it says."""
    log: TransactionLog = home.open(**options)
    log.close()
    return log.state


def read(home: Home) -> LogState:
    """Return what a new reader reads."""
    with closing(home.reader()) as reader:
        return reader.refresh()
