"""The states that users name in a topology: a store's state of one of the three kinds, made of a target and options.

The options that stores share have one name, one meaning and one check each: `StoreOptions`, `MapOptions` and what is added to
them. A store's own class is a dataclass with `frozen=True, repr=False, kw_only=True`; only the option for the place of the
store is positional: `url: str = field(kw_only=False)`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from trident.extras import needs_package
from trident.retention import Retention
from trident.servers.account import ServerAccount
from trident.setting_types import Settings, check_names, seconds, whole
from trident.state.encoding.serializers import Serializer, keeps_attempts, serializer_for
from trident.state.forwarding import SerializedMap
from trident.state.interfaces import REPLAY_WINDOW_S, IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import DEFAULT_SNAPSHOT_KEY, map_state

T = TypeVar("T")
C = TypeVar("C")
P = ParamSpec("P")
OpenMap = Callable[[Any, StateConf, int], IBackingMap[bytes]]
"""`(options, conf, partition) -> map of bytes`; pickled to where the state is used, so it connects in the call."""


def check_options(store: str, declared: type, given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for the first name that is not a field of the dataclass `declared`."""
    check_names(f"a {store} state has no option", given, [each.name for each in dataclasses.fields(declared)])


@dataclass(frozen=True, repr=False, kw_only=True)
class StoreOptions(Settings):
    """The options of every state; `repr` shows no secrets.

    Attributes
    ----------
    store
        The name of the store, for messages.
    remains
        See `StoreFacts.remains`.
    snapshot_key
        Key of the single value of an ungrouped `persistent_aggregate`.
    """

    store: ClassVar[str] = "store"
    remains: ClassVar[str] = ""

    snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY

    @classmethod
    def subject(cls) -> str:
        return f"a {cls.store} state"

    @classmethod
    def of(cls, target: Any, given: Mapping[str, Any]) -> Self:
        """Return the options that a call gave: a target (where the store is), or options of which some are replaced."""
        check_options(cls.store, cls, given)
        if isinstance(target, cls):
            return dataclasses.replace(target, **given)
        needed = [
            each.name for each in dataclasses.fields(cls) if each.default is each.default_factory is dataclasses.MISSING
        ]
        if target is None and given.keys() >= set(needed):
            return cls(**given)
        return cls(cls.target(target), **given)  # type: ignore[call-arg]

    @classmethod
    def target(cls, given: Any) -> Any:
        """Return the first option, made from the target that a call gave."""
        return given


@dataclass(frozen=True, repr=False, kw_only=True)
class MapOptions(StoreOptions):
    """The options of a state over a map of bytes.

    Attributes
    ----------
    cache
        Entries of a partition that are remembered between commits (`CachedMap`), for keys that come often; 0: none.
    serializer
        `"codec"` (keeps every type), `"json"` (other programs can read it), or a `Serializer`.
    num_partitions
        The number of partitions that the state insists on; None: as the topology asks.
    """

    cache: int = whole(0, 0)
    serializer: Serializer | str = "codec"
    num_partitions: int | None = whole(None, 1)


@dataclass(frozen=True, repr=False, kw_only=True)
class ServerCalls(MapOptions):
    """Calls to a server.

    Attributes
    ----------
    connect_timeout_s, timeout_s
        Seconds to wait for a connection, and for each answer.
    retries
        How often a call is tried again after a lost connection, before the batch fails; 0: never.
    backoff_s, max_backoff_s
        Seconds before the first retry, and the longest pause; each pause is twice as long as the last, with jitter.
    max_keys_per_call, max_bytes_per_call
        The limits of one call: keys, and bytes of values; a single larger value goes alone.
    """

    connect_timeout_s: float = seconds(5.0)
    timeout_s: float = seconds(10.0)
    retries: int = whole(3, 0)
    backoff_s: float = seconds(0.05, least=0)
    max_backoff_s: float = seconds(2.0, least=0)
    max_keys_per_call: int = whole(1000, 1)
    max_bytes_per_call: int = whole(8 << 20, 1)


@dataclass(frozen=True, repr=False, kw_only=True)
class Account(MapOptions, ServerAccount):
    """An account on a server, and TLS: see `ServerAccount`."""


