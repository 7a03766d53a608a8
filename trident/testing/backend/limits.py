"""What a store claims, as data.

A claim is checked; what is not claimed is checked to be refused where a refusal is documented.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trident.state.backing_map import BackingMap

Fencing = Literal["no", "written", "all"]
"""What a writer that was replaced can still do: anything; no harm to what its successor wrote; nothing."""

METHODS = {
    "fences": ("read_sentinel", "move_sentinel"),
    "lists": ("key_pages",),
    "removes": ("multi_delete",),
    "resets": ("reset",),
}
"""The methods that a map has for what is claimed of it."""


@dataclass(frozen=True)
class Limits:
    """What a backing map can do, and its limits. The defaults claim what two methods over any store can do.

    Attributes
    ----------
    max_key_bytes, max_value_bytes
        The longest key and the largest value, as the codec encodes them, prefix included; None: there is no limit. What
        is longer must be refused by an error.
    chunk
        The largest number of keys in one request to the server; sizes around it are tried.
    binary_keys
        Keys may have parts of type `bytes`. If not, they must be refused.
    all_types
        Values come back with the types that they had, as `CodecSerializer` does it. If not (JSON), what has no
        encoding must be refused.
    raw_bytes
        The map is one of bytes: a `SerializedMap` with a `CodecSerializer` is put over it.
    shared
        Several states, each with its own prefix, may share the store. If not, the factory must be a function without
        arguments that opens an empty store each time.
    durable
        What was written is there in another process, opened from the pickled factory.
    repartitions
        A key is found with any number of partitions, in any of them.
    fences
        What a replaced writer can still do; see `Fencing`.
    moves_at_commit
        A sentinel that is moved without `force` is seen by others only with the commit that moved it.
    atomic_put
        A put that raises has written nothing. (Without this claim any part may be written.)
    isolated
        No other instance sees the puts of a commit before its `end`.
    atomic_commit
        The puts of a commit that never ended are never seen.
    lists, removes, resets
        The map has `key_pages`, `multi_delete`, `reset`.
    """

    max_key_bytes: int | None = None
    max_value_bytes: int | None = None
    chunk: int = 1000
    binary_keys: bool = True
    all_types: bool = True
    raw_bytes: bool = False
    shared: bool = True
    durable: bool = False
    repartitions: bool = False
    fences: Fencing = "no"
    moves_at_commit: bool = False
    atomic_put: bool = False
    isolated: bool = False
    atomic_commit: bool = False
    lists: bool = False
    removes: bool = False
    resets: bool = False

    def __post_init__(self) -> None:
        sizes = {"chunk": self.chunk, "max_key_bytes": self.max_key_bytes, "max_value_bytes": self.max_value_bytes}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name}={size}: give at least 1{'' if name == 'chunk' else ', or None for no limit'}")

    def with_abilities_of(self, backing: BackingMap) -> Limits:
        """Return these limits with the claims that the methods of a map make."""
        return replace(
            self,
            fences=("all" if self.fences == "no" else self.fences) if backing.offers("move_sentinel") else "no",
            lists=backing.offers("key_pages"),
            removes=backing.offers("multi_delete"),
            resets=backing.offers("reset"),
        )
