"""Classes that are wrong in one thing: a right class, in which a snippet of the source is replaced."""

import inspect
import sys
import threading
import time
from functools import cache
from textwrap import dedent
from typing import Any

source_of = cache(inspect.getsource)
FOR_SNIPPETS = {"threading": threading, "time": time}  # what they may use, besides what is in the two modules


def mutated(module: dict[str, Any], right: type, name: str, *changes: tuple[str, str]) -> Any:
    """Return a class of a module as the right one, with each snippet, which occurs once, replaced by another."""
    source = dedent(source_of(right))
    for old, new in changes:
        assert source.count(old) == 1, f"{name}: {old!r} occurs {source.count(old)} times in {right.__name__}"
        source = source.replace(old, new)
    names = {**FOR_SNIPPETS, **vars(sys.modules[right.__module__]), **module}
    exec(compile(f"from __future__ import annotations\n{source}", f"<{name}>", "exec"), names)
    wrong = module[f"{name}{right.__name__}"] = names[right.__name__]  # where it is found when it is unpickled
    wrong.__module__, wrong.__name__, wrong.__qualname__ = module["__name__"], *[f"{name}{right.__name__}"] * 2
    return wrong
