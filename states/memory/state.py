"""MemoryMapState and LRUMemoryMapState: state in the memory of the process, exact while the process runs.

The data belong to the factory, not to the state object: a process-wide registry keeps them by the factory's id (kept by
pickling) and state, so a state that is built again in the same process finds them. Values are stored by reference. Every
`MemoryBackingMap` is one *writer* over its partition's data: once another has moved the sentinel, its puts raise
`FencedError` (R9). An opaque state of numbers is kept in arrays, anything else in a dict (`trident/state/number_table.py`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from trident.errors import ConfigError, FencedError, UnsupportedOperation
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.interfaces import FormerTypes, Key, StateConf, StateSpec, StateType, StoreFacts, state_type
from trident.state.map_state import SnapshottableMap
from trident.state.maps import map_for
from trident.state.number_columns import NumberForm
from trident.state.number_table import KeptValues
from trident.state.table import OpaqueTable
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue
from trident.storekit import Kinds, check_move, check_options, displaced
from trident.types import class_of

V = TypeVar("V")


class MemoryData:
    """The sentinel of one partition, and the values, which it shares with the one `beside`.

    `max_size`: how many entries are kept, those used last; 0: all.
    """

    def __init__(self, max_size: int = 0, beside: MemoryData | None = None, form: NumberForm | None = None) -> None:
        self.max_size = max_size
        self.sentinel: Sentinel | None = None
        self.lock: threading.Lock = threading.Lock() if beside is None else beside.lock
        own: KeptValues = LastUsedValues(max_size) if max_size else KeptValues(form)
        self.values: KeptValues = own if beside is None else beside.values

    def __len__(self) -> int:
        return len(self.values)

    def keep(self, partitions: int) -> None:
        """Keep `max_size` entries for each of so many partitions."""
        if isinstance(self.values, LastUsedValues):
            self.values.max_size = self.max_size * partitions

    def clear(self) -> None:
        """Forget the values of all partitions, and this one's sentinel."""
        self.values.clear()
        self.sentinel = None


class LastUsedValues(KeptValues):
    """The `max_size` values that were read or written last."""

    entries: OrderedDict[Key, Any]

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size
        self.entries = OrderedDict()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key; what is read counts as used."""
        values = super().get(keys)
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                self.entries.move_to_end(key)
        return values

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        super().put(keys, values)
        for key in keys:
            self.entries.move_to_end(key)
        while len(self.entries) > self.max_size:
            self.entries.popitem(last=False)


class MemoryBackingMap(BackingMap, Generic[V]):
    """An `IBackingMap` over a dict, with a sentinel of its own and fencing between the writers of one process."""

    # No seal: the memory of a process ends as a whole, never with half of a commit.
    facts = MapFacts(commits_atomically=True)

    def __init__(self, data: MemoryData | None = None) -> None:
        self.data = MemoryData() if data is None else data
        self._own: Sentinel | None = None
        self._seen: tuple[Sentinel | None] | None = None  # what was read or laid last; None: nothing yet

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys; an entry that is read counts as used."""
        with self.data.lock:
            return self.data.values.get(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write many keys, all or none."""
        with self.data.lock:
            self._check_fence("put {} keys to memory", len(keys))
            self.data.values.put(keys, values)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete many keys, all or none."""
        with self.data.lock:
            self._check_fence("delete {} keys from memory", len(keys))
            self.data.values.delete(keys)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys as of one moment: a single page."""
        with self.data.lock:
            keys = self.data.values.keys()
        yield keys

    def read_sentinel(self) -> Sentinel | None:
        (found,) = self._seen = (self.data.sentinel,)
        return found

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        data = self.data
        with data.lock:
            found = data.sentinel
            (seen,) = self._seen or (found,)
            check_move("move the sentinel in memory", sentinel, found, seen, force)
            data.sentinel = self._own = sentinel
            self._seen = (sentinel,)

    def reset(self) -> None:
        with self.data.lock:
            self.data.clear()
            self._own = self._seen = None

    def _check_fence(self, doing: str, keys: int) -> None:
        if self.data.sentinel is not self._own and self.data.sentinel != self._own:
            doing = doing.format(keys)
            if self._own is None:
                raise FencedError(doing, str(self._own), str(self.data.sentinel))
            raise displaced(doing, self._own, self.data.sentinel, self._own)

    def __len__(self) -> int:
        return len(self.data)


class ColumnarMemoryMap(MemoryBackingMap[OpaqueValue]):
    """Commits columns besides: from the first commit of many keys by columns on, opaque numbers are stored as columns.

    A class of its own, because a subclass of `MemoryBackingMap` expects every read and write in the methods that it knows.
    """

    facts = MapFacts(commits_atomically=True, keeps_columns=True)

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read keys; None if the values are a dict, or are to be one."""
        with self.data.lock:
            return self.data.values.find(keys)


# Where the data of all states in memory are: one registry for the process, by factory and state.

_PROCESS = uuid4().hex
_kept: dict[tuple[str, str], dict[int, MemoryData]] = {}  # by partition
_lock = threading.Lock()


def this_process() -> str:
    return f"{_PROCESS}:{os.getpid()}"  # a fork has the first part in common


def data_of(
    factory_id: str, home: str, max_size: int, conf: StateConf, partition: int, num_partitions: int
) -> MemoryData:
    """Return the data of a partition, made if there are none; all partitions of a state share its values."""
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


class _MemoryFactory(Kinds[int]):
    """A `StateFactory` whose three methods make a `StateSpec` of a new factory."""

    facts: ClassVar[StoreFacts] = StoreFacts(in_memory=True)
    """A topology whose states are all in memory keeps its log there too, unless `log_dir` is given."""

    id: str
    kind: StateType
    home: str
    max_size: int

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> MemoryMap:
        """Open one partition; the data of an earlier state object of the same factory and name are found again."""
        data = data_of(self.id, self.home, self.max_size, conf, partition_index, num_partitions)
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

    id: str = field(default_factory=lambda: uuid4().hex)
    kind: StateType = StateType.OPAQUE
    home: str = field(default_factory=this_process, repr=False)
    max_size = 0  # no option of this one

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
    id: str = field(default_factory=lambda: uuid4().hex)
    kind: StateType = StateType.OPAQUE
    home: str = field(default_factory=this_process, repr=False)

    facts: ClassVar[StoreFacts] = StoreFacts(in_memory=True, forgets=True)
    """Not for what must be complete (a window)."""

    Factory: ClassVar[type[LRUMemoryMapState]]
    """Trident's name for the factory; the class itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.max_size, int) or isinstance(self.max_size, bool) or self.max_size < 1:
            raise ConfigError(f"max_size={self.max_size!r} of an LRUMemoryMapState: give a whole number of at least 1")


LRUMemoryMapState.Factory = LRUMemoryMapState
