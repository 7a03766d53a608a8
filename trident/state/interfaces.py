"""What a state is. Users implement these; the framework calls them.

A *key* is a tuple of the values of the grouping fields, in field order. Lists of keys and the lists of values that
answer them always have the same length and order; None in an answer means "never written".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import unwrap
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trident.redaction import Redacted
from trident.roles import Role, adapt, facts_of
from trident.state.kinds import Key as Key
from trident.state.kinds import StateType as StateType
from trident.state.kinds import kind_of as kind_of
from trident.state.kinds import state_type as state_type

if TYPE_CHECKING:
    from trident.servers.log_addresses import Database
    from trident.state.kinds import KeptChanges, LaterWrite
    from trident.state.txid import Sentinel, Snapshot, Txid
    from trident.tuples import TridentCollector, TridentTuple

REPLAY_WINDOW_S = 86_400
"""The shortest safe expiry: a value that expires sooner may be gone when its batch is replayed after a night's outage."""

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


class FormerTypes(Protocol):
    """What a state whose values are of several types is read by.

    `types`: the former ones, as `Winners.types`, the last of them up to the attempts of this declaration; none: all values
    are of the declared type, or have fields besides that another declaration wrote.
    `fields`: of the declared type, if it is a struct.
    """

    fields: tuple[str, ...]
    types: tuple[tuple[int, str, Mapping[str, str | None] | None], ...]

    def convert(self, values: list[Any], former: str, names: Mapping[str, str | None] | None) -> Sequence[Any]:
        """Return values of a former type as the declared one, with the fields that the last declaration had besides."""

    def narrow(self, values: list[Any]) -> list[Any]:
        """Return values with the fields of the declared type alone."""

    def widen(self, values: Sequence[Any], attempt: int) -> Sequence[Any]:
        """Return values with all fields that columns of the store have, as the declaration of an attempt would write them."""


@dataclass(frozen=True, repr=False)
class StateConf(Redacted, Mapping[str, Any]):
    """The arguments of a `StateFactory`; also a read-only mapping of the settings of the topology.

    Attributes
    ----------
    topology, state
        Their names; together the default key prefix, so that two topologies may share a store. A state that got another name
        keeps the first one here.
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
        True if any of several partitions may write any key, because a user's updater chooses them. Then nothing may
        be remembered of a key from one commit to the next.
    migrate
        Reads values that former declarations of the state wrote; None: it is not opaque, or has no declared type.
    called
        The name of the state in its log.
    """

    topology: str = "topology"
    state: str = "state"
    key_fields: tuple[tuple[str, str], ...] = ()
    value_type: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool = False
    value_field: str | None = None
    free_keys: bool = False
    migrate: FormerTypes | None = field(default=None, repr=False)
    called: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)

    @property
    def evolves(self) -> bool:
        """Whether former declarations have written a part of the state, so its columns may be those of theirs."""
        return self.migrate is not None and bool(self.migrate.types)

    @property
    def prefix(self) -> str:
        """`topology/state`: the beginning of every key of this state in a shared store.

        A slash in the topology's name is written `%2F`, because topology `a/b` must not share the keys of topology `a`.
        """
        return f"{self.topology.replace('%', '%25').replace('/', '%2F')}/{self.state}"


@dataclass(frozen=True)
class StateFacts:
    """What is known of a state that is open, and what it can do besides: a method of that name, if it has one.

    Attributes
    ----------
    fences
        Its store refuses a writer that was replaced (R9), so executors may commit it.
    shares_keys, keeps_columns, has_typed_columns, kept_changes, keeps_attempts, commit_with_record
        As of `MapFacts`; `multi_combine` can work with a store that keeps columns.
    migrates
        It reads values of former types.
    can_be_emptied
        Its `reset` does not refuse.
    multi_get_at, get_at
        Reads as of a committed batch (R12): `(keys, snapshot)` returns the values of many keys as they were after
        `snapshot.txid`, and `(snapshot)` that of a state with a single one, None where it was not yet written. Each raises
        `StaleTransactionError` if the snapshot is too old.
    at
        `(snapshot)` returns the state as it was after an earlier batch, to be read with `multi_get` or `get`.
    to_dataframe
        `(spark, snapshot=None)` returns its table as a DataFrame of key columns and `value`: as of a committed batch, or the
        newest writes. Raises `EnvironmentProblem` if this session cannot read such tables.
    multi_combine
        `(parts, values, function)` updates distinct keys by columns; returns the column of new values, or None: use
        `multi_update`. See `OpaqueMap`.
    multi_update_once
        Updates as `multi_update` does; no other call of the commit updates any of the keys.
    share_keys
        Be one of several partitions any of which may write any key; called once, before the first commit (R16). Which keys a
        partition has written is compared before any partition commits. So puts are made at the commit, and nothing is
        remembered of a key, or deleted, that another partition may write meanwhile.
    written_keys
        Returns the keys that the commit under way writes, or removes although they are absent.
    stage
        `(txid)` ends a commit in a task, in place of `commit`: writes what the store does not show yet; returns what `publish`
        needs: names of files, no values, because it goes through the driver. In a task `begin_commit` compares the sentinel
        and moves none; the driver's writer of the same partition moves it when it publishes. So a task that was replaced has
        no effect, whatever it still writes.
    publish
        `(txid, staged)` commits what a task staged for this attempt, in the driver, as one transaction; raises as `commit`.
    recorded
        `(snapshot)`: the log holds the batches up to `snapshot.txid`; called at start and after each record. For a state that
        shows committed batches to programs of others. No commit of the state runs meanwhile. It must return at once, and a
        failure in it affects no batch.
    """

    fences: bool = False
    shares_keys: bool = False
    keeps_columns: bool = False
    migrates: bool = False
    has_typed_columns: bool = False
    can_be_emptied: bool = True
    kept_changes: KeptChanges | None = None
    multi_get_at: Callable[[Sequence[Key], Snapshot], list[Any]] | None = None
    get_at: Callable[[Snapshot], Any] | None = None
    at: Callable[[Snapshot], Any] | None = None
    to_dataframe: Callable[[Any, Snapshot | None], Any] | None = None
    multi_combine: Callable[[Sequence[Sequence[Any]], Any, Any], Any | None] | None = None
    multi_update_once: Callable[[Sequence[Key], Sequence[Any]], list[Any]] | None = None
    share_keys: Callable[[], None] = lambda: None
    written_keys: Callable[[], Collection[Key]] = tuple
    keeps_attempts: Callable[[], bool | None] = lambda: None
    stage: Callable[[int], bytes] | None = None
    publish: Callable[[Txid, bytes], None] | None = None
    recorded: Callable[[Snapshot], None] = lambda snapshot: None
    commit_with_record: Callable[[Callable[[LaterWrite], None]], None] | None = None


