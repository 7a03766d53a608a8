"""map_state: a state over any two-method backing map, as a spec that a topology can take; a map and a single value alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from trident.errors import ConfigError, UnsupportedOperation
from trident.roles import adapt, facts_of
from trident.state.cached import CachedMap
from trident.state.forwarding import passes_on
from trident.state.interfaces import (
    IBackingMap,
    Key,
    MapState,
    State,
    StateConf,
    StateSpec,
    StateType,
    StoreFacts,
    ValueUpdater,
    kind_of,
    state_of,
    state_type,
)
from trident.state.map_commits import CommittedMap
from trident.state.maps import map_for
from trident.state.txid import Snapshot

_OF_A_VALUE = {"get", "update"}

DEFAULT_SNAPSHOT_KEY = "$GLOBAL$"
"""The one part of the key that the single value is stored under, unless a store says otherwise."""


@passes_on(State)
class SnapshottableMap(State):
    """`MapState` and `Snapshottable` over one map state; everything else is what the map does.

    `snapshot_key` is the key of the single value: a tuple, or its only field.
    """

    def __init__(self, map_state: MapState[Any], snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY) -> None:
        self.map_state = map_state
        self.snapshot_key: Key = snapshot_key if isinstance(snapshot_key, tuple) else (snapshot_key,)
        self.inner = inner = state_of(map_state)
        self.facts, self.kind, self.place = inner.facts, kind_of(inner), inner.place
        adapt(State, self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def offers(self, method: str) -> bool:
        """Whether the map, or this class besides, has a method of its own in place of the default."""
        is_passed_on = getattr(type(self), method) is getattr(SnapshottableMap, method) and method not in _OF_A_VALUE
        return self.inner.offers(method) if is_passed_on else super().offers(method)

    def get(self) -> Any:
        (value,) = self.map_state.multi_get([self.snapshot_key])
        return value

    def get_at(self, snapshot: Snapshot) -> Any:
        """Return the single value as it was after `snapshot.txid`, None if not yet written then.

        Raises
        ------
        StaleTransactionError
            The snapshot is too old: take a newer one and read again.
        UnsupportedOperation
            The map keeps no earlier values (only an opaque one does).
        """
        multi_get_at = self.inner.facts.multi_get_at
        if multi_get_at is None:
            raise UnsupportedOperation(
                f"read as of batch {snapshot.txid}: a {type(self.map_state).__name__} keeps the latest value only; "
                "use an opaque state, or get() for the latest write"
            )
        (value,) = multi_get_at([self.snapshot_key], snapshot)
        return value

    def update(self, updater: ValueUpdater[Any]) -> Any:
        (value,) = self.map_state.multi_update([self.snapshot_key], [updater])
        return value

    def set(self, value: Any) -> None:
        self.map_state.multi_put([self.snapshot_key], [value])


def committed_map(state: Any) -> CommittedMap | None:
    """Return the map over a backing map that a state is, or forwards to; None if it is not one."""
    found = state.inner if isinstance(state, SnapshottableMap) else state
    return found if isinstance(found, CommittedMap) else None


class BackingMapFactory(Protocol):
    """Opens the backing map of one partition. It is pickled to where it is used, so connect in the call, not before."""

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int, /) -> IBackingMap[Any]:
        """Return the map of partition `partition_index`; keys of a shared store start with `conf.prefix`."""


@dataclass(frozen=True)
class MapStateFactory:
    """The `StateFactory` behind `map_state`, whose parameters are its fields."""

    backing_map_factory: BackingMapFactory
    kind: StateType = StateType.OPAQUE
    cache: int = 0
    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY

    @property
    def facts(self) -> StoreFacts:
        """What the factory of the backing maps says."""
        facts = facts_of(StoreFacts, self.backing_map_factory)
        kept = facts.with_kept and self._with_kept
        return replace(facts, is_map=True, snapshot_key=self.snapshot_key, with_kept=kept)

    def _with_kept(self, kept: Mapping[str, Any]) -> MapStateFactory:
        with_kept = facts_of(StoreFacts, self.backing_map_factory).with_kept
        assert with_kept is not None, "facts say whether the store has such options"
        return replace(self, backing_map_factory=with_kept(kept))

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> SnapshottableMap:
        """Open one partition. It has no cache if it is read-only, or if other partitions write the same keys."""
        backing = self.backing_map_factory(conf, partition_index, num_partitions)
        if self.cache and not conf.read_only and not conf.free_keys:
            backing = CachedMap(backing, self.cache)
        of_kind = map_for(self.kind, backing, conf.prefix, partition_index, conf.migrate)
        return SnapshottableMap(of_kind, self.snapshot_key)


def map_state(
    backing_map_factory: BackingMapFactory,
    kind: StateType | str = StateType.OPAQUE,
    cache: int = 0,
    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY,
    num_partitions: int | None = None,
) -> StateSpec:
    """Make a state of a backing map: exactly-once counts over any store that has `multi_get` and `multi_put`.

    Parameters
    ----------
    backing_map_factory
        `(conf, partition_index, num_partitions) -> IBackingMap`; picklable.
    kind
        `"opaque"`, `"transactional"`, `"non-transactional"`, or the `StateType`.
    cache
        How many entries of a partition are remembered between commits (`CachedMap`); 0: none.
    snapshot_key
        The key of the single value of an ungrouped aggregate: a tuple, or its only field.
    num_partitions
        The number of partitions that the state requires; None: as the topology asks.
    """
    if not callable(backing_map_factory):
        raise TypeError(
            f"backing_map_factory is a {type(backing_map_factory).__name__}; give a function "
            "(conf, partition_index, num_partitions) -> IBackingMap, not an open map"
        )
    if cache < 0 or (num_partitions is not None and num_partitions < 1):
        raise ConfigError(
            f"a map state with cache={cache} and num_partitions={num_partitions}: cache is 0 (none) or a number of "
            "entries, num_partitions is None or at least 1"
        )
    return StateSpec(MapStateFactory(backing_map_factory, state_type(kind), cache, snapshot_key), num_partitions)
