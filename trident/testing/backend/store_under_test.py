"""The store under test: what it claims, its maps, opened as the framework does, and the protocol of a commit over them."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal
from uuid import uuid4

from trident.errors import ConfigError
from trident.state.backing_map import BackingMap, backing_map
from trident.state.encoding.serializers import CodecSerializer
from trident.state.forwarding import SerializedMap
from trident.state.interfaces import Key, StateConf, StateSpec, StateType, is_factory, kind_of, state_of
from trident.state.map_state import MapStateFactory, SnapshottableMap, committed_map
from trident.state.maps import map_for
from trident.state.sentinel import ReservedKeySentinel, fenced
from trident.state.txid import Sentinel, Txid
from trident.state.values import OpaqueValue, TransactionalValue
from trident.testing.suite import OutOfTime

INCARNATION = "contract-log"
RUN_PREFIX = f"contract-{uuid4().hex[:8]}-"
"""What the names of this process's topologies start with."""

_AT_ONCE = 1000
_EPOCH = 1 << 20
_numbers = count()

Fencing = Literal["no", "written", "all"]
"""What a writer that was replaced can still do: anything; no harm to what its successor wrote; nothing."""

METHODS = {
    "fences": ("read_sentinel", "move_sentinel"),
    "lists": ("key_pages",),
    "removes": ("multi_delete",),
    "resets": ("reset",),
}
"""The methods that a map has for what is claimed of it."""


@dataclass(frozen=True)
class Limits:
    """What a backing map can do, and its limits. The defaults claim what two methods over any store can do.

    Attributes
    ----------
    max_key_bytes, max_value_bytes
        The longest key and the largest value, as the codec encodes them, prefix included; None: there is no limit. What
        is longer must be refused by an error.
    chunk
        The largest number of keys in one request to the server; sizes around it are tried.
    binary_keys
        Keys may have parts of type `bytes`. If not, they must be refused.
    all_types
        Values come back with the types that they had, as `CodecSerializer` does it. If not (JSON), what has no
        encoding must be refused.
    raw_bytes
        The map is one of bytes: a `SerializedMap` with a `CodecSerializer` is put over it.
    shared
        Several states, each with its own prefix, may share the store. If not, the factory must be a function without
        arguments that opens an empty store each time.
    durable
        What was written is there in another process, opened from the pickled factory.
    repartitions
        A key is found with any number of partitions, in any of them.
    fences
        What a replaced writer can still do; see `Fencing`.
    moves_at_commit
        A sentinel that is moved without `force` is seen by others only with the commit that moved it.
    atomic_put
        A put that raises has written nothing. (Without this claim any part may be written.)
    isolated
        No other instance sees the puts of a commit before its `end`.
    atomic_commit
        The puts of a commit that never ended are never seen.
    lists, removes, resets
        The map has `key_pages`, `multi_delete`, `reset`.
    """

    max_key_bytes: int | None = None
    max_value_bytes: int | None = None
    chunk: int = 1000
    binary_keys: bool = True
    all_types: bool = True
    raw_bytes: bool = False
    shared: bool = True
    durable: bool = False
    repartitions: bool = False
    fences: Fencing = "no"
    moves_at_commit: bool = False
    atomic_put: bool = False
    isolated: bool = False
    atomic_commit: bool = False
    lists: bool = False
    removes: bool = False
    resets: bool = False

    def __post_init__(self) -> None:
        sizes = {"chunk": self.chunk, "max_key_bytes": self.max_key_bytes, "max_value_bytes": self.max_value_bytes}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name}={size}: give at least 1{'' if name == 'chunk' else ', or None for no limit'}")

    def with_abilities_of(self, backing: BackingMap) -> Limits:
        """Return these limits with the claims that the methods of a map make."""
        return replace(
            self,
            fences=("all" if self.fences == "no" else self.fences) if backing.offers("move_sentinel") else "no",
            lists=backing.offers("key_pages"),
            removes=backing.offers("multi_delete"),
            resets=backing.offers("reset"),
        )


