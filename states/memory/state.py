"""MemoryMapState and LRUMemoryMapState: state in the memory of the process, exact while the process runs.

The data belong to the factory, not to the state object: a process-wide registry keeps them by the factory's id (made when the
factory is made, kept by pickling) and state, so a state that is built again in the same process finds them. Partitions share
the keys; each has a sentinel. Values are stored by reference. Every `MemoryBackingMap` is one *writer* over its partition's
data: once another writer has moved the sentinel, its puts raise `FencedError` (R9). An opaque state whose aggregate is a
`Count`, `Sum`, `Min` or `Max`, or several of these and of `Avg`, is kept in arrays, anything else in a dict
(`trident/state/columns/number_table.py`).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import uuid4

from states.memory.map import ColumnarMemoryMap, MemoryBackingMap, MemoryData
from trident.errors import ConfigError, UnsupportedOperation
from trident.state.columns.number_columns import NumberForm
from trident.state.interfaces import FormerTypes, StateConf, StateSpec, StateType, StoreFacts, state_type
from trident.state.map_state import SnapshottableMap
from trident.state.maps import map_for
from trident.storekit import Kinds, check_options
from trident.types import class_of

# Where the data of all states in memory are: one registry for the process, by factory and state.

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

    Raises `UnsupportedOperation`: the data are in another process.
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
            form = NumberForm.of(conf.value_type)
            partitions[partition] = MemoryData(max_size, next(iter(partitions.values()), None), form)
        data = partitions[partition]
        data.keep(num_partitions)
    return data


MEMORY_SNAPSHOT_KEY = "$MEMORY-MAP-STATE-GLOBAL$"


class MemoryMap(SnapshottableMap):
    """One partition of a `MemoryMapState`: a map, a single value, removable keys and a list of rows."""

    def __init__(
        self,
        kind: StateType,
        data: MemoryData,
        name: str = "state",
        partition: int = 0,
        value_type: str | None = None,
        migrate: FormerTypes | None = None,
    ) -> None:
        self.data = data
        columnar = state_type(kind) is StateType.OPAQUE and not data.max_size
        backing = ColumnarMemoryMap(data) if columnar else MemoryBackingMap[Any](data)
        backing.facts = replace(backing.facts, gives_copies=class_of(value_type) not in (None, bytes), shares_keys=True)
        super().__init__(map_for(kind, backing, name, partition, migrate), MEMORY_SNAPSHOT_KEY)


def _new_id() -> str:
    return uuid4().hex


class _MemoryFactory(Kinds[int]):
    """A `StateFactory` whose three methods make a `StateSpec` of a new factory."""

    facts: ClassVar[StoreFacts] = StoreFacts(in_memory=True)
    """A topology whose states are all in memory keeps its log there too, unless `log_dir` is given."""

    id: str
    kind: StateType
    home: str

    @property
    def _bound(self) -> int:
        return 0

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> MemoryMap:
        """Open one partition; the data of an earlier state object of the same factory and name are found again."""
        data = data_of(self.id, self.home, self._bound, conf, partition_index, num_partitions)
        return MemoryMap(self.kind, data, conf.prefix, partition_index, conf.value_type, conf.migrate)

    @classmethod
    def of_kind(cls, kind: StateType, target: int | None, options: dict[str, Any]) -> StateSpec:
        """Return a new state of a kind; `target` is the `max_size` of one that has it."""
        given = {} if target is None else {"max_size": target}
        check_options("memory", cls, options)
        make: Any = cls
        return StateSpec(make(**given, **options, kind=kind))


@dataclass(frozen=True)
class MemoryMapState(_MemoryFactory):
    """The `StateFactory` of a state in memory; opaque unless another kind is asked for.

    Attributes
    ----------
    id
        Factories with the same id share their data within a process. A new one if none is given.
    kind
        The rule by which values are stored.
    home
        The process that has the data. The state cannot be opened in another one.
    """

    id: str = field(default_factory=_new_id)
    kind: StateType = StateType.OPAQUE
    home: str = field(default_factory=this_process, repr=False)

    Factory: ClassVar[type[MemoryMapState]]
    """Trident's name for the factory; the class itself."""


MemoryMapState.Factory = MemoryMapState


@dataclass(frozen=True)
class LRUMemoryMapState(_MemoryFactory):
    """The `StateFactory` of a state in memory that forgets: a partition keeps the `max_size` entries used last.

    A dropped entry is lost silently, and a key that comes back starts again: a limit on memory, for values that need not
    be exact.

    Attributes
    ----------
    max_size
        How many entries of a partition are kept; at least 1.
    id, kind, home
        As for `MemoryMapState`.
    """

    max_size: int
    id: str = field(default_factory=_new_id)
    kind: StateType = StateType.OPAQUE
    home: str = field(default_factory=this_process, repr=False)

    facts: ClassVar[StoreFacts] = StoreFacts(in_memory=True, forgets=True)
    """Not for what must be complete (a window)."""

    Factory: ClassVar[type[LRUMemoryMapState]]
    """Trident's name for the factory; the class itself."""

    def __post_init__(self) -> None:
        if self.max_size < 1:
            raise ConfigError(f"max_size={self.max_size} of an LRUMemoryMapState: give at least 1")

    @property
    def _bound(self) -> int:
        return self.max_size


LRUMemoryMapState.Factory = LRUMemoryMapState
