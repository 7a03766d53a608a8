"""MemoryMapState and LRUMemoryMapState: state in the memory of the process, exact while the process lives.

The data belong to the factory, not to the state object: a process-wide registry keeps them by the factory's id (made
when the factory is made, kept by pickling), state and partition, so a state that is built again in the same process
finds them. Values are kept by reference. Every `MemoryBackingMap` is one *writer* over its partition's data: once
another writer has moved the sentinel, its puts raise `FencedError` (R9). An opaque state whose aggregate is a `Count`,
`Sum`, `Min` or `Max` is kept in arrays (`number_columns.py`), anything else in a dict.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from states.memory.number_columns import FoundColumns, OpaqueColumns
from trident.errors import ConfigError, FencedError, UnsupportedOperation
from trident.state.interfaces import Key, StateConf, StateSpec, StateType, state_type
from trident.state.maps import map_for
from trident.state.sentinel import displaced, is_forward
from trident.state.snapshottable import SnapshottableMap
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue

__all__ = ["ColumnarMemoryMap", "LRUMemoryMapState", "MemoryBackingMap", "MemoryData", "MemoryMap", "MemoryMapState"]

MEMORY_SNAPSHOT_KEY = "$MEMORY-MAP-STATE-GLOBAL$"
V = TypeVar("V")

_FEW_KEYS = 16
"""For a commit of no more keys a dict is quicker than arrays, so it stays one until a larger commit comes."""

_PLAIN = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "timestamp"}
)
"""Types of values that nobody can change in place, so readers need no copies."""


class MemoryData:
    """What one partition holds: its entries and its sentinel.

    Parameters
    ----------
    max_size
        How many entries are kept; the least recently used ones are dropped beyond it. 0: all.
    """

    def __init__(self, max_size: int = 0) -> None:
        self.lock = threading.Lock()
        self.max_size = max_size
        self.entries: dict[Key, Any] = OrderedDict() if max_size else {}
        self.columns: OpaqueColumns | None = None  # holds all entries instead, while there are some
        self.may_be_columns = not max_size
        self.sentinel: Sentinel | None = None

    def __len__(self) -> int:
        return len(self.entries if self.columns is None else self.columns)

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.columns = None
        self.sentinel = None

    def as_columns(self, width: int) -> OpaqueColumns | None:
        """Keep the entries as columns from now on, if all fit; what does not fit once is never tried again."""
        if self.columns is None and self.may_be_columns:
            self.columns = OpaqueColumns.of(width, self.entries)
            self.may_be_columns = self.columns is not None
            if self.columns is not None:
                self.entries.clear()
        return self.columns

    def as_dict(self) -> None:
        """Keep the entries as a dict from now on."""
        if self.columns is not None:
            self.entries.update(self.columns.entries())
            self.columns, self.may_be_columns = None, False


class MemoryBackingMap(Generic[V]):
    """An `IBackingMap` over a dict, with a sentinel of its own and fencing between the writers of one process."""

    gives_copies = False  # values are kept by reference
    commits_atomically = True  # no seal: the memory of a process ends as a whole, never with half of a commit

    def __init__(self, data: MemoryData | None = None) -> None:
        self.data = MemoryData() if data is None else data
        self._own: Sentinel | None = None
        self._seen: Sentinel | None = None
        self._has_seen = False

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys; an entry that is read counts as used."""
        data = self.data
        with data.lock:
            if data.columns is not None:
                return data.columns.get(keys)  # type: ignore[return-value]  # V is OpaqueValue then
            values = list(map(data.entries.get, keys))
            if isinstance(data.entries, OrderedDict):
                for key, value in zip(keys, values, strict=True):
                    if value is not None:
                        data.entries.move_to_end(key)
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write many keys, all or none.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel since this one did. Nothing was written.
        """
        data = self.data
        with data.lock:
            self._check_fence(f"put {len(keys)} keys to memory")
            if data.columns is not None:
                if data.columns.put(keys, values):
                    return
                data.as_dict()
            data.entries.update(zip(keys, values, strict=True))
            if isinstance(data.entries, OrderedDict):
                for key in keys:
                    data.entries.move_to_end(key)
                while len(data.entries) > data.max_size:
                    data.entries.popitem(last=False)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete many keys, all or none; fenced as `multi_put` is."""
        with self.data.lock:
            self._check_fence(f"delete {len(keys)} keys from memory")
            if self.data.columns is not None:
                self.data.columns.delete(keys)
            for key in keys:
                self.data.entries.pop(key, None)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys as of one moment: a single page."""
        with self.data.lock:
            columns = self.data.columns
            keys = list(self.data.entries) if columns is None else columns.keys()
        yield keys

    def read_sentinel(self) -> Sentinel | None:
        """Return the last commit that touched these data."""
        self._seen, self._has_seen = self.data.sentinel, True
        return self._seen

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Move the sentinel on from what was read or laid last; this is the writer from now on."""
        data = self.data
        with data.lock:
            found = data.sentinel
            seen = self._seen if self._has_seen else found
            if found != seen or (found is not None and not force and not is_forward(found, sentinel)):
                raise displaced("move the sentinel in memory", sentinel, found, seen)
            data.sentinel = self._own = self._seen = sentinel
            self._has_seen = True

    def reset(self) -> None:
        """Forget every key and the sentinel."""
        with self.data.lock:
            self.data.clear()
            self._own, self._has_seen = None, False

    def _check_fence(self, doing: str) -> None:
        if self.data.sentinel != self._own:
            if self._own is None:
                raise FencedError(doing, str(self._own), str(self.data.sentinel))
            raise displaced(doing, self._own, self.data.sentinel, self._own)

    def __len__(self) -> int:
        return len(self.data)


class ColumnarMemoryMap(MemoryBackingMap[OpaqueValue]):
    """A `ColumnarMap` besides: from the first read by columns on, opaque numbers are kept as columns.

    A class of its own, since a subclass of `MemoryBackingMap` expects every read and write in the methods that it knows.
    """

    def multi_get_columns(self, parts: Sequence[Sequence[Any]]) -> FoundColumns | None:
        """Read keys, given part by part; None if what is here does not fit columns."""
        with self.data.lock:
            few = self.data.columns is None and len(parts[0]) <= _FEW_KEYS
            columns = None if few else self.data.as_columns(len(parts))
            return None if columns is None else columns.find(parts)

    def multi_find(self, keys: Sequence[Key]) -> FoundColumns | None:
        """Read keys; None if they are kept in a dict."""
        with self.data.lock:
            columns = self.data.columns
            return None if columns is None else columns.find_keys(keys)

    def multi_put_columns(self, found: FoundColumns, txid: int, attempt: int) -> None:
        """Write what was combined; all or none, and fenced as `multi_put` is."""
        with self.data.lock:
            self._check_fence(f"put {len(found.rows)} keys to memory")
            found.columns.put_found(found, txid, attempt)


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

    What is dropped is lost without a word, and a key that comes back starts anew: a bound on memory, for values that
    need not be exact.

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
