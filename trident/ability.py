"""Abilities: what an object may offer in addition to its interface, as protocols for `isinstance`.

A state may have `close`, a spout's coordinator may know how large its batches are, an operation may have to be prepared.
Each of these is an *ability*: a small protocol with `Ability` among its bases, next to the interface that it belongs to. It
is asked once, where things are put together, and the typed answer is kept: a check of all members costs about a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolType
else:
    _ProtocolType = type(Protocol)

__all__ = ["Ability", "missing"]


class _AbilityType(_ProtocolType):
    """The class of abilities: says what `isinstance` means for them.

    An object offers an ability if it has all its members, in any way, and none of them is None. From Python
    3.12 on `isinstance` with a protocol would not see what an object passes on through `__getattr__` or a descriptor.
    """

    def __instancecheck__(self, instance: Any) -> bool:
        if Protocol not in self.__bases__:  # a class that implements an ability
            return super().__instancecheck__(instance)
        return not any(missing(instance, self))


def missing(instance: object, ability: type) -> Iterator[str]:
    """Iterate over the members of an ability that an object does not have, in the order in which they are declared."""
    return (name for name in _members(ability) if getattr(instance, name, None) is None)


@cache
def _members(ability: type) -> tuple[str, ...]:
    """The names of methods and attributes that an ability declares, its own and those of its bases."""
    declaring = [base for base in reversed(ability.__mro__) if Protocol in base.__bases__]
    names = [name for base in declaring for name in (*vars(base), *get_annotations(base))]
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_")))


class Ability(Protocol, metaclass=_AbilityType):
    """Base of the protocols of abilities; put `@runtime_checkable` before each."""
