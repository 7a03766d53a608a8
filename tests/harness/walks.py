"""Walks: which files of the product run one after the other while something is done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_PRODUCT = tuple(f"{ROOT / name}/" for name in ("trident", "states", "spouts"))


class Walk(NamedTuple):
    """How many files take part, and how often the next call, in the same thread, is in another file."""

    files: int
    changes: int


class Walker:
    """Follows the calls of this thread, and of all that start later, for as long as it is open."""

    def __init__(self) -> None:
        self._walks: dict[int, list[str]] | None = None

    @contextmanager
    def opened(self) -> Iterator[Walker]:
        before = sys.getprofile()
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield self
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    def walk(self, act: Callable[[], Any], alone: bool = False) -> Walk:
        """Return what runs until `act` returns, in all threads; `alone`: in this thread."""
        walks = self._walks = {}
        try:
            act()
        finally:
            self._walks = None
        me = threading.get_ident()
        seen = [list(each) for thread, each in list(walks.items()) if thread == me or not alone]
        changes = sum(a != b for each in seen for a, b in pairwise(each))
        return Walk(len({file for each in seen for file in each}), changes)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        walks = self._walks
        if walks is not None and event == "call" and frame.f_code.co_filename.startswith(_PRODUCT):
            walks.setdefault(threading.get_ident(), []).append(frame.f_code.co_filename)


def shortest(walks: list[Walk]) -> Walk:
    """Return the fewest files and changes of several walks: a busy machine adds looks at the clock, and nothing else."""
    return Walk(min(each.files for each in walks), min(each.changes for each in walks))
