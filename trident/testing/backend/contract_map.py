"""What the contracts of backing maps share: rows, readers, and the comparison of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.state.interfaces import Key
from trident.testing.backend.contract import StoreContract
from trident.testing.backend.store_under_test import Writer
from trident.testing.checks.expecting import expect

__all__ = ["MapContract", "keys_of", "rows", "values_of"]


def rows(number: int, start: int = 0) -> list[tuple[Key, int]]:
    """Return so many rows, each with a key and a value of its own."""
    return [((f"key {at}",), at) for at in range(start, start + number)]


def keys_of(pairs: Sequence[tuple[Key, Any]]) -> list[Key]:
    """Return the keys of rows."""
    return [key for key, _ in pairs]


def values_of(pairs: Sequence[tuple[Key, Any]]) -> list[Any]:
    """Return the values of rows."""
    return [value for _, value in pairs]


class MapContract(StoreContract):
    """Base of the contracts of backing maps."""

    def reader(self, state: str = "state") -> Writer:
        """Open an instance that only reads."""
        return Writer(self.store.map(state, reads=True), self.store.kind)

    def expect_rows(self, pairs: Sequence[tuple[Key, Any]], what: str, *readers: Writer) -> None:
        """Compare what each of the readers, and a new instance, reads with what was written."""
        for each in (*readers, self.reader()):
            expect(each.read(keys_of(pairs)), values_of(pairs), what)
