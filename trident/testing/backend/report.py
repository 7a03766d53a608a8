"""Report: what holds of a store, promise by promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trident.testing.backend.promises import Promise
from trident.testing.backend.suite_run import RUN_PREFIX
from trident.testing.checks.expecting import Promised
from trident.testing.checks.findings import Findings

__all__ = ["Report"]


@dataclass
class Report(Findings):
    """All findings of one run of `backend_suite`.

    Attributes
    ----------
    left
        How many keys stayed in the store.
    """

    promises: ClassVar[type[Promised]] = Promise

    left: int = 0

    def _afterwards(self) -> list[str]:
        if not self.left:
            return []
        return [
            f"{self.left} keys stay in the store, in states whose topology's name starts with {RUN_PREFIX!r}: the map has "
            "neither reset nor multi_delete; give a function that empties a state (clean=..., --clean)"
        ]