class State(Role):
    """Any state: it is called when the updates of a batch begin and when they are complete.

    `txid` is an `int`; inside the framework it also carries its attempt (see `trident.state.Txid`). In the driver neither
    method is called for a partition without input; tasks of executors call them for each partition. `commit` ends the updates
    of this partition; the batch as a whole is committed only by its record in the log. After an exception from either, the
    same or another instance gets `begin_commit` with the same txid and a higher attempt.

    All other methods are optional. A grouped `persistent_aggregate` needs `multi_update`, an ungrouped one `update`.

    Attributes
    ----------
    kind
        What the state does with a replay, a `StateType` or its name (`"opaque"`); declared here, by its factory or by both; the
        factory's is known before anything is opened. A state without a kind is accepted with every spout.
    place
        Its name in its sentinels, so that no other state takes its place.
    facts
        What is known of it, and what it can do besides; the methods that are named there are found when it is opened.
    """

    facts: StateFacts = StateFacts()
    kind: StateType | str | None = None
    place: str = ""

    share_keys = staticmethod(StateFacts.share_keys)  # those with a default, for who calls `super()`
    written_keys = staticmethod(StateFacts.written_keys)
    keeps_attempts = staticmethod(StateFacts.keeps_attempts)
    recorded = staticmethod(StateFacts.recorded)

    def begin_commit(self, txid: int) -> None:
        """Updates of batch `txid` follow."""
        raise self._lacks("begin_commit")

    def commit(self, txid: int) -> None:
        """All updates of batch `txid` to this partition were made; return once they are durable."""
        raise self._lacks("commit")

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: one entry per key, in the order asked, None where absent."""
        raise self._lacks("multi_get")

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        """Update distinct keys, each by its `ValueUpdater`, with one read and one write; return the new values."""
        raise self._lacks("multi_update")

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        raise self._lacks("multi_put")

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch; absent keys are ignored. Without it their values become None."""
        self.multi_put(keys, [None] * len(keys))

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows: the fields of the key, then the value. No order is promised."""
        raise self._lacks("get_tuples")

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys, in pages of a size that suits the store; see `BackingMap.key_pages`."""
        raise self._lacks("key_pages")

    def get(self) -> Any:
        raise self._lacks("get")

    def update(self, updater: Any) -> Any:
        """Update the value by a `ValueUpdater` and return the new one."""
        raise self._lacks("update")

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of this partition, None if there is none."""
        raise self._lacks("read_sentinel")

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Write the sentinel; see `BackingMap.move_sentinel`."""
        raise self._lacks("move_sentinel")

    def reset(self) -> None:
        """Forget every key and the sentinel of this partition, for `state_recovery="discard_totals"`."""
        raise self._lacks("reset")


def state_of(made: Any) -> State:
    """Return the state that an object is; a class of a user need not inherit from `State`."""
    note_state(made)
    state: State = adapt(State, made)
    return state


STORE_CALLS: set[CodeType] = set()
"""The methods of the states that were opened: a call of one waits for a store, even if the user wrote it."""


def note_state(made: object) -> None:
    # Asked of the class each time, because a class may be changed later; so it must be quick.
    members = [member for base in type(made).__mro__ for member in vars(base).values() if type(member) is FunctionType]
    inner = [unwrap(member) if member.__dict__ else member for member in members]
    STORE_CALLS.update([member.__code__ for member in inner if type(member) is FunctionType])


