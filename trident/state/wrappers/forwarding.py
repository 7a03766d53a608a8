"""Lets a wrapper offer what the object that it wraps offers, and nothing else.

The optional abilities of a map (`FencedMap`, `Resettable`, `BackingMapLifecycle` …) are found by their methods. A
wrapper that simply defined them all would claim abilities that its delegate does not have; one that forwarded them
through `__getattr__` would hide abilities that it has, because `isinstance` against a protocol looks at real attributes
only (since Python 3.12). So a wrapper takes over the delegate's bound methods as its own attributes when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BACKING_ABILITIES", "STATE_ABILITIES", "offer"]

BACKING_ABILITIES = (
    "begin",
    "end",
    "commits_atomically",
    "read_sentinel",
    "move_sentinel",
    "multi_delete",
    "key_pages",
    "reset",
    "close",
    "keeps_attempts",
)
"""What a backing map may have besides `multi_get` and `multi_put`."""

STATE_ABILITIES = (
    "multi_get_at",
    "keeps_columns",
    "multi_combine",
    "place",
    "read_sentinel",
    "move_sentinel",
    "reset",
    "close",
    "multi_remove",
    "key_pages",
    "get_tuples",
    "get_tuples_at",
    "keeps_attempts",
)
"""What a map state may have besides the methods of `MapState`."""


def offer(wrapper: object, delegate: object, names: Iterable[str]) -> None:
    """Give `wrapper` each method or fact of `names` that `delegate` has and the wrapper's own class does not define."""
    for name in names:
        method = getattr(delegate, name, None)
        if method is not None and not hasattr(type(wrapper), name):
            setattr(wrapper, name, method)
