"""SerializedMap: a map of objects over a map of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trident.state.encoding.serializers import Serializer
from trident.state.encoding.stored_values import StoredValues
from trident.state.interfaces import IBackingMap, Key
from trident.state.wrappers.forwarding import MapWrapper

__all__ = ["SerializedMap"]


class SerializedMap(MapWrapper):
    """An `IBackingMap` of objects over one of bytes.

    It takes part in commits, keeps a sentinel, can be emptied and closed exactly if the map of bytes can.
    """

    def __init__(self, backing: IBackingMap[bytes], serializer: Serializer) -> None:
        super().__init__(backing)
        self.backing, self.serializer = backing, serializer
        self._values = StoredValues(serializer)
        self.facts = replace(self.facts, gives_copies=True)  # what is read was decoded for this very call

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read and deserialize; a value that cannot be read raises `CorruptValueError` with its key."""
        return self._values.decode(keys, self.backing.multi_get(keys))

    def keeps_attempts(self) -> bool:
        """Whether the serializer gives an opaque value back with its attempt."""
        return self._values.keeps_attempts()

    def multi_get_current(self, keys: Sequence[Key]) -> list[Any] | None:
        """Read only the value that each key was last written with, if the serializer can tell it apart."""
        current = self._values.decode_current
        return None if current is None else current(keys, self.backing.multi_get(keys))

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Serialize and write; nothing is written if a value cannot be serialized: `CorruptValueError` has its key."""
        self.backing.multi_put(keys, self._values.encode(keys, values))
