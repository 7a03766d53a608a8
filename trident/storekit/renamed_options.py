"""Options that were renamed: the old name is accepted for one more version, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trident.errors import ConfigError

__all__ = ["current_names", "renames"]

C = TypeVar("C", bound=type)
Renamed = str | tuple[str, Callable[[Any], Any]]
"""The new name, or the new name and the function that makes the new value of an old one."""


def renames(**renamed: Renamed) -> Callable[[C], C]:
    """Accept the options of a dataclass by old names too: `@renames(username="user")` above `@dataclass`."""

    def decorate(cls: C) -> C:
        made = cls.__init__  # type: ignore[misc]

        @functools.wraps(made)
        def init(self: Any, *args: Any, **given: Any) -> None:
            made(self, *args, **current_names(cls, given))

        cls.__init__ = init  # type: ignore[misc]
        cls.renamed_options = renamed  # type: ignore[attr-defined]
        return cls

    return decorate


def current_names(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under their current names.

    Raises
    ------
    ConfigError
        An option was given under both names.
    """
    renamed: Mapping[str, Renamed] = getattr(cls, "renamed_options", {})
    options = {name: value for name, value in given.items() if name not in renamed}
    for old, new in renamed.items():
        if old not in given:
            continue
        name = new if isinstance(new, str) else new[0]
        warnings.warn(
            f"the option {old!r} of {cls.__name__} is called {name!r} now; the next version takes only that name",
            DeprecationWarning,
            stacklevel=4,
        )
        if name in options:
            raise ConfigError(f"{old} and {name} of {cls.__name__} are the same option: give {name} only")
        options[name] = given[old] if isinstance(new, str) else new[1](given[old])
    return options
