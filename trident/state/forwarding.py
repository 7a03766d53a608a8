"""Maps around a map: `MapWrapper`, the base; `MicroBatchIBackingMap` bounds requests; `SerializedMap` has bytes below."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import isfunction
from typing import Any, Concatenate, ParamSpec, TypeVar

from trident.roles import Role, abilities
from trident.state.backing_map import BackingMap, backing_map
from trident.state.encoding.serializers import Serializer, StoredValues, keeps_attempts
from trident.state.interfaces import IBackingMap, Key
from trident.state.table import KeyColumns, OpaqueTable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def passed_on(declared: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method of a wrapper that calls the same method of `inner`, as a role declares it."""
    name = declared.__name__

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = getattr(self.inner, name)(*args, **kwargs)
        return result

    method.__name__, method.__doc__ = name, declared.__doc__
    return method


class PassedAbility:
    """What only some can do, of a wrapper: it is there if the object within has it, also for `super()`."""

    def __init__(self, name: str, within: str = "inner") -> None:
        self._name, self._within = name, within

    def __get__(self, wrapper: Any, owner: type) -> Any:
        if (found := getattr(getattr(wrapper, self._within).facts, self._name)) is None:
            raise AttributeError(f"a {owner.__name__} has no {self._name!r}")
        return found


def passes_on(role: Any, *but: str) -> Callable[[type[T]], type[T]]:
    """Return what lets a wrapper have all that a role may have as `inner` has it, if it does not write it, but for some."""

    def complete(wrapper: type[T]) -> type[T]:
        for name in {*abilities(role.facts.__class__)} - {*but, *vars(wrapper)}:
            setattr(wrapper, name, PassedAbility(name))
        for name, declared in (vars(Role) | vars(role)).items():
            if isfunction(declared) and not name.startswith("_") and name not in vars(wrapper):
                setattr(wrapper, name, passed_on(declared))
        return wrapper

    return complete


@passes_on(BackingMap, "multi_get_opaque", "past_caches")
class MapWrapper(BackingMap):
    """Base of the maps around a map: takes part in commits, keeps a sentinel, can be emptied … exactly if `inner` can.

    Its facts are the inner map's, except that what is read may be cached here, and by rows, which may differ from those
    behind.
    """

    def __init__(self, inner: IBackingMap[Any]) -> None:
        self.inner = backing_map(inner)
        known = self.inner.facts
        self.facts = replace(known, gives_copies=False, keeps_columns=False, multi_get_opaque=None, past_caches=None)

    multi_get = passed_on(BackingMap.multi_get)
    multi_put = passed_on(BackingMap.multi_put)

    def offers(self, method: str) -> bool:
        return self.inner.offers(method)


def innermost(backing: BackingMap) -> BackingMap:
    """Return the map of the store, which all others are around."""
    while isinstance(backing, MapWrapper):
        backing = backing.inner
    return backing


class MicroBatchIBackingMap(MapWrapper):
    """Splits reads and writes of a map into chunks of at most so many keys, in order; 0 does not split.

    An error in a chunk leaves the chunks before it written, which the value rules undo at the replay.
    """

    def __init__(self, delegate: IBackingMap[Any], max_multi_get: int = 0, max_multi_put: int = 0) -> None:
        if max_multi_get < 0 or max_multi_put < 0:
            raise ValueError(
                f"chunk sizes are {max_multi_get} (get) and {max_multi_put} (put); give the largest number of keys in "
                "one request, or 0 for no limit"
            )
        super().__init__(delegate)
        self.delegate, self.max_multi_get, self.max_multi_put = delegate, max_multi_get, max_multi_put

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        size = self.max_multi_get
        if not size or len(keys) <= size:
            return self.delegate.multi_get(keys)
        values: list[Any] = []
        for start in range(0, len(keys), size):
            values.extend(self.delegate.multi_get(keys[start : start + size]))
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        size = self.max_multi_put or len(keys)
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        if len(keys) <= size:
            self.delegate.multi_put(keys, values)
            return
        for start in range(0, len(keys), size):
            self.delegate.multi_put(keys[start : start + size], values[start : start + size])


class SerializedMap(MapWrapper):
    """An `IBackingMap` of objects over one of bytes; what that can do besides, this can.

    Commits of many structs of numbers, if that is the declared type of the values, are operations on arrays.
    """

    def __init__(self, backing: IBackingMap[bytes], serializer: Serializer, value_type: str | None = None) -> None:
        super().__init__(backing)
        self.backing, self.serializer = backing, serializer
        self._values = StoredValues(serializer, value_type)
        # What is read was decoded for this very call.
        self.facts = replace(self.facts, gives_copies=True, keeps_columns=self._values.structs is not None)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read and deserialize; a value that cannot be read raises `CorruptValueError` with its key."""
        return self._values.decode(keys, self.backing.multi_get(keys))

    def keeps_attempts(self) -> bool:
        """Whether stored values say which attempt wrote them."""
        return keeps_attempts(self.serializer)

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read and deserialize as columns, if the serializer can."""
        if isinstance(keys, KeyColumns):
            return self._values.structs_of(keys, self.backing.multi_get)
        decode = self._values.decode_opaque
        return None if decode is None else decode(keys, self.backing.multi_get(keys))

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Serialize and write; nothing is written if a value cannot be serialized: `CorruptValueError` has its key."""
        self.backing.multi_put(list(keys), self._values.encode(keys, values))
