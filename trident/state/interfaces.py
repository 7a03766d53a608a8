"""What a state is. Users implement these; the framework calls them.

A *key* is a tuple of the values of the grouping fields, in field order. Lists of keys and the lists of values that
answer them always have the same length and order; None in an answer means "never written".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from trident.errors import ConfigError
from trident.redaction import Redacted

if TYPE_CHECKING:
    from trident.state.txid import Sentinel, Snapshot, Txid
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
    "StreamedMap",
    "ValueUpdater",
    "kind_of",
    "state_type",
]

REPLAY_WINDOW_S = 86_400
"""A store that forgets a value sooner may have lost it when its batch is replayed after a night's outage."""

Key = tuple[Any, ...]
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


class StateType(Enum):
    """How a state undoes what a failed attempt wrote; see the guarantee matrix."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


def state_type(kind: StateType | str) -> StateType:
    """Return the `StateType` of a name, `_` and `-` alike."""
    if isinstance(kind, StateType):
        return kind
    try:
        return StateType(kind.replace("_", "-"))
    except (ValueError, AttributeError) as error:
        names = ", ".join(repr(known.value) for known in StateType)
        raise ConfigError(f"state kind {kind!r} is unknown; use one of {names}") from error


def kind_of(*declaring: Any) -> StateType | None:
    """Return the kind that objects declare by their attribute `kind`, as a `StateType` or its name; None if none does.

    Raises
    ------
    ConfigError
        There is no such kind, or they do not declare the same one.
    """
    kinds = {state_type(kind): None for kind in (getattr(one, "kind", None) for one in declaring) if kind is not None}
    if len(kinds) > 1:
        raise ConfigError(f"two kinds are declared, {' and '.join(repr(kind.value) for kind in kinds)}; declare one")
    return next(iter(kinds), None)


@dataclass(frozen=True, repr=False)
class StateConf(Redacted, Mapping[str, Any]):
    """What a `StateFactory` is told; also a read-only mapping of the settings of the topology.

    Attributes
    ----------
    topology, state
        Their names; together the default key prefix, so that two topologies may share a store.
    key_fields
        `(name, DDL type)` of each grouping field; empty for an ungrouped aggregate or `partition_persist`.
    value_type
        DDL type of the aggregate; None where the state is fed by a user's `StateUpdater`.
    settings
        The configuration of the topology by key.
    read_only
        True for an instance that only answers reads (from any process).
    """

    topology: str = "topology"
    state: str = "state"
    key_fields: tuple[tuple[str, str], ...] = ()
    value_type: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool = False

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)

    @property
    def prefix(self) -> str:
        """`topology/state`: what every key of this state starts with in a shared store.

        A slash in the topology's name is written `%2F`, or topology `a/b` would share the keys of topology `a`.
        """
        return f"{self.topology.replace('%', '%25').replace('/', '%2F')}/{self.state}"


@runtime_checkable
class State(Protocol):
    """Any state: told when the updates of a batch begin and when they are complete.

    `txid` is an `int`; inside the framework it also carries its attempt (see `trident.state.Txid`). Neither method is
    called for a partition without input. `commit` ends the updates of this partition; the batch as a whole is committed
    only by its record in the log. After an exception from either, the same or another instance gets `begin_commit`
    with the same txid and a higher attempt.

    A state says what it does with a replay by an attribute `kind`, a `StateType` or its name (`"opaque"`), on itself, on
    its factory or on both; the factory's is known before anything is opened. One that says none is taken as it is.
    """

    def begin_commit(self, txid: int) -> None:
        """Updates of batch `txid` follow."""

    def commit(self, txid: int) -> None:
        """All updates of batch `txid` to this partition were made; return once they are durable."""


class StateFactory(Protocol):
    """Makes one partition of a state. Pickled to where it is used, so it connects in `make_state`, not before."""

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        """Return the `State` of partition `partition_index` (0 … num_partitions - 1)."""


@dataclass(frozen=True)
class StateSpec:
    """A factory and the number of partitions that it insists on (None: as the topology asks)."""

    factory: StateFactory
    required_num_partitions: int | None = None

    @property
    def kind(self) -> StateType | None:
        """The kind that the factory declares, before anything is opened; None where it declares none."""
        return kind_of(self.factory)

    @property
    def keeps_attempts(self) -> bool | None:
        """Whether stored values say which attempt wrote them, as far as the factory knows; None: not known yet."""
        known: bool | None = getattr(getattr(self.factory, "backing_map_factory", None), "keeps_attempts", None)
        return known


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
        """Write many keys; `keys` are distinct. Return once all are written; on an error any part may be."""


class ReadOnlyMapState(Protocol[V]):
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


class RemovableMapState(State, Protocol):
    """A map whose keys can be removed; exact under replay."""

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch; absent keys are ignored."""


