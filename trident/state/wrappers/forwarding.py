"""MapWrapper: base of the maps around a map, which does what that one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from trident.state.backing_map import BackingMap, backing_map
from trident.state.interfaces import IBackingMap

__all__ = ["MapWrapper", "passed_on"]

P = ParamSpec("P")
R = TypeVar("R")


def passed_on(declared: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method of a wrapper that calls the same method of `inner`, as a role declares it."""
    name = declared.__name__

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = getattr(self.inner, name)(*args, **kwargs)
        return result

    method.__name__, method.__doc__ = name, declared.__doc__
    return method


class MapWrapper(BackingMap):
    """Base of the maps around a map: takes part in commits, keeps a sentinel, can be emptied … exactly if that one can.

    A subclass writes what it does otherwise.

    Attributes
    ----------
    inner
        The map that it is around.
    facts
        Those of the inner map, except that what is read may be kept here, and by rows.
    """

    def __init__(self, inner: IBackingMap[Any]) -> None:
        self.inner = backing_map(inner)
        self.facts = replace(self.inner.facts, gives_copies=False, keeps_columns=False)

    multi_get = passed_on(BackingMap.multi_get)
    multi_put = passed_on(BackingMap.multi_put)
    begin = passed_on(BackingMap.begin)
    end = passed_on(BackingMap.end)
    read_sentinel = passed_on(BackingMap.read_sentinel)
    move_sentinel = passed_on(BackingMap.move_sentinel)
    multi_delete = passed_on(BackingMap.multi_delete)
    key_pages = passed_on(BackingMap.key_pages)
    reset = passed_on(BackingMap.reset)
    close = passed_on(BackingMap.close)
    keeps_attempts = passed_on(BackingMap.keeps_attempts)

    def offers(self, method: str) -> bool:
        """Whether the inner map has a method of its own in place of the default."""
        return self.inner.offers(method)
