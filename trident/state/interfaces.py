"""What a state is. Users implement these; the framework calls them.

A *key* is a tuple of the values of the grouping fields, in field order. Lists of keys and the lists of values that
answer them always have the same length and order; None in an answer means "never written".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from trident.ability import Ability
from trident.redaction import Redacted
from trident.state.abilities import (
    DeclaresAttempts,
    Expires,
    Forgetting,
    ITupleCollection,
    KeptInMemory,
    KeptOnOneMachine,
    OverBackingMap,
    Resettable,
    SnapshotReadable,
    StagesInTasks,
)
from trident.state.kinds import Key, StateType, kind_of, state_type
from trident.state.map_abilities import (
    AtomicMap,
    BackingMapLifecycle,
    FencedMap,
    ListableMap,
    RemovableMap,
)

if TYPE_CHECKING:
    from trident.tuples import TridentCollector, TridentTuple

__all__ = [
    "REPLAY_WINDOW_S",
    "AtomicMap",
    "BackingMapLifecycle",
    "FencedMap",
    "IBackingMap",
    "ITupleCollection",
    "Key",
    "ListableMap",
    "MapState",
    "QueryFunction",
    "ReadOnlyMapState",
    "ReadOnlySnapshottable",
    "RemovableMap",
    "RemovableMapState",
    "Resettable",
    "SnapshotReadable",
    "Snapshottable",
    "State",
    "StateConf",
    "StateFactory",
    "StateSpec",
    "StateType",
    "StateUpdater",
    "ValueUpdater",
    "kind_of",
    "state_type",
]

REPLAY_WINDOW_S = 86_400
"""The shortest safe expiry: a value that expires sooner may be gone when its batch is replayed after a night's outage."""

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True, repr=False)
class StateConf(Redacted, Mapping[str, Any]):
    """The arguments of a `StateFactory`; also a read-only mapping of the settings of the topology.

    Attributes
    ----------
    topology, state
        Their names; together the default key prefix, so that two topologies may share a store.
    key_fields
        `(name, DDL type)` of each grouping field; empty for an ungrouped aggregate or `partition_persist`.
    value_type
        DDL type of the aggregate; None if a user's `StateUpdater` feeds the state.
    settings
        The configuration of the topology by key.
    read_only
        True for an instance that only answers reads (from any process).
    value_field
        Name of the field that the aggregate is; None if it has none.
    free_keys
        True if any of several partitions may write any key, because an updater of the user's chooses them. Then nothing may
        be remembered of a key from one commit to the next.
    """

    topology: str = "topology"
    state: str = "state"
    key_fields: tuple[tuple[str, str], ...] = ()
    value_type: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool = False
    value_field: str | None = None
    free_keys: bool = False

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)

    @property
    def prefix(self) -> str:
        """`topology/state`: the beginning of every key of this state in a shared store.

        A slash in the topology's name is written `%2F`, because topology `a/b` must not share the keys of topology `a`.
        """
        return f"{self.topology.replace('%', '%25').replace('/', '%2F')}/{self.state}"


@runtime_checkable
class State(Protocol):
    """Any state: it is called when the updates of a batch begin and when they are complete.

    `txid` is an `int`; inside the framework it also carries its attempt (see `trident.state.Txid`). In the driver neither
    method is called for a partition without input; tasks of executors call them for each partition. `commit` ends the updates
    of this partition; the batch as a whole is committed only by its record in the log. After an exception from either, the
    same or another instance gets `begin_commit`
    with the same txid and a higher attempt.

    A state says what it does with a replay by an attribute `kind`, a `StateType` or its name (`"opaque"`), on itself,
    on its factory or on both; the factory's is known before anything is opened. A state without a kind is accepted with
    every spout.
    """

    def begin_commit(self, txid: int) -> None:
        """Updates of batch `txid` follow."""

    def commit(self, txid: int) -> None:
        """All updates of batch `txid` to this partition were made; return once they are durable."""


@runtime_checkable
class StateFactory(Ability, Protocol):
    """Makes one partition of a state. Pickled to where it is used, so it connects in `make_state`, not before."""

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        """Return the `State` of partition `partition_index` (0 … num_partitions - 1)."""


