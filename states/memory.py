"""MemoryMapState and LRUMemoryMapState: state in the memory of the process, exact while the process lives.

The data belong to the factory, not to the state object: a process-wide registry keeps them by the factory's id (made
when the factory is made, kept by pickling), state and partition, so a state that is built again in the same process
finds them. Values are kept by reference. Every `MemoryBackingMap` is one *writer* over its partition's data: once
another writer has moved the sentinel, its puts raise `FencedError` (R9).

A removed key is first stored as None by the rule of the kind, so a replay finds what it needs; it disappears when a
later batch begins and the removal is known to be committed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from trident.errors import ConfigError, FencedError, StaleTransactionError, UnsupportedOperation
from trident.state.interfaces import Key, SnapshotReadable, StateConf, StateSpec, StateType, ValueUpdater
from trident.state.maps import map_for
from trident.state.snapshottable import SnapshottableMap
from trident.state.txid import Sentinel, Snapshot, Txid
from trident.state.values import OpaqueValue, TransactionalValue

__all__ = ["LRUMemoryMapState", "MemoryBackingMap", "MemoryData", "MemoryMap", "MemoryMapState"]

MEMORY_SNAPSHOT_KEY = "$MEMORY-MAP-STATE-GLOBAL$"
V = TypeVar("V")


class MemoryData:
    """What one partition holds: its entries, its sentinel, and the removals that may still be undone.

    Parameters
    ----------
    max_size
        How many entries are kept; the least recently used ones are dropped beyond it. 0: all.
    """

    def __init__(self, max_size: int = 0) -> None:
        self.lock = threading.Lock()
        self.max_size = max_size
        self.entries: dict[Key, Any] = OrderedDict() if max_size else {}
        self.sentinel: Sentinel | None = None
        self.removed: dict[Key, Any] = {}  # key -> the stored None that removed it
        self.removed_up_to = 0  # the highest txid of a removal that is carried out

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.removed.clear()
        self.sentinel, self.removed_up_to = None, 0


class MemoryBackingMap(Generic[V]):
    """An `IBackingMap` over a dict, with a sentinel of its own and fencing between the writers of one process."""

    def __init__(self, data: MemoryData | None = None) -> None:
        self.data = MemoryData() if data is None else data
        self._own: Sentinel | None = None

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys; an entry that is read counts as used."""
        data = self.data
        with data.lock:
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
            if data.sentinel != self._own:
                raise FencedError(f"put {len(keys)} keys to memory", str(self._own), str(data.sentinel))
            data.entries.update(zip(keys, values, strict=True))
            if isinstance(data.entries, OrderedDict):
                for key in keys:
                    data.entries.move_to_end(key)
                while len(data.entries) > data.max_size:
                    data.entries.popitem(last=False)

    def read_sentinel(self) -> Sentinel | None:
        """Return the last commit that touched these data."""
        return self.data.sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Move the sentinel forward; this is the writer from now on."""
        data = self.data
        with data.lock:
            found = data.sentinel
            if found is not None and not force and not _is_forward(found, sentinel):
                raise FencedError("move the sentinel in memory", str(sentinel), str(found))
            data.sentinel = self._own = sentinel

    def reset(self) -> None:
        """Forget every key and the sentinel."""
        with self.data.lock:
            self.data.clear()
            self._own = None

    def items(self) -> list[tuple[Key, V]]:
        """Return what is stored, as of one moment."""
        with self.data.lock:
            return list(self.data.entries.items())

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        return len(self.data.entries)


def _is_forward(found: Sentinel, sentinel: Sentinel) -> bool:
    if found.incarnation != sentinel.incarnation:
        return False
    return found.txid <= sentinel.txid and found.attempt <= sentinel.attempt


class MemoryMap(SnapshottableMap):
    """One partition of a `MemoryMapState`: a map, a single value, removable keys and a list of rows."""

    def __init__(self, kind: StateType, data: MemoryData, name: str = "state", partition: int = 0) -> None:
        self.name, self.data = name, data
        self._backing: MemoryBackingMap[Any] = MemoryBackingMap(data)
        self._removing: set[Key] = set()
        super().__init__(map_for(kind, self._backing, name, partition), MEMORY_SNAPSHOT_KEY)
        if isinstance(self.map_state, SnapshotReadable):
            self.multi_get_at = partial(self._multi_get_at, self.map_state)

    def begin_commit(self, txid: int) -> None:
        """Begin, and carry out the removals that are committed by now."""
        self._removing = set()
        super().begin_commit(txid)
        self._carry_out_removals(Txid.of(txid))

    def commit(self, txid: int) -> None:
        """Commit, and note what was removed."""
        super().commit(txid)
        data = self.data
        with data.lock:
            # `removed` holds the very objects stored: a later write of the key replaces the object and undoes the note.
            data.removed.update({key: data.entries[key] for key in self._removing if key in data.entries})
        self._removing = set()

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Update; a key that this batch removed before is back again."""
        values = super().multi_update(keys, updaters)
        self._removing.difference_update(keys)
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Replace; a key that this batch removed before is back again."""
        super().multi_put(keys, values)
        self._removing.difference_update(keys)

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch; absent keys are ignored."""
        distinct = list(dict.fromkeys(keys))
        super().multi_put(distinct, [None] * len(distinct))
        self._removing.update(distinct)

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows as of the call: the parts of the key, then the value of the latest write.

        A key whose value is None is no row: it was removed, or is as good as never written.
        """
        keys = [key for key, _ in self._backing.items()]
        return _rows(keys, self.map_state.multi_get(keys))

    def get_tuples_at(self, snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows as they were after `snapshot.txid`, as `get_tuples` does.

        Raises
        ------
        StaleTransactionError
            A later batch than `snapshot.txid + 1` wrote an entry, or a removal was carried out since: take a newer
            snapshot.
        UnsupportedOperation
            The state is not opaque, so it keeps no earlier values.
        """
        if not isinstance(self.map_state, SnapshotReadable):
            raise UnsupportedOperation(
                f"list state {self.name!r} as of batch {snapshot.txid}: a {type(self.map_state).__name__} keeps the "
                "latest values only; use an opaque state, or get_tuples() for the latest writes"
            )
        keys = [key for key, _ in self._backing.items()]
        values = self.map_state.multi_get_at(keys, snapshot)
        if snapshot.txid < self.data.removed_up_to:
            raise StaleTransactionError(self.name, "all rows", snapshot.txid, self.data.removed_up_to)
        return _rows(keys, values)

    def _carry_out_removals(self, txid: Txid) -> None:
        data = self.data
        with data.lock:
            for key, stored in list(data.removed.items()):
                if data.entries.get(key, _NOTHING) is not stored:
                    del data.removed[key]  # written again since
                    continue
                removed_by = stored.txid if isinstance(stored, (OpaqueValue, TransactionalValue)) else 0
                if removed_by >= txid:
                    continue  # a replay of the batch that removed it: it may still decide otherwise
                del data.removed[key]
                if isinstance(stored, OpaqueValue) and not txid.winners.won(stored.txid, stored.attempt):
                    continue  # the removal lost; what stood before it stands
                del data.entries[key]
                data.removed_up_to = max(data.removed_up_to, removed_by)

    def _multi_get_at(self, opaque: SnapshotReadable, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        values = opaque.multi_get_at(keys, snapshot)
        if snapshot.txid < self.data.removed_up_to:
            # After the read, so that a removal carried out meanwhile is seen here.
            for key, value in zip(keys, values, strict=True):
                if value is None and key not in self.data.entries:
                    raise StaleTransactionError(self.name, key, snapshot.txid, self.data.removed_up_to)
        return values


_NOTHING = object()


def _rows(keys: Sequence[Key], values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return iter([(*key, value) for key, value in zip(keys, values, strict=True) if value is not None])


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
            if data.entries:
                raise ConfigError(
                    f"open memory state {conf.prefix!r} with {num_partitions} partitions: it was written with "
                    f"{written_with}, and keys do not move. Keep the number, or declare a new state"
                )
            _registry[(factory.id, conf.prefix, partition)] = (num_partitions, data)
    return MemoryMap(factory.kind, data, conf.prefix, partition)