@runtime_checkable
class ITupleCollection(Protocol):
    """A state that can list what it holds."""

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows: the parts of the key, then the value. No order is promised."""


class ReadOnlySnapshottable(Protocol[V_co]):
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
        """Apply `tuples`; what is emitted to `collector` flows on in `new_values_stream()`."""


class QueryFunction(Protocol[S_contra, V]):
    """Looks tuples up in a state, in bulk."""

    def batch_retrieve(self, state: S_contra, args: Sequence[TridentTuple]) -> Sequence[V]:
        """Return one result per tuple, in order."""

    def execute(self, tuple: TridentTuple, result: V, collector: TridentCollector) -> None:
        """Emit 0 … n value lists for one tuple and its result; each is appended to the tuple."""


# ---- what a backing map may offer besides its two methods ----------------------------------------------------------


@runtime_checkable
class BackingMapLifecycle(Protocol):
    """A backing map that is told about commits: to write all puts of a commit at once, or to drop a stale cache.

    A put outside of `begin` and `end` is written when it returns; the seal of a commit is one.
    """

    def begin(self, txid: Txid) -> None:
        """A commit begins; unfinished business of an earlier one is void."""

    def end(self, txid: Txid) -> None:
        """The commit's puts are complete; return once they are durable."""


@runtime_checkable
class AtomicMap(Protocol):
    """A backing map whose class says whether a commit is written whole or not at all.

    The sentinel of any other map is sealed when the whole commit is acknowledged, so that a store that lost the end of a
    commit is found.
    """

    commits_atomically: bool


@runtime_checkable
class FencedMap(Protocol):
    """A backing map that keeps the sentinel itself, so that a writer that was replaced cannot write (R9).

    All five fields of a `Sentinel` are kept; it is laid unsealed when a commit begins and again, sealed, when all puts
    are acknowledged (see `AtomicMap`).
    """

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of this partition, None if there is none."""

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that this instance read or laid last; from now on puts succeed only while it stands.

        It is a compare-and-set, "none" included: a store that was emptied, rolled back or taken over since the read is
        not written to. Without a read before it, the move reads by itself. A move that is sent again, because no answer
        came, finds what was read or its own record.

        Parameters
        ----------
        force
            Also move it back, or to another incarnation; what was read is compared all the same.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError
            The store has another sentinel; see `trident.state.sentinel.displaced`. Nothing was written.
        """


@runtime_checkable
class RemovableMap(Protocol):
    """A backing map that can delete keys. In any other, a removed key stays as a stored None."""

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored. Fenced as `multi_put` is."""


@runtime_checkable
class ListableMap(Protocol):
    """A backing map that can list its keys."""

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys, in pages of a size that the store finds right.

        A key that is there from the first page to the last comes exactly once; the sentinel's key does not come.
        Partitions that share a store may each list the keys of all.
        """


@runtime_checkable
class StreamedMap(Protocol):
    """A backing map of bytes that makes and reads values chunk by chunk, while the store works on the chunk before."""

    def multi_get_as(
        self, keys: Sequence[Key], decode: Callable[[Sequence[Key], Sequence[bytes | None]], list[Any]]
    ) -> list[Any]:
        """Read as `multi_get`; give what `decode` makes of each chunk."""

    def multi_put_as(
        self, keys: Sequence[Key], values: Sequence[Any], encode: Callable[[Sequence[Key], Sequence[Any]], list[bytes]]
    ) -> None:
        """Write as `multi_put` what `encode` makes of each chunk; where it raises, earlier chunks may be written."""


@runtime_checkable
class Resettable(Protocol):
    """A state or backing map that can be emptied, for `state_recovery="restart"`."""

    def reset(self) -> None:
        """Forget every key and the sentinel of this partition."""


@runtime_checkable
class SnapshotReadable(Protocol):
    """A map that can be read as of a committed txid while a later batch is being written (R12)."""

    def multi_get_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        """Read many keys as they were after `snapshot.txid`; raise `StaleTransactionError` if it is too old."""
