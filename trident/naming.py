"""Names in texts: the error for an attribute in camelCase names the one in snake_case; counts with their noun."""

from __future__ import annotations

import re
from typing import NoReturn

__all__ = ["TridentNames", "counted"]

_ALIASES = {"build": "start", "new_drpcstream": "new_drpc_stream", "set_cpuload": "set_cpu_load"}


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count and its noun.

    >>> counted(1, "batch", "batches"), counted(1200, "tuple")
    ('1 batch', '1,200 tuples')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


class TridentNames:
    """Mixed into the fluent classes."""

    def __getattr__(self, name: str) -> NoReturn:
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
        snake = _ALIASES.get(snake, snake)
        here = type(self).__name__
        if snake != name and hasattr(type(self), snake):
            raise AttributeError(
                f"{here!r} has no attribute {name!r}; it is called {snake!r} here", name=name, obj=self
            )
        raise AttributeError(f"{here!r} has no attribute {name!r}", name=name, obj=self)