@dataclass
class SuiteRun:
    """One run, until a time of `time.monotonic`; `clean` empties a state (None: maps do so); `left`: keys that stayed."""

    until: float = math.inf
    clean: Callable[[StateConf], Any] | None = None
    left: dict[str, int] = field(default_factory=dict)
    _written: dict[str, set[Key]] = field(default_factory=dict)

    def note(self, conf: StateConf, backing: BackingMap) -> None:
        """Remember what is put into a map that cannot empty itself."""
        if self.clean is not None or backing.offers("reset"):
            return
        written, put = self._written.setdefault(conf.prefix, set()), backing.multi_put

        def put_and_note(keys: Iterable[Key], values: Any) -> None:
            keys = list(keys)
            written.update(keys)
            put(keys, values)

        with suppress(AttributeError):  # a class with __slots__: what it leaves is not known
            backing.multi_put = put_and_note  # type: ignore[method-assign]

    def empty(self, conf: StateConf, backing: BackingMap) -> None:
        keys = list(self._written.pop(conf.prefix, ()))
        if keys:
            self.left[conf.prefix] = len(keys)  # until they are removed
        if self.clean is not None:
            self.clean(conf)
        elif backing.offers("reset"):
            backing.reset()
        elif backing.offers("multi_delete"):
            for start in range(0, len(keys), _AT_ONCE):
                backing.multi_delete(keys[start : start + _AT_ONCE])
        else:
            return
        self.left.pop(conf.prefix, None)


class Store:
    """One empty store: opens maps and states of it, and closes them all. `partitions`: of a state, if its spec says so."""

    def __init__(
        self, factory: Any, kind: StateType | None = None, limits: Limits | None = None, run: SuiteRun | None = None
    ) -> None:
        self._run = SuiteRun() if run is None else run
        self._lasts = not supplies(factory)  # else what is opened is empty each time, and the caller's to throw away
        self._supplied = factory
        given = factory if self._lasts else factory()
        self.partitions = given.required_num_partitions if isinstance(given, StateSpec) else None
        self.factory = opened_factory(given)
        self._factories: dict[str, Any] = {}  # by prefix, where states cannot share a store
        self.kind = kind or kind_of(self.factory) or StateType.OPAQUE
        self.topology = f"{RUN_PREFIX}{next(_numbers)}"
        self._opened: list[Any] = []
        self._confs: dict[tuple[str, int, int], tuple[StateConf, int, int]] = {}
        self._given = limits
        self._limits: Limits | None = None

    @property
    def limits(self) -> Limits:
        if self._limits is None:
            self._limits = self._given or Limits().with_abilities_of(self.map("limits"))
        return self._limits

    def conf(self, state: str = "state", topology: str | None = None, read_only: bool = False) -> StateConf:
        """Return the configuration of a state in a topology of its own, or in one whose name ends with `topology`."""
        if topology is None:
            return StateConf(f"{self.topology}-{state.replace(' ', '-')}", "state", read_only=read_only)
        return StateConf(f"{self.topology}{topology}", state, read_only=read_only)

    def map(
        self,
        state: str = "state",
        partition: int = 0,
        partitions: int = 1,
        *,
        topology: str | None = None,
        reads: bool = False,
    ) -> BackingMap:
        return self.open(self.conf(state, topology, reads), partition, partitions)

    def open(self, conf: StateConf, partition: int, partitions: int) -> BackingMap:
        opened = open_backing_map(self._noted_factory(conf, partition, partitions), conf, partition, partitions)
        self._keep(conf, opened, opened)
        raw = self._given is not None and self._given.raw_bytes
        return SerializedMap(opened, CodecSerializer(self.kind)) if raw else opened

    def state(self, state: str = "state", partition: int = 0, partitions: int = 1, *, reads: bool = False) -> Any:
        """Open a new instance of a state: `begin_commit`, `multi_update`, `commit`, and `get`, `update`, `set`."""
        conf = self.conf(state, read_only=reads)
        if not is_factory(self.factory):
            return SnapshottableMap(map_for(self.kind, self.open(conf, partition, partitions), conf.prefix, partition))
        made = state_of(self._noted_factory(conf, partition, partitions).make_state(conf, partition, partitions))
        self._keep(conf, made, backing_of(made))
        return made

    def writer(
        self, state: str = "state", partition: int = 0, partitions: int = 1, *, topology: str | None = None
    ) -> Writer:
        return Writer(self.map(state, partition, partitions, topology=topology), self.kind, partition)

    def close(self) -> None:
        for conf, partition, partitions in self._confs.values():
            with suppress(Exception):  # a user's store; the verdict stands, and the next case must run
                opened = open_backing_map(self._factory_of(conf), conf, partition, partitions)
                self._opened.append(opened)
                self._run.empty(conf, opened)
        for opened in self._opened:
            with suppress(Exception):
                opened.close()
        self._opened, self._confs = [], {}

    def _noted_factory(self, conf: StateConf, partition: int, partitions: int) -> Any:
        if time.monotonic() > self._run.until:
            raise OutOfTime
        self._confs[conf.prefix, partition, partitions] = replace(conf, read_only=False), partition, partitions
        return self._factory_of(conf)

    def _factory_of(self, conf: StateConf) -> Any:
        """Return what opens a state: one factory for all, or an empty store for each where they cannot share one."""
        if self._given is None or self._given.shared:
            return self.factory
        if conf.prefix not in self._factories:
            self._factories[conf.prefix] = opened_factory(self._supplied) if self._factories else self.factory
        return self._factories[conf.prefix]

    def _keep(self, conf: StateConf, opened: Any, backing: BackingMap | None) -> None:
        self._opened.append(opened)
        if self._lasts and backing is not None and not conf.read_only:
            self._run.note(conf, backing)


