"""Lets a wrapper offer what the object that it wraps offers, and nothing else.

The abilities of a map (`FencedMap`, `Resettable`, `BackingMapLifecycle` …) are found by their methods, and what a wrapper
offers is known only when it is made. So each method of an ability is declared in the wrapper's class, and is there on an
instance only if the wrapped object has it: `isinstance` and `hasattr` say what is so, and type checkers see the signature.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from trident.state.abilities import Closable, KeepsAttempts, Resettable
from trident.state.interfaces import IBackingMap
from trident.state.map_abilities import BackingMapLifecycle, FencedMap, ListableMap, RemovableMap

__all__ = ["IfOffered", "MapWrapper", "if_offered", "passed_on"]

P = ParamSpec("P")
R = TypeVar("R")


class _Wrapper(Protocol):
    inner: Any


class IfOffered:
    """A method or value of a wrapper, there only if the object that it wraps, `inner`, has one of that name.

    Parameters
    ----------
    name
        What it is called.
    own
        What the wrapper does; None: the inner object's method itself.
    """

    def __init__(self, name: str, own: Callable[..., Any] | None = None) -> None:
        self._name, self._own = name, own
        self.__doc__ = own.__doc__ if own is not None else None

    def __get__(self, wrapper: _Wrapper | None, owner: type) -> Any:
        if wrapper is None:
            return self
        offered = getattr(wrapper.inner, self._name)
        if offered is None:
            raise AttributeError(f"{type(wrapper.inner).__name__} has no {self._name}")
        return offered if self._own is None else MethodType(self._own, wrapper)


def passed_on(declared: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method of a wrapper that is the inner object's method, as an ability declares it."""
    return cast("Callable[Concatenate[Any, P], R]", IfOffered(declared.__name__))


def if_offered(own: Callable[P, R]) -> Callable[P, R]:
    """Let a wrapper have a method of its own only if the inner object has one of that name."""
    return cast("Callable[P, R]", IfOffered(own.__name__, own))


class MapWrapper:
    """Base of the maps around a map: takes part in commits, keeps a sentinel, can be emptied … exactly if that one can.

    A subclass writes `multi_get` and `multi_put`, and of the rest what it does otherwise: with `@if_offered` where it needs
    the inner map to have the method (`super()` calls that one), without where it can do it over any map.

    Attributes
    ----------
    inner
        The map that it is around.
    """

    def __init__(self, inner: IBackingMap[Any]) -> None:
        self.inner: Any = inner

    begin = passed_on(BackingMapLifecycle.begin)
    end = passed_on(BackingMapLifecycle.end)
    read_sentinel = passed_on(FencedMap.read_sentinel)
    move_sentinel = passed_on(FencedMap.move_sentinel)
    multi_delete = passed_on(RemovableMap.multi_delete)
    key_pages = passed_on(ListableMap.key_pages)
    reset = passed_on(Resettable.reset)
    close = passed_on(Closable.close)
    keeps_attempts = passed_on(KeepsAttempts.keeps_attempts)
    commits_atomically: bool = cast("bool", IfOffered("commits_atomically"))
    shares_keys: bool = cast("bool", IfOffered("shares_keys"))
