"""The reading half of the map over one Delta table, for its writer and for instances that only read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from states.delta.beyond_memory.base_reads import BaseReads
from states.delta.change_table import ABSENT, ChangeTable
from states.delta.fence import newest_sentinel
from states.delta.index import Index
from states.delta.layout import DeltaLayout, RawKey, RawValue, in_order
from states.delta.maintenance import Maintenance
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.puts import Puts
from states.delta.staged_files import StagingTable
from trident.redaction import redacted
from trident.state.backing_map import BackingMap
from trident.state.columns.number_columns import NumberColumns
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.txid import Sentinel
from trident.storekit import refuse_read_only

__all__ = ["DeltaReads"]


class DeltaReads(BackingMap):
    """A table, and what is known of it: the index of a writer, or the answers of a reader. See `DeltaBackingMap`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        options = DeltaOptions() if options is None else options
        self._layout = DeltaLayout(kind, conf)
        self._what = f"state {conf.state!r} partition {partition} in {redacted(os.fspath(path))}"
        self._app, self._partition = f"trident/{conf.prefix}/{partition}", partition
        layout = self._layout
        self._table = StagingTable(os.fspath(path), layout.schema, layout.description, options, conf.read_only)
        self._maintenance = Maintenance(self._table, self._layout, options, self._what)
        base = BaseReads(os.fspath(path), layout, PublishedRows(layout, conf).schema, options)
        self._reader = Reader(self._table, self._layout, base) if conf.read_only else None
        self._index = Index(self._table, self._layout)
        self._seen: tuple[Sentinel | None] | None = None  # what was read or written last; None: it was not read yet
        # The commit: its claim, whether it began, and its puts.
        self._claim: Sentinel | None = None
        self._begun = False
        self._puts = Puts(self._layout)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: in a commit as of the version it is based on and with its own puts, else the newest."""
        raw = self._layout.pack_keys(keys)
        if self._reader is not None:
            return self._layout.unpack_values(self._reader.get(raw))
        self._load_if_free()
        found, puts = self._index.values.get(raw), self._puts.as_rows()
        return self._layout.unpack_values(map(puts.get, raw, found) if puts else found)

    def multi_find(self, keys: Sequence[Key]) -> NumberColumns | None:
        """Read keys as columns; None if there are none."""
        if not self._layout.takes_columns or self._reader is not None:
            return None
        self._load_if_free()
        return self._index.values.find_keys(self._layout.pack_keys(keys))

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of the newest version, some at a time."""
        if self._reader is not None:
            yield from ([self._layout.unpack_key(key) for key in page] for page in self._reader.key_pages())
            return
        else:
            self._load_if_free()
            puts, deleted = self._puts.as_rows(), self._layout.deleted
            for page in self._index.values.key_pages():
                yield [self._layout.unpack_key(key) for key in page if key not in puts]
            keys = [key for key, raw in puts.items() if raw is not deleted]
        yield [self._layout.unpack_key(key) for key in keys]

    def _newest_sentinel(self) -> Sentinel | None:
        if self._reader is not None:
            return self._reader.sentinel()
        self._load()
        return self._index.sentinel

    def _sentinel_alone(self) -> Sentinel | None:
        """Return the newest sentinel without reading the rows, which a start does not need."""
        if self._reader is None and self._index.version in (None, ABSENT):
            self._table.refresh()
            return newest_sentinel(self._table)
        return self._newest_sentinel()

    def _load(self) -> None:
        if self._index.load():
            self._maintenance.opened(len(self._table.files()))

    def _load_if_free(self) -> None:
        # A claim belongs to the version that it was compared in, so the version must not change before its commit.
        if self._claim is None and not self._begun:
            self._load()

    def _drop_commit(self) -> None:
        self._claim, self._begun, self._puts = None, False, Puts(self._layout)

    def _forget(self) -> None:
        self._index.forget()
        if self._reader is not None:
            self._reader.forget()
        self._table.forget()

    def _refuse_read_only(self, doing: str) -> None:
        refuse_read_only(self._reader is not None, doing, self._what)


# Reads of an instance that only reads: of the newest version, and only the rows of the keys asked for.

_MOST_ANSWERS = 1_000_000
_FILTERED_KEYS = 20_000  # beyond this many keys, reading all rows is faster


class Reader:
    """Follows the newest version of a table, and remembers what it answered of this version."""

    def __init__(self, table: ChangeTable, layout: DeltaLayout, base: BaseReads) -> None:
        self._table, self._layout, self._base = table, layout, base
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
            # After the changes, because a change leaves their table once a base holds it.
            stored = self._base.get([key for key in missing if key not in found])
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
        index = self._base.over(changes)
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

    def _follow(self) -> None:
        """Move to the newest version; forget what was read of another version, or of another table in its place."""
        self._table.refresh()
        found = self._table.identity()
        if found != self._at:
            if self._at is not None and found[0] == self._at[0]:
                self._table.forget()
                self._table.refresh()
            self.forget()
            self._at = self._table.identity()