@dataclass(frozen=True, repr=False, kw_only=True)
class Expiring(StoreOptions):
    """Keys that the store forgets.

    Attributes
    ----------
    ttl_s
        Seconds from a key's last write to its expiry; None or 0: never. An expired key starts again as if it had never
        been written. The sentinel never expires.
    allow_short_ttl
        True accepts a `ttl_s` below a day. A batch that is replayed after such an expiry counts from 0.
    longest_ttl_s
        The longest `ttl_s` that the server accepts.
    """

    longest_ttl_s: ClassVar[int | None] = None

    ttl_s: int | None = whole(None, 0)
    allow_short_ttl: bool = False

    def __post_init__(self) -> None:
        """Check that no key expires before its batch may be replayed."""
        super().__post_init__()
        if not self.ttl_s:
            object.__setattr__(self, "ttl_s", None)
            return
        if self.longest_ttl_s is not None and self.ttl_s > self.longest_ttl_s:
            raise self.refused(
                "ttl_s", f"give None (never) or at most {self.longest_ttl_s} seconds, the server's limit"
            )
        if self.ttl_s < REPLAY_WINDOW_S and not self.allow_short_ttl:
            raise self.refused(
                "ttl_s",
                "a value may expire before its batch is replayed, and the replay then counts from 0. Give at least "
                f"{REPLAY_WINDOW_S} (a day), or allow_short_ttl=True",
            )


@dataclass(frozen=True, repr=False, kw_only=True)
class Changing(MapOptions):
    """Changes that are kept beside the values.

    Attributes
    ----------
    changes
        How long what each batch changed is kept for `trident.changes`: a time (`"7d"`) or a number of batches; 0: it is not
        written. None: as the last start that set it asked for, and none at first. Only for opaque states.
    """

    changes: str | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Retention.of(self.changes, "changes")

    @property
    def kept_changes(self) -> Retention | None:
        """The time or the number of batches; None: none are kept."""
        kept = Retention.of(self.changes, "changes")
        return None if kept is None or kept.keeps_nothing else kept

    def check_kind(self, kind: StateType) -> None:
        """Refuse changes of a kind whose values do not hold the value before."""
        if self.kept_changes is not None and kind is not StateType.OPAQUE:
            raise self.refused("changes", f"a {kind.value} state does not hold the value before; make it opaque")


@dataclass(frozen=True)
class Kind(Generic[T, P]):
    """An attribute of a store's class that makes the states of a kind: of the place of the store, and options by name."""

    kind: StateType
    owner: type[Kinds[T]] | None = None

    def __get__(self, instance: object, owner: type[Kinds[C]]) -> Kind[C, P]:
        return Kind(self.kind, owner)

    def __call__(self, target: T | None = None, /, *args: P.args, **options: P.kwargs) -> StateSpec:
        assert self.owner is not None, "it is an attribute of a class"
        return replace(self.owner.of_kind(self.kind, target, dict(options), *args), store=self.owner.__name__)


@overload
def kinds(options: Callable[Concatenate[Any, P], StoreOptions]) -> tuple[Kind[Any, P], Kind[Any, P], Kind[Any, P]]: ...
@overload
def kinds(options: Callable[P, StoreOptions]) -> tuple[Kind[Any, P], Kind[Any, P], Kind[Any, P]]: ...
def kinds(options: Any) -> Any:
    """Return `opaque, transactional, non_transactional` of a store of which type checkers know the options, by their class.

    The option for the place of the store is the target, and is given without its name.
    """
    return tuple(map(Kind, (StateType.OPAQUE, StateType.TRANSACTIONAL, StateType.NON_TRANSACTIONAL)))


class Kinds(ABC, Generic[T]):
    """A class with what makes each kind of state; each takes the place of the store, and options by name.

    A call of the class gives the opaque state: `RedisState(url)`.

    Attributes
    ----------
    opaque
        Exact with transactional and opaque spouts.
    transactional
        Exact with transactional spouts.
    non_transactional
        Bare values, where a replay counts twice.
    """

    opaque: ClassVar[Kind[Any, ...]] = Kind(StateType.OPAQUE)
    transactional: ClassVar[Kind[Any, ...]] = Kind(StateType.TRANSACTIONAL)
    non_transactional: ClassVar[Kind[Any, ...]] = Kind(StateType.NON_TRANSACTIONAL)

    @classmethod
    @abstractmethod
    def of_kind(cls, kind: StateType, target: T | None, options: dict[str, Any]) -> StateSpec:
        """Return the state of a kind."""