@dataclass
class Writer:
    """Commits to a backing map as the maps of `trident.state` do: sentinel, begin, puts, end."""

    backing: BackingMap
    kind: StateType = StateType.OPAQUE
    partition: int = 0

    def begin(self, txid: int, attempt: int = 0) -> None:
        guard, sentinel = fenced(self.backing, self.partition), sentinel_of(txid, attempt)
        guard.read_sentinel()  # as every commit does first
        if isinstance(guard, ReservedKeySentinel):
            self.start(txid, attempt)
            guard.move_sentinel(sentinel)
        else:
            guard.move_sentinel(sentinel)
            self.start(txid, attempt)

    def start(self, txid: int, attempt: int = 0) -> None:
        self.backing.begin(commit_of(txid, attempt))

    def put(self, rows: Iterable[tuple[Key, Any]], txid: int, attempt: int = 0) -> None:
        pairs = list(rows)
        values = [form_to_store(self.kind, value, txid, attempt) for _, value in pairs]
        self.backing.multi_put([key for key, _ in pairs], values)

    def end(self, txid: int, attempt: int = 0) -> None:
        self.backing.end(commit_of(txid, attempt))

    def commit(self, rows: Iterable[tuple[Key, Any]], txid: int, attempt: int = 0) -> None:
        self.begin(txid, attempt)
        self.put(rows, txid, attempt)
        self.end(txid, attempt)

    def delete(self, keys: Sequence[Key], txid: int, attempt: int = 0) -> None:
        self.begin(txid, attempt)
        self.backing.multi_delete(keys)
        self.end(txid, attempt)

    def read(self, keys: Sequence[Key]) -> list[Any]:
        return [value_of(found) for found in self.backing.multi_get(keys)]


def form_to_store(kind: StateType, value: Any, txid: int, attempt: int = 0) -> Any:
    if kind is StateType.OPAQUE:
        return OpaqueValue(txid, _EPOCH + attempt, None, value)
    return TransactionalValue(txid, value) if kind is StateType.TRANSACTIONAL else value


def value_of(found: Any) -> Any:
    if isinstance(found, OpaqueValue):
        return found.curr
    return found.value if isinstance(found, TransactionalValue) else found


def sentinel_of(txid: int, attempt: int = 0) -> Sentinel:
    """Return the sentinel that a commit of the suite leaves."""
    return Sentinel(INCARNATION, txid, _EPOCH + attempt)


def commit_of(txid: int, attempt: int = 0) -> Txid:
    return Txid(txid, _EPOCH + attempt, incarnation=INCARNATION)


def open_backing_map(factory: Any, conf: StateConf, partition: int, partitions: int) -> BackingMap:
    if isinstance(factory, MapStateFactory):
        return backing_map(factory.backing_map_factory(conf, partition, partitions))
    if not is_factory(factory):
        return backing_map(factory(conf, partition, partitions))
    state = factory.make_state(conf, partition, partitions)
    backing = backing_of(state)
    if backing is None:
        raise ConfigError(
            f"{type(factory).__name__} makes a {type(state).__name__}, which is no map over a backing map; the suite "
            "checks what map_state and map_for make"
        )
    return backing


def backing_of(state: Any) -> BackingMap | None:
    found = committed_map(state)
    return None if found is None else found.backing


def opened_factory(factory: Any) -> Any:
    if supplies(factory):
        factory = factory()
    inner = factory.factory if isinstance(factory, StateSpec) else factory
    if not is_factory(inner) and not callable(inner):
        raise ConfigError(
            f"a {type(inner).__name__} is no factory; give a function (conf, partition_index, num_partitions) -> "
            "IBackingMap, a StateSpec, or a function without arguments that returns one of these"
        )
    return inner


def supplies(factory: Any) -> bool:
    if isinstance(factory, StateSpec) or is_factory(factory) or not callable(factory):
        return False
    try:
        inspect.signature(factory).bind()
    except (TypeError, ValueError):
        return False
    return True
