"""Turns the stored values of many keys into bytes and back; an error names the key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from trident.errors import CorruptValueError
from trident.state.encoding.serializers import (
    DeserializesCurrent,
    DeserializesMany,
    Serializer,
    SerializesMany,
    keeps_attempts,
)
from trident.state.interfaces import Key

__all__ = ["Decode", "StoredValues"]

Decode = Callable[[Sequence[Key], Sequence[bytes | None]], list[Any]]
"""Makes objects of the bytes of some keys; None stays None."""


class StoredValues:
    """A serializer applied to the values of many keys.

    Attributes
    ----------
    decode_current
        Like `decode`, but returns only the latest value of each key; None if the serializer cannot do that.
    """

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._serialize_many = serializer.serialize_many if isinstance(serializer, SerializesMany) else None
        self._deserialize_many = serializer.deserialize_many if isinstance(serializer, DeserializesMany) else None
        self.decode_current: Decode | None = None
        if isinstance(serializer, DeserializesCurrent):
            current = serializer.deserialize_current
            self.decode_current = partial(_decoded, lambda data: current([data])[0], current)

    def encode(self, keys: Sequence[Key], values: Sequence[Any]) -> list[bytes]:
        """Serialize; a value that cannot be serialized raises `CorruptValueError` with its key."""
        return _each("write", keys, values, self._serializer.serialize, self._serialize_many)

    def decode(self, keys: Sequence[Key], stored: Sequence[bytes | None]) -> list[Any]:
        """Deserialize, None stays None; a value that cannot be read raises `CorruptValueError` with its key."""
        return _decoded(self._serializer.deserialize, self._deserialize_many, keys, stored)

    def keeps_attempts(self) -> bool:
        """Whether the serializer gives an opaque value back with its attempt."""
        return keeps_attempts(self._serializer)


def _decoded(
    one: Callable[[bytes], Any],
    many: Callable[[Sequence[bytes]], list[Any]] | None,
    keys: Sequence[Key],
    stored: Sequence[bytes | None],
) -> list[Any]:
    if None not in stored:
        return _each("read", keys, stored, one, many)
    there = [(key, data) for key, data in zip(keys, stored, strict=True) if data is not None]
    values = iter(_each("read", [key for key, _ in there], [data for _, data in there], one, many))
    return [None if data is None else next(values) for data in stored]


def _each(
    what: str,
    keys: Sequence[Key],
    items: Sequence[Any],
    one: Callable[[Any], Any],
    many: Callable[[Sequence[Any]], list[Any]] | None,
) -> list[Any]:
    """Apply `many` to the items or, where there is none or it fails, `one` to each, to find the bad key."""
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