@dataclass(frozen=True)
class StoreMapFactory:
    """Opens the map of one partition, with the serializer of its options, as `StoreState.open_map` does."""

    open_map: OpenMap
    options: MapOptions
    kind: StateType = StateType.OPAQUE

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
        backing = self.open_map(self.options, conf, partition_index)
        return SerializedMap(backing, self.serializer, conf.value_type)

    @property
    def serializer(self) -> Serializer:
        """What values are written with."""
        return serializer_for(self.options.serializer, self.kind)

    @property
    def facts(self) -> StoreFacts:
        """Whether the serializer keeps attempts, and when values expire."""
        ttl_s = self.options.ttl_s if isinstance(self.options, Expiring) else None
        changing = self.options if isinstance(self.options, Changing) and self.kind is StateType.OPAQUE else None
        return StoreFacts(
            expires_after_s=ttl_s,
            keeps_attempts=keeps_attempts(self.serializer),
            serializer=self.serializer,
            keeps_changes=changing is not None and changing.kept_changes is not None,
            kept={} if changing is None or changing.changes is None else {"changes": changing.changes},
            with_kept=None if changing is None else self._with_kept,
            remains=self.options.remains,
        )

    def _with_kept(self, kept: Mapping[str, Any]) -> StoreMapFactory:
        assert isinstance(self.options, Changing), "facts say so"
        own = self.options.changes
        return replace(self, options=replace(self.options, changes=kept.get("changes") if own is None else own))


class SpecKinds(Kinds[T], StateSpec):
    """`Kinds` of which each is a `StateSpec`, also what a call of the class returns."""

    def __new__(cls, target: T | None = None, /, **options: Any) -> Any:
        """Return the opaque state, exact with transactional and opaque spouts."""
        return cls.opaque(target, **options)


def called_as(kind: Kind[Any, P]) -> Callable[[Callable[[type[C], T], Any]], Callable[Concatenate[type[C], T, P], Any]]:
    """Let type checkers know the options of a call of the class, those of `opaque`; it stands before the head of `__new__`."""
    new: Any = SpecKinds.__new__
    return lambda head: new


class StoreState(SpecKinds[T]):
    """A state over a backing map of bytes: a store names the class of its `options`, and how its map is opened.

    `map_factory` is the class that opens the maps; a subclass for a map that serializes by itself.
    """

    options: ClassVar[type[MapOptions]]
    map_factory: ClassVar[type[StoreMapFactory]] = StoreMapFactory

    @staticmethod
    @abstractmethod
    def open_map(options: Any, conf: StateConf, partition: int) -> IBackingMap[bytes]:
        """Open the backing map of one partition. Called on the worker: import the driver and connect here."""

    @classmethod
    def of_kind(cls, kind: StateType, target: T | None, options: dict[str, Any]) -> StateSpec:
        """Return the state of a kind. Wrong options raise here, not when the state is opened."""
        made = cls.options.of(target, options)
        if isinstance(made, Changing):
            made.check_kind(kind)
        serializer_for(made.serializer, kind)
        factory = cls.map_factory(cls.open_map, made, kind)
        return map_state(factory, kind, made.cache, made.snapshot_key, made.num_partitions)


def driver_package(store: str, package: str, extra: str, module: str = "") -> AbstractContextManager[None]:
    """Import a driver inside of this: if it is missing, the error says what to install.

    Parameters
    ----------
    store, package, extra
        For the message: "Redis", the package's name, and the extra of this package that brings it, or what else is to be
        installed, as "trident-sqlite[apsw]".
    module
        The name that the driver is imported by, if it is not the package's; an import that fails for another module
        raises that error.
    """
    return needs_package(f"a {store} state", extra, package, module)
