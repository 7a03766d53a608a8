"""Where a log is: a folder, or an address in ZooKeeper. The one place that distinguishes them.

::

    log_dir="trident-log/word-count"                                    files, `transaction_log.py`
    log_dir="zookeeper://host1:2181,host2:2181/trident/word-count"      ZooKeeper, `zookeeper_log.py`
"""

from __future__ import annotations

import os

from trident.coordination.log_reader import LogReader
from trident.coordination.memory_log import TransactionLog, TransactionLogReader
from trident.coordination.transaction_log import FileLog
from trident.coordination.zookeeper_log import ZooKeeperLog
from trident.coordination.zookeeper_reader import ZooKeeperReader
from trident.servers.zookeeper_address import ZooKeeperAddress, is_zookeeper


def open_log(log_dir: str | os.PathLike[str], topology: str, takeover: bool = False) -> TransactionLog:
    """Open the log of a topology, or make one, and become its writer; see `FileLog.open` and `ZooKeeperLog.open`."""
    address = os.fspath(log_dir)
    if is_zookeeper(address):
        return ZooKeeperLog.open(ZooKeeperAddress.of(address), topology, takeover=takeover)
    return FileLog.open(address, topology, takeover=takeover)


def open_reader(log_dir: str | os.PathLike[str]) -> TransactionLogReader:
    """Return a reader of a log, which need not be there yet; close it."""
    address = os.fspath(log_dir)
    return ZooKeeperReader(ZooKeeperAddress.of(address)) if is_zookeeper(address) else LogReader(address)
