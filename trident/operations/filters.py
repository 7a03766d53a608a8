"""Filters over the values of a tuple: `Equals`, and `Negate` of another filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trident.operations.interfaces import Filter, TridentOperationContext
from trident.roles import has
from trident.tuples import TridentTuple

__all__ = ["Equals", "Negate"]


class Equals(Filter):
    """Keeps tuples whose input fields are all equal: `each(["a", "b"], Equals())`.

    Different from Storm: two nulls are equal (Storm fails on them), and whole numbers of any width compare by value.
    """

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Whether every value equals the first."""
        return all(value == tuple[0] for value in tuple)


class Negate(Filter):
    """Keeps what another filter drops: `each("word", Negate(FilterNull()))`."""

    def __init__(self, filter: Filter) -> None:
        if not has(filter, "is_keep") or isinstance(filter, type):
            raise TypeError(f"Negate takes a filter, an object with is_keep; got {filter!r}")
        self.filter = filter

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        """Prepare the filter."""
        if has(self.filter, "prepare"):
            self.filter.prepare(conf, context)

    def cleanup(self) -> None:
        """End the filter."""
        if has(self.filter, "cleanup"):
            self.filter.cleanup()

    def is_keep(self, tuple: TridentTuple) -> bool:
        """Whether the filter drops the tuple."""
        return not self.filter.is_keep(tuple)
