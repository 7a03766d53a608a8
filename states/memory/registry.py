"""Where the data of all states in memory are: one registry for the process, by factory, state and partition."""

from __future__ import annotations

import os
import threading
from uuid import uuid4

from states.memory.data import MemoryData
from trident.errors import ConfigError, UnsupportedOperation
from trident.state.interfaces import StateConf

__all__ = ["data_of", "kept_data", "this_process"]

_PROCESS = uuid4().hex
_kept: dict[tuple[str, str, int], tuple[int, MemoryData]] = {}
_lock = threading.Lock()


def this_process() -> str:
    """Return what names this process among all."""
    return f"{_PROCESS}:{os.getpid()}"  # a fork has the first part in common


def data_of(
    factory_id: str, home: str, max_size: int, conf: StateConf, partition: int, num_partitions: int
) -> MemoryData:
    """Return the data of a partition, made if there are none.

    Raises
    ------
    UnsupportedOperation
        The data are in another process.
    ConfigError
        They were written with another number of partitions.
    """
    if home != this_process():
        raise UnsupportedOperation(
            f"open memory state {conf.prefix!r} in process {os.getpid()}: its data are in the process that declared "
            "it, so its commits and reads must run there (in the driver); use a store outside the process to run "
            "them in executors"
        )
    with _lock:
        written_with, data = _kept.setdefault(
            (factory_id, conf.prefix, partition), (num_partitions, MemoryData(max_size))
        )
        if written_with != num_partitions:
            others = [_kept.get((factory_id, conf.prefix, each)) for each in range(written_with)]
            if len(data) or any(other is not None and len(other[1]) for other in others):
                raise ConfigError(
                    f"open memory state {conf.prefix!r} with {num_partitions} partitions: it was written with "
                    f"{written_with}, and keys do not move. Keep the number, or declare a new state"
                )
            _kept[factory_id, conf.prefix, partition] = (num_partitions, data)
    return data


def kept_data(factory_id: str) -> dict[tuple[str, int], MemoryData]:
    """Return the data of a factory by the prefix of the state and the partition."""
    with _lock:
        return {(prefix, at): data for (each, prefix, at), (_, data) in _kept.items() if each == factory_id}
