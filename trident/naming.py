"""Helps users of Storm: the error for an attribute in camelCase names the one in snake_case."""

from __future__ import annotations

import re
from typing import NoReturn

__all__ = ["TridentNames"]

_ALIASES = {"build": "start", "new_drpcstream": "new_drpc_stream", "set_cpuload": "set_cpu_load"}


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
