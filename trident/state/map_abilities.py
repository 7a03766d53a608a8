"""What a backing map may offer besides its two methods. `abilities_of` asks for all of it, once, when a map is put over it.

docs/writing-a-state.md tells what each ability is for.
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
    "abilities_of",
]


@runtime_checkable
class BackingMapLifecycle(Ability, Protocol):
    """A backing map that is told about commits: to write all puts of a commit at once, or to drop a stale cache.

    A put outside of `begin` and `end` is written when it returns; the seal of a commit is one.
    """

    def begin(self, txid: Txid) -> None:
        """A commit begins; unfinished business of an earlier one is void."""

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

    All five fields of a `Sentinel` are kept; it is laid unsealed when a commit begins and again, sealed, when all puts
    are acknowledged (see `AtomicMap`).
    """

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that this instance read or laid last; from now on puts succeed only while it stands.

        It is a compare-and-set, "none" included: a store that was emptied, rolled back or taken over since the read is
        not written to. Without a read before it, the move reads by itself. A move that is sent again, because no answer
        came, finds what was read or its own record.

        Parameters
        ----------
        force
            Also move it back, or to another incarnation; what was read is compared all the same.

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
        """Iterate over the keys, in pages of a size that the store finds right.

        A key that is there from the first page to the last comes exactly once; the sentinel's key does not come.
        Partitions that share a store may each list the keys of all.
        """


@runtime_checkable
class GivesCopies(Ability, Protocol):
    """A backing map that says whether what it returns is the reader's to change, because it was decoded for this call."""

    @property
    def gives_copies(self) -> bool:
        """Whether it is. What any other map returns is copied before a reader or an updater gets it."""


@runtime_checkable
class PastMemoryReadable(Ability, Protocol):
    """A backing map with a memory in front of its store."""

    def multi_get_stored(self, keys: Sequence[Key]) -> Sequence[Any]:
        """Read as `multi_get`, but from the store: a snapshot read must not see what a crashed commit remembered."""


@runtime_checkable
class CurrentReadable(Ability, Protocol):
    """A backing map that can read the bare values of the latest writes, cheaper than all that is stored with them."""

    def multi_get_current(self, keys: Sequence[Key]) -> list[Any]:
        """Return the value that each key was last written with, None where there is none; each is the reader's own."""


@dataclass(frozen=True)
class MapAbilities:
    """What one backing map offers; None or False where it does not. `abilities_of` makes it."""

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


def abilities_of(backing: object) -> MapAbilities:
    """Ask a backing map for all that it may offer."""
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
    )
