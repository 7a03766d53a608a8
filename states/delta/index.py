"""What a writer holds of one version of its table (`Index`), and what follows it for an instance that only reads (`Reader`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.merging import OpenedBase
from states.delta.faults import VersionMoved
from states.delta.fence import STAGED_AS, changes_nothing, moved_by_compactions, newest_sentinel
from states.delta.layout import DeltaLayout, Puts, RawKey, RawValue, in_order
from states.delta.state_table import ABSENT
from states.delta.state_tables import StateTables
from trident.errors import StateError, StoreAwayError
from trident.state.number_table import KeptValues
from trident.state.table import KeyColumns, OpaqueTable
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue

_TRIES = 5
_MOST_ANSWERS = 1_000_000
_FILTERED_KEYS = 20_000  # beyond this many keys, reading all rows is faster


class IndexedValues:
    """The raw value of each key. A scan is read and reduced when it is first asked for: to rows, or at once to columns."""

    def __init__(self, layout: DeltaLayout, scan: Callable[[], pa.Table] | None = None) -> None:
        self._layout, self._scan = layout, scan
        self._values = KeptValues(layout.form if layout.takes_columns else None)
        self._has_plain_rows = False  # rows of a scan are plain tuples, which no columns take

    def get(self, keys: Sequence[RawKey]) -> list[RawValue | None]:
        return self._load_values().get(keys)

    def __len__(self) -> int:
        return len(self._load_values())

    @property
    def is_read(self) -> bool:
        return self._scan is None

    def key_pages(self) -> Iterator[list[RawKey]]:
        yield self._load_values().keys()

    def put(self, puts: Puts) -> None:
        if isinstance(puts, OpaqueTable):
            assert self._values.columns is not None, "nothing was put since the find"
            self._values.columns.put_found(puts)
            return
        deleted = self._layout.deleted
        gone = [key for key, raw in puts.items() if raw is deleted]
        if gone:
            puts = {key: raw for key, raw in puts.items() if raw is not deleted}
        self._load_values().put(list(puts), list(puts.values()))
        if gone:
            self._load_values().delete(gone)

    def find(self, keys: Sequence[RawKey]) -> OpaqueTable | None:
        """Return what is there for keys; None where rows are quicker or values are no numbers."""
        if not isinstance(keys, KeyColumns):
            return self._load_values().find(keys)
        if self._scan is not None and self._values.form is not None:
            self._values.columns = self._layout.number_table(self._scan())
            self._drop_scan()
        elif self._has_plain_rows:
            entries = self._values.entries
            entries.update(zip(entries, map(OpaqueValue._make, entries.values()), strict=True))
            self._has_plain_rows = False
        return self._values.find(keys)

    def _load_values(self) -> KeptValues:
        if self._scan is not None:
            self._values.entries.update(self._layout.latest(self._scan()))
            self._has_plain_rows = self._layout.takes_columns
            self._drop_scan()
        return self._values

    def _drop_scan(self) -> None:
        self._scan = None
        pa.default_memory_pool().release_unused()  # Arrow's read took as much memory as the index, and is done


class Index:
    """The latest values, sentinel and `_seq` of `version`: `ABSENT` without a table, None while nothing is held."""

    def __init__(self, tables: StateTables, base: OpenedBase, note_files: Callable[[int], None]) -> None:
        self._table, self._layout, self._base, self._note_files = tables.changes, tables.layout, base, note_files
        self.values: IndexedValues | LargeIndex = IndexedValues(self._layout)
        self.seq = 0
        self.sentinel: Sentinel | None = None
        self.version: int | None = None
        self._ahead: tuple[str, Puts, Sentinel, int] | None = None  # on top of this version
        self._size, self._is_beyond = 0, False  # of the files that were there when the version was loaded

    @property
    def large(self) -> LargeIndex | None:
        return self.values if isinstance(self.values, LargeIndex) else None

    def is_too_large(self) -> bool:
        """Whether the values that are held in memory are too large for it."""
        if isinstance(self.values, LargeIndex):
            return False
        return self._base.is_too_large(len(self.values), self._size) if self.values.is_read else self._is_beyond

    # ---- following the table --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Move to the newest version."""
        if self._table.refresh() == self.version or self._is_published() or self.moved_by_compactions():
            return
        self.version = self._ahead = None
        files = self._table.files()
        self._size, self._is_beyond = sum(file.size for file in files), self._base.is_beyond(files)
        large = self._base.open_index()
        if large is None and not self._is_beyond:
            scan = in_order(self._table.scan())
            self.values = IndexedValues(self._layout, lambda: scan)
            self.sentinel, self.seq = self._layout.end(scan)
        else:  # no rows are read, or only those that are not in files of a base
            self.values = large or IndexedValues(self._layout, lambda: in_order(self._table.scan()))
            self.sentinel, self.seq = newest_sentinel(self._table), max((file.last for file in files), default=0)
        self.version = self._table.version
        self._note_files(len(self._table.files()))

    def reload(self) -> bool:
        """Read the newest version again; return whether its sentinel is still the one that was held."""
        sentinel = self.sentinel
        self.forget()
        self.load()
        return self.sentinel == sentinel

    def moved_by_compactions(self) -> bool:
        """Move to the newest version, if there were only compactions since, which change no content."""
        if self.version in (None, ABSENT) or not moved_by_compactions(self._table, self.version):
            return False
        self.version = self._table.version
        return True

    def forget(self) -> None:
        self.values, self.sentinel, self.version, self._ahead = IndexedValues(self._layout), None, None, None

    def _is_published(self) -> bool:
        """Move to the newest version, if it shows what this writer staged, and nothing else since."""
        if self._ahead is None or self.version is None or self.version == ABSENT:
            return False
        (name, puts, sentinel, seq), self._ahead = self._ahead, None
        entries = self._table.notes(self._table.version - self.version)
        is_ours = [entry.get(STAGED_AS) for entry in entries if not changes_nothing(entry)] == [name]
        if is_ours:
            self._take(puts, sentinel, seq)
        return is_ours

    # ---- commits --------------------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        # The version alone would do as a number, except for rows that were copied from a table of higher versions, or
        # added by hand.
        return max(self.seq, self._table.version) + 1

    def note_staged(self, name: str, puts: Puts, sentinel: Sentinel, seq: int) -> None:
        """Note a commit that is staged on top of this version, and not published yet, as far as this process knows."""
        self._ahead = name, puts, sentinel, seq

    def commit(
        self,
        puts: Puts,
        app: str,
        sentinel: Sentinel | None,
        notes: Mapping[str, str],
        more: Callable[[int], Iterable[tuple[str, int]]],
    ) -> bool:
        """Commit the next version, with `more` transactions for its `_seq`; False: another commit came first."""
        for _ in range(_TRIES):
            seq = self.next_seq
            named = (f"{app}/rows", seq) if sentinel is None else (app, sentinel.version)
            try:
                self._table.commit(self._layout.table(puts, seq, sentinel), seq, "append", named, notes, *more(seq))
            except VersionMoved:
                if self.moved_by_compactions():
                    continue
                break
            # After the store, never before it, because a failed commit must not look written.
            self._take(puts, sentinel, seq)
            return True
        return False

    def _take(self, puts: Puts, sentinel: Sentinel | None, seq: int) -> None:
        self.values.put(puts)
        self.sentinel, self.seq, self.version = sentinel or self.sentinel, seq, self._table.version


