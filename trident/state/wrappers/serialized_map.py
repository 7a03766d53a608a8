"""SerializedMap: a map of objects over a map of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from trident.errors import CorruptValueError
from trident.state.encoding.serializers import (
    DeserializesCurrent,
    DeserializesMany,
    Serializer,
    SerializesMany,
    keeps_attempts,
)
from trident.state.interfaces import IBackingMap, Key, StreamedMap
from trident.state.wrappers.forwarding import MapWrapper

__all__ = ["SerializedMap"]


class SerializedMap(MapWrapper):
    """An `IBackingMap` of objects over one of bytes.

    It takes part in commits, keeps a sentinel, can be emptied and closed exactly if the map of bytes can.
    """

    gives_copies = True  # what is read was decoded for this very call

    def __init__(self, backing: IBackingMap[bytes], serializer: Serializer) -> None:
        super().__init__(backing)
        self.backing, self.serializer = backing, serializer
        self._streamed = backing if isinstance(backing, StreamedMap) else None
        self._serialize_many = serializer.serialize_many if isinstance(serializer, SerializesMany) else None
        self._deserialize_many = serializer.deserialize_many if isinstance(serializer, DeserializesMany) else None
        self._deserialize_current = (
            serializer.deserialize_current if isinstance(serializer, DeserializesCurrent) else None
        )

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read and deserialize; a value that cannot be read raises `CorruptValueError` with its key."""
        return self._get(keys, self.serializer.deserialize, self._deserialize_many)

    def keeps_attempts(self) -> bool:
        """Whether the serializer gives an opaque value back with its attempt."""
        return keeps_attempts(self.serializer)

    @property
    def multi_get_current(self) -> Callable[[Sequence[Key]], list[Any]]:
        """What reads only the value that each key was last written with; there only if the serializer can tell it apart."""
        current = self._deserialize_current
        if current is None:
            raise AttributeError(f"a {type(self.serializer).__name__} has no deserialize_current")
        return lambda keys: self._get(keys, lambda data: current([data])[0], current)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Serialize and write; a value that cannot be serialized raises `CorruptValueError` with its key.

        Nothing is written then, unless the map of bytes is a `StreamedMap`: what comes before it may be.
        """
        if self._streamed is not None:
            self._streamed.multi_put_as(keys, values, self._encode)
        else:
            self.backing.multi_put(keys, self._encode(keys, values))

    def _get(
        self, keys: Sequence[Key], one: Callable[[Any], Any], many: Callable[[Any], list[Any]] | None
    ) -> list[Any]:
        def decode(keys: Sequence[Key], stored: Sequence[bytes | None]) -> list[Any]:
            return _present(keys, stored, lambda some, data: _each("read", some, data, one, many))

        if self._streamed is not None:
            return self._streamed.multi_get_as(keys, decode)
        return decode(keys, self.backing.multi_get(keys))

    def _encode(self, keys: Sequence[Key], values: Sequence[Any]) -> list[bytes]:
        return _each("write", keys, values, self.serializer.serialize, self._serialize_many)


def _present(
    keys: Sequence[Key], stored: Sequence[Any], read: Callable[[Sequence[Key], Sequence[Any]], list[Any]]
) -> list[Any]:
    """Apply `read` to what is there; None stays None."""
    if None not in stored:
        return read(keys, stored)
    present = [(key, data) for key, data in zip(keys, stored, strict=True) if data is not None]
    values = iter(read([key for key, _ in present], [data for _, data in present]))
    return [None if data is None else next(values) for data in stored]


def _each(
    what: str,
    keys: Sequence[Key],
    items: Sequence[Any],
    one: Callable[[Any], Any],
    many: Callable[[Sequence[Any]], list[Any]] | None,
) -> list[Any]:
    """Apply `many` to the items or, where there is none or it fails, `one` to each, to tell which key is bad."""
    if many is not None:
        with suppress(CorruptValueError):
            return many(items)
    done: list[Any] = []
    for key, item in zip(keys, items, strict=True):
        try:
            done.append(one(item))
        except CorruptValueError as error:
            raise CorruptValueError(f"{what} key {key!r}: {error}") from error
    return done
