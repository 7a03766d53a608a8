"""Marks the functions that call the user's code, so that a call which does not return can be found on a thread's stack.

Each of them says how its own locals tell the step and the tuple: nothing is noted while it runs, so a call costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple, TypeVar

__all__ = ["MARKED", "Marked", "calls_user_code"]

F = TypeVar("F", bound=Callable[..., Any])
Local = Mapping[str, Any]


class Marked(NamedTuple):
    """How to read the locals of a function that calls the user's code.

    Attributes
    ----------
    place
        Returns the step and the tuple that it is at (None: no single one); KeyError if it has just begun, or has ended.
    given
        The local with the last object that one call has given, if one call gives many.
    """

    place: Callable[[Local], tuple[str, object]]
    given: str | None = None


MARKED: dict[CodeType, Marked] = {}
"""The functions that are marked."""


def calls_user_code(place: Callable[[Local], tuple[str, object]], given: str | None = None) -> Callable[[F], F]:
    """Mark a function; parameters as the attributes of `Marked`."""

    def mark(function: F) -> F:
        MARKED[function.__code__] = Marked(place, given)
        return function

    return mark
