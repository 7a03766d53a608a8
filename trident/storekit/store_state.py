"""The states that users name in a topology: a store's state of one of the three kinds, made of a target and options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, overload

from trident.extras import needs_package
from trident.state.encoding.serializers import Serializer, keeps_attempts, serializer_for
from trident.state.forwarding import SerializedMap
from trident.state.interfaces import IBackingMap, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import map_state
from trident.storekit.store_options import Changing, Expiring, MapOptions, StoreOptions

T = TypeVar("T")
C = TypeVar("C")
P = ParamSpec("P")
OpenMap = Callable[[Any, StateConf, int], IBackingMap[bytes]]
"""`(options, conf, partition) -> map of bytes`; pickled to where the state is used, so it connects in the call."""


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
    """Opens the map of one partition, with the serializer of its options.

    Attributes
    ----------
    open_map
        See `StoreState`.
    options
        Of the store.
    kind
        The kind of the values.
    """

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
    """A state over a backing map of bytes: a store names its options and how its map is opened.

    Attributes
    ----------
    options
        The class of the store's options.
    map_factory
        The class that opens the maps; a subclass for a map that serializes by itself.
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
