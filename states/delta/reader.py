"""Reads of an instance that only reads: of the newest version, and only the rows of the keys asked for.

The changes are read first and the base after them, because a change leaves their table once a base holds it.
"""

from __future__ import annotations

from collections.abc import Iterator

from states.delta.fence import newest_sentinel
from states.delta.layout import RawKey, RawValue, in_order
from states.delta.state_table import ABSENT
from states.delta.state_tables import StateTables
from trident.errors import StateError
from trident.object_stores import short
from trident.state.txid import Sentinel

_MOST_ANSWERS = 1_000_000
_TRIES = 5
_FILTERED_KEYS = 20_000  # beyond this many keys, reading all rows is faster


class Reader:
    """Follows the newest version of a table, and remembers what it answered of this version."""

    def __init__(self, tables: StateTables) -> None:
        self._table, self._layout, self._published = tables.changes, tables.layout, tables.at_path(read_only=True)
        self._answers: dict[RawKey, RawValue | None] = {}
        self._sentinel: tuple[Sentinel | None] | None = None  # None: not read yet
        self._at: tuple[int, int] | None = None  # the version, and which table

    def get(self, keys: list[RawKey]) -> list[RawValue | None]:
        """Return a raw value per key, None for an absent one."""
        self._follow()
        missing = list(dict.fromkeys(key for key in keys if key not in self._answers))
        if missing and self._table.version != ABSENT:
            at = self._table.version
            wanted = self._layout.key_filter(missing) if len(missing) <= _FILTERED_KEYS else None
            found: dict[RawKey, RawValue | None] = {**self._layout.latest(in_order(self._table.scan(wanted)), True)}
            stored = self._stored([key for key in missing if key not in found])
            if self._table.version != at:  # its files are gone, so all answers must come from the newer one
                return self.get(keys)
            if len(self._answers) > _MOST_ANSWERS:
                self._answers = {key: self._answers[key] for key in keys if key in self._answers}
            self._answers.update((key, found[key] if key in found else stored.get(key)) for key in missing)
        return self._layout.without_deleted([self._answers.get(key) for key in keys])

    def key_pages(self) -> Iterator[list[RawKey]]:
        """Iterate over all keys, some at a time."""
        self._follow()
        at, changes = self._table.version, in_order(self._table.scan())
        self._published.refresh()
        index = self._published.index(self._layout, [changes])
        if self._table.version != at:
            yield from self.key_pages()
        elif index is not None:
            yield from index.key_pages()
        else:
            self._answers = dict(self._layout.latest(changes))
            yield list(self._answers)

    def sentinel(self) -> Sentinel | None:
        """Return the sentinel of the newest version, None if there is none."""
        self._follow()
        if self._sentinel is None:
            at, found = self._table.version, newest_sentinel(self._table)
            if self._table.version != at:  # the files of that version are gone
                return self.sentinel()
            self._sentinel = (found,)
        return self._sentinel[0]

    def forget(self) -> None:
        """Forget all answers."""
        self._answers, self._sentinel, self._at = {}, None, None

    def _stored(self, keys: list[RawKey]) -> dict[RawKey, RawValue | None]:
        """Return the raw values of keys that have no change, from a newer base if the files of one are gone meanwhile."""
        for left in range(_TRIES if keys else 0, 0, -1):
            self._published.refresh()
            try:
                index = self._published.index(self._layout)
                return {} if index is None else dict(zip(keys, index.get(keys), strict=True))
            except FileNotFoundError as error:
                if left == 1:
                    raise StateError(f"cannot read Delta table {self._table.name}: {short(error)}") from error
                self._published.forget()
        return {}

    def _follow(self) -> None:
        """Move to the newest version; forget what was read of another version, or of another table in its place."""
        self._table.refresh()
        identity = self._table.identity()
        if identity != self._at:
            if self._at is not None and identity[0] == self._at[0]:
                self._table.forget()
                self._table.refresh()
            self.forget()
            self._at = self._table.identity()
