"""MemoryMapState and LRUMemoryMapState: state in the memory of the process, exact while the process runs.

The data belong to the factory, not to the state object: a process-wide registry keeps them by the factory's id (made
when the factory is made, kept by pickling), state and partition, so a state that is built again in the same process
finds them. Values are kept by reference. Every `MemoryBackingMap` is one *writer* over its partition's data: once
another writer has moved the sentinel, its puts raise `FencedError` (R9). An opaque state whose aggregate is a `Count`,
`Sum`, `Min` or `Max` is kept in arrays, anything else in a dict (`trident/state/columns/kept_values.py`).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

from states.memory.data import MemoryData
from states.memory.map import ColumnarMemoryMap, MemoryBackingMap
from trident.errors import ConfigError, UnsupportedOperation
from trident.state.interfaces import StateConf, StateSpec, StateType, state_type
from trident.state.maps import map_for
from trident.state.snapshottable import SnapshottableMap

__all__ = ["LRUMemoryMapState", "MemoryMap", "MemoryMapState"]

MEMORY_SNAPSHOT_KEY = "$MEMORY-MAP-STATE-GLOBAL$"

_PLAIN = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "timestamp"}
)
"""Types of immutable values, so readers need no copies."""


class MemoryMap(SnapshottableMap):
    """One partition of a `MemoryMapState`: a map, a single value, removable keys and a list of rows."""

    def __init__(
        self,
        kind: StateType,
        data: MemoryData,
        name: str = "state",
        partition: int = 0,
        value_type: str | None = None,
    ) -> None:
        self.data = data
        columnar = state_type(kind) is StateType.OPAQUE and not data.max_size
        backing = ColumnarMemoryMap(data) if columnar else MemoryBackingMap[Any](data)
        backing.gives_copies = value_type in _PLAIN
        super().__init__(map_for(kind, backing, name, partition), MEMORY_SNAPSHOT_KEY)


# ---- the factories ---------------------------------------------------------------------------------------------------

_PROCESS = uuid4().hex
_registry: dict[tuple[str, str, int], tuple[int, MemoryData]] = {}
_registry_lock = threading.Lock()


def _home() -> str:
    return f"{_PROCESS}:{os.getpid()}"  # a fork has the first part in common


def _new_id() -> str:
    return uuid4().hex


@dataclass(frozen=True)
class MemoryMapState:
    """The `StateFactory` of a state in memory; opaque unless another kind is asked for.

    Attributes
    ----------
    id
        Factories with the same id share their data within a process. A new one if none is given.
    kind
        The rule that values are kept by.
    home
        The process that the data live in. The state cannot be opened in another one.
    """

    id: str = field(default_factory=_new_id)
    kind: StateType = StateType.OPAQUE
    home: str = field(default_factory=_home, repr=False)

    in_memory: ClassVar[bool] = True
    """A topology whose states all live in memory keeps its log there too, unless `log_dir` is given."""

    Factory: ClassVar[type[MemoryMapState]]
    """Trident's name of the factory; the class itself."""

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> MemoryMap:
        """Open one partition; the data of an earlier state object of the same factory and name are found again."""
        return _open(self, 0, conf, partition_index, num_partitions)

    @classmethod
    def opaque(cls) -> StateSpec:
        """Return a new opaque state."""
        return StateSpec(cls(kind=StateType.OPAQUE))

    @classmethod
    def transactional(cls) -> StateSpec:
        """Return a new transactional state."""
        return StateSpec(cls(kind=StateType.TRANSACTIONAL))

    @classmethod
    def non_transactional(cls) -> StateSpec:
        """Return a new non-transactional state."""
        return StateSpec(cls(kind=StateType.NON_TRANSACTIONAL))


MemoryMapState.Factory = MemoryMapState


@dataclass(frozen=True)
class LRUMemoryMapState:
    """The `StateFactory` of a state in memory that forgets: a partition keeps the `max_size` entries used last.

    A dropped entry is lost silently, and a key that comes back starts again: a limit on memory, for values that need not
    be exact.

    Attributes
    ----------
    max_size
        How many entries of a partition are kept; at least 1.
    id, kind, home
        As of `MemoryMapState`.
    """

    max_size: int
    id: str = field(default_factory=_new_id)
    kind: StateType = StateType.OPAQUE
    home: str = field(default_factory=_home, repr=False)

    in_memory: ClassVar[bool] = True
    forgets: ClassVar[bool] = True
    """What must be whole (a window) is not kept here."""

    Factory: ClassVar[type[LRUMemoryMapState]]
    """Trident's name of the factory; the class itself."""

    def __post_init__(self) -> None:
        if self.max_size < 1:
            raise ConfigError(f"max_size={self.max_size} of an LRUMemoryMapState: give at least 1")

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> MemoryMap:
        """Open one partition; the data of an earlier state object of the same factory and name are found again."""
        return _open(self, self.max_size, conf, partition_index, num_partitions)

    @classmethod
    def opaque(cls, max_size: int) -> StateSpec:
        """Return a new opaque state."""
        return StateSpec(cls(max_size, kind=StateType.OPAQUE))

    @classmethod
    def transactional(cls, max_size: int) -> StateSpec:
        """Return a new transactional state."""
        return StateSpec(cls(max_size, kind=StateType.TRANSACTIONAL))

    @classmethod
    def non_transactional(cls, max_size: int) -> StateSpec:
        """Return a new non-transactional state."""
        return StateSpec(cls(max_size, kind=StateType.NON_TRANSACTIONAL))


LRUMemoryMapState.Factory = LRUMemoryMapState


def _open(
    factory: MemoryMapState | LRUMemoryMapState, max_size: int, conf: StateConf, partition: int, num_partitions: int
) -> MemoryMap:
    if factory.home != _home():
        raise UnsupportedOperation(
            f"open memory state {conf.prefix!r} in process {os.getpid()}: its data live in the process that declared "
            "it, so its commits and reads must run there (in the driver); use a store outside the process to run "
            "them in executors"
        )
    with _registry_lock:
        written_with, data = _registry.setdefault(
            (factory.id, conf.prefix, partition), (num_partitions, MemoryData(max_size))
        )
        if written_with != num_partitions:
            homes = [_registry.get((factory.id, conf.prefix, each)) for each in range(written_with)]
            if len(data) or any(home is not None and len(home[1]) for home in homes):
                raise ConfigError(
                    f"open memory state {conf.prefix!r} with {num_partitions} partitions: it was written with "
                    f"{written_with}, and keys do not move. Keep the number, or declare a new state"
                )
            _registry[(factory.id, conf.prefix, partition)] = (num_partitions, data)
    return MemoryMap(factory.kind, data, conf.prefix, partition, conf.value_type)
