"""Where a log is: a folder, or an address of a server. The one place that distinguishes them.

::

    log_dir="trident-log/word-count"                                    files, `transaction_log.py`
    log_dir="zookeeper://host1:2181,host2:2181/trident/word-count"      ZooKeeper, `stored_log.py` on `zookeeper_records.py`
    log_dir="postgresql://user@host/db?topology=word-count"             PostgreSQL, `stored_log.py` on `postgres_records.py`
    log_dir="s3://bucket/trident/word-count"                            an object store, `stored_log.py` on `object_records.py`
"""

from __future__ import annotations

import os

from trident.coordination.log_reader import LogReader
from trident.coordination.memory_log import TransactionLog, TransactionLogReader
from trident.coordination.object_records import ObjectRecords
from trident.coordination.postgres_records import PostgresRecords
from trident.coordination.record_store import RecordStore
from trident.coordination.stored_log import StoredLog, StoredReader
from trident.coordination.transaction_log import FileLog
from trident.coordination.zookeeper_records import ZooKeeperRecords
from trident.retention import Retention
from trident.servers.log_addresses import (
    ObjectAddress,
    PostgresAddress,
    ZooKeeperAddress,
    is_log_address,
    log_address_of,
)


def open_log(
    log_dir: str | os.PathLike[str], topology: str, takeover: bool = False, history: Retention | None = None
) -> TransactionLog:
    """Open the log of a topology, or make one, and become its writer; see `FileLog.open`."""
    address = os.fspath(log_dir)
    if is_log_address(address):
        store, place = store_at(address)
        return StoredLog.open(place, topology, store, takeover=takeover, history=history)
    return FileLog.open(address, topology, takeover=takeover, history=history)


def open_reader(log_dir: str | os.PathLike[str]) -> TransactionLogReader:
    """Return a reader of a log, which need not be there yet; close it."""
    address = os.fspath(log_dir)
    if is_log_address(address):
        store, place = store_at(address)
        return StoredReader(place, store)
    return LogReader(address)


def store_at(address: str) -> tuple[RecordStore, str]:
    """Return what keeps the log at an address, and the address as messages have it."""
    match place := log_address_of(address):
        case ZooKeeperAddress():
            return ZooKeeperRecords(place), str(place)
        case PostgresAddress():
            return PostgresRecords(place), str(place)
        case ObjectAddress():
            return ObjectRecords(place), str(place)