@dataclass(frozen=True)
class StoreFacts:
    """What a factory of states, or of backing maps, says about them before one is opened.

    Attributes
    ----------
    in_memory
        They are in the memory of the process that commits them: then the log may be in memory too, and no other process can
        read them.
    on_one_machine
        Only processes of this machine are sure to see them, as with a folder: then executors commit such a state only if it
        is asked for.
    stages_commits
        Tasks of executors stage a batch, and the driver publishes it; see `State.stage`.
    forgets
        They may forget values; such a state cannot hold a window.
    expires_after_s
        Seconds from the last write to the expiry of a value; None: never. A window is kept only where nothing expires before
        it is complete.
    keeps_attempts
        Whether opaque values will say which attempt wrote them; None: not known yet.
    layout
        Says how the store will hold a state, for `explain`; None: there is nothing to say. Raises `ConfigError` if it
        cannot hold it as its options ask.
    database
        Where the store is, if `State.commit_with_record` works on a connection of a log there; None: it never does.
    keeps_changes
        Each commit writes what it changes beside the values; see `KeptChanges`.
    kept
        The options that keep something of the past (changes, old versions) as they are given, by name, without those that are
        not: a log remembers them. 0 gives up what was kept.
    with_kept
        Returns a factory of the same states with such options, as far as it has them and they are not given; None: it has none.
    is_map
        They are maps with the value rule of their kind and no other methods, so that in a test a map in memory can take their
        place; see `TopologyTestDriver`.
    serializer
        The `Serializer` that values are written with; None: it is not known.
    snapshot_key
        The key of the single value of an ungrouped aggregate; None: it is not known.
    remains
        Where the store still has the bytes of a row that was deleted, and until when; for people.
    """

    in_memory: bool = False
    on_one_machine: bool = False
    stages_commits: bool = False
    forgets: bool = False
    expires_after_s: float | None = None
    keeps_attempts: bool | None = None
    layout: Callable[[StateConf], str] | None = None
    database: Database | None = None
    keeps_changes: bool = False
    kept: Mapping[str, Any] = field(default_factory=dict)
    with_kept: Callable[[Mapping[str, Any]], Any] | None = None
    is_map: bool = False
    serializer: Any = None
    snapshot_key: Key | str | None = None
    remains: str = ""


class StateFactory(Protocol):
    """Makes one partition of a state. Pickled to where it is used, so it connects in `make_state`, not before.

    It may declare a `kind`, and `facts`: `StoreFacts`.
    """

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        """Return the `State` of partition `partition_index` (0 … num_partitions - 1)."""


def is_factory(given: object) -> bool:
    """Whether an object, not a class, makes states."""
    return hasattr(given, "make_state") and not isinstance(given, type)


@dataclass(frozen=True)
class StateSpec:
    """A factory, and what is known of its states before one is opened.

    Attributes
    ----------
    required_num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    store
        What the store is called: the class that users write, such as `RedisState`; empty: the name of the factory.
    place
        The folder that no other state may share or be inside of; empty: states share the store.
    """

    factory: StateFactory
    required_num_partitions: int | None = None
    store: str = ""
    place: str = field(default="", repr=False)  # an address may hold a password

    @property
    def kind(self) -> StateType | None:
        """The kind that the factory declares, before anything is opened; None if it declares none."""
        return kind_of(self.factory)

    @cached_property
    def facts(self) -> StoreFacts:
        """What the factory says about its states."""
        return facts_of(StoreFacts, self.factory)


class ValueUpdater(Protocol[V]):
    """Turns the stored value of one key into the new one."""

    def update(self, stored: V | None) -> V:
        """Return the new value; `stored` is None if there is none. Must not change `stored` in place."""


class IBackingMap(Protocol[V]):
    """A plain key-value store: two methods. `BackingMap` has what a store may do besides."""

    def multi_get(self, keys: Sequence[Key]) -> Sequence[V | None]:
        """Read many keys: one entry per key, in the order asked, None where never written."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write many keys; `keys` are distinct. Return once all are written; on an error any of them may be."""


# Types of states for the code of users, by Trident's names; `State` has all of the methods.


class ReadOnlyMapState(Protocol[V]):
    """A map that can be read in bulk."""

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys: one entry per key, in the order asked, None where absent."""


class MapState(ReadOnlyMapState[V], Protocol[V]):
    """A map that a grouped `persistent_aggregate` can keep its values in."""

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[V]]) -> list[V]:
        """Update distinct keys, each by its updater, with one read and one write; return the new values."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Replace the values of distinct keys."""


class RemovableMapState(Protocol):
    """A map whose keys can be removed; exact under replay."""

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove keys as part of the current batch; absent keys are ignored."""


class ITupleCollection(Protocol):
    """A state that can list its contents."""

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows: the fields of the key, then the value. No order is promised."""


class ReadOnlySnapshottable(Protocol[V_co]):
    """A single value that can be read."""

    def get(self) -> V_co | None:
        """Return the value, None if never written."""


class Snapshottable(ReadOnlySnapshottable[V], Protocol[V]):
    """A single value that can hold an ungrouped `persistent_aggregate`."""

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
