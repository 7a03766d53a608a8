"""What a spout, its coordinator or its emitter may offer besides its interface (`trident/spout/interfaces.py`).

docs/writing-a-spout.md tells what each is for. Each is asked when a topology starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trident.abilities import Ability

if TYPE_CHECKING:
    from trident.spout.interfaces import Definition, SpoutType

__all__ = ["DeclaresSpoutType", "KnowsSize", "Quick"]


@runtime_checkable
class DeclaresSpoutType(Ability, Protocol):
    """A spout that says what it promises about replays; one that says nothing is non-transactional."""

    @property
    def spout_type(self) -> SpoutType | str:
        """The `SpoutType`, or its name."""


@runtime_checkable
class KnowsSize(Ability, Protocol):
    """A coordinator that knows how large its batches are, so that `engine="auto"` can run small ones without Spark."""

    def size(self, definition: Definition) -> int | None:
        """Say about how many bytes the batch has, from its definition alone; None if that cannot be known."""


@runtime_checkable
class Quick(Ability, Protocol):
    """An emitter that says whether it reads without waiting for anybody."""

    @property
    def is_quick(self) -> bool:
        """Whether it does: then the thread that leads the batches may read small ones itself."""
