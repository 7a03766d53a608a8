"""SerializedMap: a map of objects over a map of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.errors import CorruptValueError
from trident.state.forwarding import BACKING_ABILITIES, offer
from trident.state.interfaces import IBackingMap, Key
from trident.state.serializers import Serializer

__all__ = ["SerializedMap"]


class SerializedMap:
    """An `IBackingMap` of objects over one of bytes.

    It takes part in commits, keeps a sentinel, can be emptied and closed exactly if the map of bytes can.
    """

    def __init__(self, backing: IBackingMap[bytes], serializer: Serializer) -> None:
        self.backing, self.serializer = backing, serializer
        offer(self, backing, BACKING_ABILITIES)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read and deserialize; a value that cannot be read raises `CorruptValueError` with its key."""
        deserialize = self.serializer.deserialize
        values: list[Any] = []
        for key, data in zip(keys, self.backing.multi_get(keys), strict=True):
            try:
                values.append(None if data is None else deserialize(data))
            except CorruptValueError as error:
                raise CorruptValueError(f"read key {key!r}: {error}") from error
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Serialize all, then write; a value that cannot be serialized raises before anything is written."""
        serialize = self.serializer.serialize
        data: list[bytes] = []
        for key, value in zip(keys, values, strict=True):
            try:
                data.append(serialize(value))
            except CorruptValueError as error:
                raise CorruptValueError(f"write key {key!r}: {error}") from error
        self.backing.multi_put(keys, data)