@dataclass(frozen=True)
class StateSpec:
    """A factory, and what is known of its states before one is opened.

    Attributes
    ----------
    factory
        Opens a partition.
    required_num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    store
        What the store is called: the class that users write, such as `RedisState`; empty: the name of the factory.
    place
        The folder or table that no other state may share; empty: states share the store.
    """

    factory: StateFactory
    required_num_partitions: int | None = None
    store: str = ""
    place: str = field(default="", repr=False)  # an address may hold a password

    @property
    def kind(self) -> StateType | None:
        """The kind that the factory declares, before anything is opened; None if it declares none."""
        return kind_of(self.factory)

    @property
    def keeps_attempts(self) -> bool | None:
        """Whether stored values say which attempt wrote them, as far as the factory knows; None: not known yet."""
        maps = self.factory.backing_map_factory if isinstance(self.factory, OverBackingMap) else None
        return maps.keeps_attempts if isinstance(maps, DeclaresAttempts) else None

    @property
    def in_memory(self) -> bool:
        """Whether the states are in the memory of the process that commits them; see `KeptInMemory`."""
        return isinstance(self.factory, KeptInMemory) and self.factory.in_memory

    @property
    def on_one_machine(self) -> bool:
        """Whether only processes of this machine are sure to see the states; see `KeptOnOneMachine`."""
        return isinstance(self.factory, KeptOnOneMachine) and self.factory.on_one_machine

    @property
    def stages_commits(self) -> bool:
        """Whether tasks of executors only stage what they commit, and the driver publishes it; see `StagesInTasks`."""
        return isinstance(self.factory, StagesInTasks) and self.factory.stages_commits

    @property
    def forgets(self) -> bool:
        """Whether the states may forget values; see `Forgetting`."""
        return isinstance(self.factory, Forgetting) and self.factory.forgets

    @property
    def expires_after_s(self) -> float | None:
        """Seconds from its last write to the expiry of a value; None: never, as far as the factory knows. See `Expires`."""
        factory = self.factory.backing_map_factory if isinstance(self.factory, OverBackingMap) else self.factory
        return factory.expires_after_s if isinstance(factory, Expires) else None


class ValueUpdater(Protocol[V]):
    """Turns the stored value of one key into the new one."""

    def update(self, stored: V | None) -> V:
        """Return the new value; `stored` is None if there is none. Must not change `stored` in place."""


@runtime_checkable
class IBackingMap(Protocol[V]):
    """A plain key-value store: two methods. The maps above it add transactions, caches and fencing."""

    def multi_get(self, keys: Sequence[Key]) -> Sequence[V | None]:
        """Read many keys: one entry per key, in the order asked, None where never written."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write many keys; `keys` are distinct. Return once all are written; on an error any of them may be."""


@runtime_checkable
class ReadOnlyMapState(Ability, Protocol[V]):
    """A map that can be read in bulk."""

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys: one entry per key, in the order asked, None where absent."""


class MapState(State, Protocol[V]):
    """A map that a grouped `persistent_aggregate` can keep its values in."""

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys, as `ReadOnlyMapState.multi_get`."""

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[V]]) -> list[V]:
        """Update distinct keys, each by its updater, with one read and one write; return the new values."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Replace the values of distinct keys."""


@runtime_checkable
class RemovableMapState(State, Ability, Protocol):
    """A map whose keys can be removed; exact under replay."""

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch; absent keys are ignored."""


@runtime_checkable
class ReadOnlySnapshottable(Ability, Protocol[V_co]):
    """A single value that can be read."""

    def get(self) -> V_co | None:
        """Return the value, None if never written."""


class Snapshottable(State, Protocol[V]):
    """A single value that an ungrouped `persistent_aggregate` can be kept in."""

    def get(self) -> V | None:
        """Return the value, None if never written."""

    def update(self, updater: ValueUpdater[V]) -> V:
        """Update the value and return the new one."""

    def set(self, value: V) -> None:
        """Replace the value."""


class StateUpdater(Protocol[S_contra]):
    """Applies the tuples of one batch partition to a state, between `begin_commit` and `commit`."""

    def update_state(self, state: S_contra, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        """Apply `tuples`; what is emitted to `collector` goes to `new_values_stream()`."""


class QueryFunction(Protocol[S_contra, V]):
    """Looks tuples up in a state, in bulk."""

    def batch_retrieve(self, state: S_contra, args: Sequence[TridentTuple]) -> Sequence[V]:
        """Return one result per tuple, in order."""

    def execute(self, tuple: TridentTuple, result: V, collector: TridentCollector) -> None:
        """Emit 0 … n value lists for one tuple and its result; each is appended to the tuple."""
