"""Where the data of all states in memory are: one registry for the process, by factory and state."""

from __future__ import annotations

import os
import threading
from uuid import uuid4

from states.memory.data import MemoryData
from trident.errors import UnsupportedOperation
from trident.state.interfaces import StateConf

__all__ = ["data_of", "kept_data", "this_process"]

_PROCESS = uuid4().hex
_kept: dict[tuple[str, str], dict[int, MemoryData]] = {}  # by partition
_lock = threading.Lock()


def this_process() -> str:
    """Return what names this process among all."""
    return f"{_PROCESS}:{os.getpid()}"  # a fork has the first part in common


def data_of(
    factory_id: str, home: str, max_size: int, conf: StateConf, partition: int, num_partitions: int
) -> MemoryData:
    """Return the data of a partition, made if there are none; all partitions of a state share its values.

    Raises
    ------
    UnsupportedOperation
        The data are in another process.
    """
    if home != this_process():
        raise UnsupportedOperation(
            f"open memory state {conf.prefix!r} in process {os.getpid()}: its data are in the process that declared "
            "it, so its commits and reads must run there (in the driver); use a store outside the process to run "
            "them in executors"
        )
    with _lock:
        partitions = _kept.setdefault((factory_id, conf.prefix), {})
        if partition not in partitions:
            partitions[partition] = MemoryData(max_size, next(iter(partitions.values()), None))
        data = partitions[partition]
        data.keep(num_partitions)
    return data


def kept_data(factory_id: str) -> dict[tuple[str, int], MemoryData]:
    """Return the data of a factory by the prefix of the state and the partition."""
    with _lock:
        return {
            (prefix, at): data
            for (each, prefix), partitions in _kept.items()
            for at, data in partitions.items()
            if each == factory_id
        }
