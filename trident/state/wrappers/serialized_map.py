"""SerializedMap: a map of objects over a map of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from trident.errors import CorruptValueError
from trident.state.encoding.serializers import Serializer, keeps_attempts
from trident.state.interfaces import IBackingMap, Key, StreamedMap
from trident.state.wrappers.forwarding import BACKING_ABILITIES, offer

__all__ = ["SerializedMap"]


class SerializedMap:
    """An `IBackingMap` of objects over one of bytes.

    It takes part in commits, keeps a sentinel, can be emptied and closed exactly if the map of bytes can.
    """

    gives_copies = True  # what is read was decoded for this very call

    def __init__(self, backing: IBackingMap[bytes], serializer: Serializer) -> None:
        self.backing, self.serializer = backing, serializer
        self._serialize_many = getattr(serializer, "serialize_many", None)
        self._deserialize_many = getattr(serializer, "deserialize_many", None)
        offer(self, backing, BACKING_ABILITIES)
        if hasattr(serializer, "deserialize_current"):
            self.multi_get_current = partial(self._get_current, serializer.deserialize_current)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read and deserialize; a value that cannot be read raises `CorruptValueError` with its key."""
        return self._get(keys, self.serializer.deserialize, self._deserialize_many)

    def keeps_attempts(self) -> bool:
        """Whether the serializer gives an opaque value back with its attempt."""
        return keeps_attempts(self.serializer)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Serialize and write; a value that cannot be serialized raises `CorruptValueError` with its key.

        Nothing is written then, unless the map of bytes is a `StreamedMap`: what comes before it may be.
        """
        if isinstance(self.backing, StreamedMap):
            self.backing.multi_put_as(keys, values, self._encode)
        else:
            self.backing.multi_put(keys, self._encode(keys, values))

    def _get_current(self, deserialize: Callable[[Sequence[Any]], list[Any]], keys: Sequence[Key]) -> list[Any]:
        """Read only the value that each key was last written with, where the rest of what is stored does not matter."""
        return self._get(keys, lambda data: deserialize([data])[0], deserialize)

    def _get(
        self, keys: Sequence[Key], one: Callable[[Any], Any], many: Callable[[Any], list[Any]] | None
    ) -> list[Any]:
        def decode(keys: Sequence[Key], stored: Sequence[bytes | None]) -> list[Any]:
            return _present(keys, stored, lambda some, data: _each("read", some, data, one, many))

        if isinstance(self.backing, StreamedMap):
            return self.backing.multi_get_as(keys, decode)
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
