"""What a backing map may offer in addition to its two methods. `abilities_of` asks once, when a map is put over it.

docs/writing-a-state.md says what each ability is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trident.ability import Ability
from trident.state.abilities import Closable, KeepsAttempts, Resettable, SentinelReadable

if TYPE_CHECKING:
    from trident.state.kinds import Key
    from trident.state.txid import Sentinel, Txid

__all__ = [
    "AtomicMap",
    "BackingMapLifecycle",
    "CurrentReadable",
    "FencedMap",
    "GivesCopies",
    "ListableMap",
    "MapAbilities",
    "PastMemoryReadable",
    "RemovableMap",
    "SharedKeys",
    "abilities_of",
]


@runtime_checkable
class BackingMapLifecycle(Ability, Protocol):
    """A backing map that knows when a commit begins and ends, to write all puts at once or to drop a stale cache.

    A put outside of `begin` and `end` is written when it returns; the seal of a commit is one.
    """

    def begin(self, txid: Txid) -> None:
        """A commit begins; drop the unfinished puts of an earlier one."""

    def end(self, txid: Txid) -> None:
        """The commit's puts are complete; return once they are durable."""


@runtime_checkable
class AtomicMap(Ability, Protocol):
    """A backing map whose class says whether a commit is written whole or not at all.

    The sentinel of any other map is sealed when the whole commit is acknowledged, so that a store that lost the end of a
    commit is found.
    """

    commits_atomically: bool


@runtime_checkable
class FencedMap(SentinelReadable, Protocol):
    """A backing map that keeps the sentinel itself, so that a writer that was replaced cannot write (R9).

    All six fields of a `Sentinel` are kept; it is written unsealed when a commit begins and again, sealed, when all
    puts are acknowledged (see `AtomicMap`).
    """

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that this instance read or wrote last; from now on puts succeed only while it is there.

        It is a compare-and-set, "none" included: a store that was emptied, rolled back or taken over since the read is
        not written to. Without a read before it, the move reads by itself. A move that is sent again, because no answer
        came, finds the record that was read or its own.

        Parameters
        ----------
        force
            Also move it back, or to another incarnation; the comparison with what was read still holds.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError
            The store has another sentinel; see `trident.state.sentinel.displaced`. Nothing was written.
        """


@runtime_checkable
class RemovableMap(Ability, Protocol):
    """A backing map that can delete keys. In any other, a removed key stays as a stored None."""

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored. Fenced as `multi_put` is."""


@runtime_checkable
class ListableMap(Ability, Protocol):
    """A backing map that can list its keys."""

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys, in pages of a size that suits the store.

        A key that exists from the first page to the last is listed exactly once; the sentinel's key is not listed.
        Partitions that share a store may each list the keys of all.
        """


@runtime_checkable
class GivesCopies(Ability, Protocol):
    """A backing map that says whether readers may change what it returns, because it was decoded for this call."""

    @property
    def gives_copies(self) -> bool:
        """Whether they may. What any other map returns is copied before a reader or an updater gets it."""


@runtime_checkable
class SharedKeys(Ability, Protocol):
    """A backing map, or a state of the user's, that says whether each of its partitions sees the keys of all."""

    @property
    def shares_keys(self) -> bool:
        """Whether they do. Of any other, the partitions that an updater of the user's writes are all asked for a key."""


@runtime_checkable
class PastMemoryReadable(Ability, Protocol):
    """A backing map with a memory in front of its store."""

    def multi_get_stored(self, keys: Sequence[Key]) -> Sequence[Any]:
        """Read as `multi_get`, but from the store: a snapshot read must not see what a crashed commit remembered."""


@runtime_checkable
class CurrentReadable(Ability, Protocol):
    """A backing map that can read the bare values of the latest writes, at less cost than the whole stored values."""

    def multi_get_current(self, keys: Sequence[Key]) -> list[Any]:
        """Return the latest value of each key, None for an absent one; the reader may change them."""


@dataclass(frozen=True)
class MapAbilities:
    """The abilities of one backing map; None or False for a missing one. Made by `abilities_of`."""

    lifecycle: BackingMapLifecycle | None
    fence: FencedMap | None
    removal: RemovableMap | None
    listing: ListableMap | None
    resetting: Resettable | None
    closing: Closable | None
    past_memory: PastMemoryReadable | None
    current: CurrentReadable | None
    attempts: KeepsAttempts | None
    is_atomic: bool
    gives_copies: bool
    shares_keys: bool


def abilities_of(backing: object) -> MapAbilities:
    """Ask a backing map for all abilities."""
    return MapAbilities(
        lifecycle=backing if isinstance(backing, BackingMapLifecycle) else None,
        fence=backing if isinstance(backing, FencedMap) else None,
        removal=backing if isinstance(backing, RemovableMap) else None,
        listing=backing if isinstance(backing, ListableMap) else None,
        resetting=backing if isinstance(backing, Resettable) else None,
        closing=backing if isinstance(backing, Closable) else None,
        past_memory=backing if isinstance(backing, PastMemoryReadable) else None,
        current=backing if isinstance(backing, CurrentReadable) else None,
        attempts=backing if isinstance(backing, KeepsAttempts) else None,
        is_atomic=isinstance(backing, AtomicMap) and backing.commits_atomically,
        gives_copies=isinstance(backing, GivesCopies) and backing.gives_copies,
        shares_keys=isinstance(backing, SharedKeys) and backing.shares_keys,
    )