class Reader:
    """Follows the newest version of a table, and remembers what it answered of this version."""

    def __init__(self, tables: StateTables) -> None:
        self._table, self._layout, self._published = tables.changes, tables.layout, tables.at_path(read_only=True)
        self._check_base = tables.check_base
        self._answers: dict[RawKey, RawValue | None] = {}
        self._sentinel: tuple[Sentinel | None] | None = None  # None: not read yet
        self._at: tuple[int, int] | None = None  # the version, and which table

    def get(self, keys: list[RawKey]) -> list[RawValue | None]:
        self._follow()
        missing = list(dict.fromkeys(key for key in keys if key not in self._answers))
        if missing and self._table.version != ABSENT:
            at = self._table.version
            wanted = self._layout.key_filter(missing) if len(missing) <= _FILTERED_KEYS else None
            found = self._layout.latest(in_order(self._table.scan(wanted)), True)
            stored = self._read_base([key for key in missing if key not in found])
            if self._table.version != at:  # its files are gone, so all answers must come from the newer one
                return self.get(keys)
            if len(self._answers) > _MOST_ANSWERS:
                self._answers = {key: self._answers[key] for key in keys if key in self._answers}
            read: dict[RawKey, RawValue | None] = {**stored, **found}
            self._answers.update((key, read.get(key)) for key in missing)
        values = map(self._answers.get, keys)
        return [None if value is None or value[0] is None else value for value in values]  # the mark of a deleted key

    def key_pages(self) -> Iterator[list[RawKey]]:
        self._follow()
        at, changes = self._table.version, in_order(self._table.scan())
        self._published.refresh()
        self._check_base(self._table, self._published.holds())
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
        self._answers, self._sentinel, self._at = {}, None, None

    def _read_base(self, keys: list[RawKey]) -> dict[RawKey, RawValue | None]:
        """Return the raw values of keys that have no change, from a newer base if the files of one are gone meanwhile."""
        # Read after the changes, which leave their table only once a base holds them.
        for left in range(_TRIES if keys else 0, 0, -1):
            self._published.refresh()
            try:
                self._check_base(self._table, self._published.holds())
                index = self._published.index(self._layout)
                return {} if index is None else dict(zip(keys, index.get(keys), strict=True))
            except StateError as error:
                if left == 1 or isinstance(error, StoreAwayError):
                    raise
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
