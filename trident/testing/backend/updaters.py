"""Updaters that a test can tell apart: sums, and lists of everything that was applied."""

from __future__ import annotations

from typing import Any

__all__ = ["Add", "Append"]


class Add:
    """Adds a number to the stored one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def update(self, stored: int | None) -> int:
        """Return the sum."""
        return (stored or 0) + self.number


class Append:
    """Appends to the stored list, in place, which an updater should not do but can. A doubled or lost update shows."""

    def __init__(self, item: object) -> None:
        self.item = item

    def update(self, stored: list[Any] | None) -> list[Any]:
        """Return the list with one more item."""
        items = [] if stored is None else stored
        items.append(self.item)
        return items
