"""The type of keys, the kinds of states (how one undoes what a failed attempt wrote), and what stores offer besides."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from trident.errors import ConfigError

Key = tuple[Any, ...]
"""The values of the grouping fields, in field order."""


class StateType(Enum):
    """How a state undoes what a failed attempt wrote; see the guarantee matrix."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


def state_type(kind: StateType | str) -> StateType:
    """Return the `StateType` of a name, `_` and `-` alike."""
    if isinstance(kind, StateType):
        return kind
    try:
        return StateType(kind.replace("_", "-"))
    except (ValueError, AttributeError) as error:
        names = ", ".join(repr(known.value) for known in StateType)
        raise ConfigError(f"state kind {kind!r} is unknown; use one of {names}") from error


def kind_of(*declaring: Any) -> StateType | None:
    """Return the kind that objects declare by their attribute `kind`, as a `StateType` or its name; None if none does."""
    declared = (getattr(one, "kind", None) for one in declaring)
    kinds = {state_type(kind): None for kind in declared if kind is not None}
    if len(kinds) > 1:
        raise ConfigError(f"two kinds are declared, {' and '.join(repr(kind.value) for kind in kinds)}; declare one")
    return next(iter(kinds), None)


@dataclass(frozen=True)
class LaterWrite:
    """The write of a commit that is made in the transaction of its batch's record, on the connection of the log.

    `write`: writes; False: the store has another sentinel, and nothing was written. A `TridentError` is the store's refusal.
    `clause`: returns the same as common table expressions, of which `fence` has a row if it is written, and their arguments;
    None: it is more than one statement.
    `written`: is told that the transaction was committed.
    `refused`: returns what is wrong, after `write` has returned False and its transaction has ended.
    """

    write: Callable[[Any], bool]
    clause: Callable[[], tuple[bytes, Mapping[str, Any]] | None]
    written: Callable[[], None]
    refused: Callable[[], Exception]


class KeptChanges(Protocol):
    """What the commits of all partitions of a state have changed, if its store keeps that."""

    def read(self, after: int, until: int) -> Iterator[tuple[int, list[tuple[Key, Any]]]]:
        """Iterate over what the batches after `after`, up to `until`, have written, in their order.

        For each batch its number, then each key with its `OpaqueValue`: also of attempts that lost; of several writes of a
        key by one attempt the last comes last.
        """

    def last_gone(self) -> int:
        """Return the last batch whose changes are not kept any more, 0 if there is none."""

    def forget(self, keys: Sequence[Key]) -> None:
        """Delete the changes of keys."""
