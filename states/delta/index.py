"""What a writer holds of one version of its table (`Index`), and what follows it for an instance that only reads (`Reader`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import SortedRows
from states.delta.data_files import DataFile
from states.delta.fence import (
    STAGED_AS,
    changes_nothing,
    commit_past_compactions,
    moved_by_compactions,
    newest_sentinel,
)
from states.delta.layout import DeltaLayout, Puts, RawKey, RawValue, in_order
from states.delta.state_table import ABSENT
from states.delta.state_tables import Holds, StateTables
from trident.errors import ConfigError, StateError, StoreAwayError
from trident.state.number_table import KeptValues
from trident.state.table import KeyColumns, OpaqueTable
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue

_TRIES = 5
_MOST_ANSWERS = 1_000_000
_FILTERED_KEYS = 20_000  # beyond this many keys, reading all rows is faster
_CHANGE_BYTES = 64  # of a change in memory, without long values
_KEY_BYTES = 300  # of a key in the memory of a writer, without long values
_NOT_MERGED = 4  # files of commits may repeat keys so often before they are counted as keys
_BASE_SHARE = 5  # a merge rewrites the whole base, so it waits until a fifth of it has changed


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


class HeldChanges(NamedTuple):
    """The changes of a version that are not in a base, as this process has them in memory."""

    holds: Holds  # of the base
    runs: tuple[SortedRows, ...]


class Index:
    """The latest values, sentinel and `_seq` of `version`: `ABSENT` without a table, None while nothing is held.

    `holds` is what the base had when it was last looked at; None: there was none.
    """

    def __init__(self, tables: StateTables) -> None:
        self._table, self._layout, self._published = tables.changes, tables.layout, tables.at_path()
        self._what, self._ttl_s = tables.what, tables.options.ttl_s
        self._most_keys, self._most_bytes = tables.options.max_keys_in_memory, tables.options.max_mb_in_memory << 20
        self.values: IndexedValues | LargeIndex = IndexedValues(self._layout)
        self.seq = self.files = 0  # of the version that was loaded, and the commits since
        self.sentinel: Sentinel | None = None
        self.version: int | None = None
        self.holds: Holds | None = None
        self._has_looked, self._base_rows = False, 0
        self._ahead: tuple[str, Puts, Sentinel, int] | None = None  # on top of this version
        self._size = 0  # of the files that were there when the version was loaded

    def is_too_large(self) -> bool:
        """Whether the values are not in files yet, and too large for memory; as far as files show if they are not read."""
        if self.holds is not None:
            return False
        if isinstance(self.values, IndexedValues) and self.version is not None and self.values.is_read:
            return self._is_beyond(len(self.values), self._size)
        return self._are_beyond(self._table.files())

    @property
    def bytes_of_changes(self) -> int:
        """How many bytes of changes are kept in memory beside a base."""
        return self._most_bytes // 4

    def is_full(self, times: int = 1) -> bool:
        """Whether the changes beside the base are so many that they are merged at once; or take `times` as many bytes."""
        if isinstance(self.values, LargeIndex):
            rows, nbytes = self.values.changes, self.values.nbytes
        else:
            files = [] if self.holds is None else [file for file in self._table.files() if file.last > self.holds.seq]
            rows = sum(file.rows for file in files)
            nbytes = max(sum(file.size for file in files), rows * _CHANGE_BYTES)
        are_many = times == 1 and rows >= max(self._most_keys // 4, self._base_rows // _BASE_SHARE, 1)
        return are_many or nbytes > times * self.bytes_of_changes

    def _are_beyond(self, files: Sequence[DataFile]) -> bool:
        most, together = max((file.rows for file in files), default=0), sum(file.rows for file in files)
        return self._is_beyond(max(most, together // _NOT_MERGED), sum(file.size for file in files))

    def _is_beyond(self, keys: int, size: int) -> bool:
        # The rows of a base do not say when they were written.
        return self._ttl_s is None and (keys > self._most_keys or keys * _KEY_BYTES + size > self._most_bytes)

    def held_changes(self, version: int) -> HeldChanges | None:
        """Return the changes of a version beside the base; None: they are not in memory, or not as of this version."""
        if self.holds is None or version != self.version or not isinstance(self.values, LargeIndex):
            return None
        return HeldChanges(self.holds, self.values.runs)

    def load(self) -> None:
        """Move to the newest version of the changes."""
        if self._table.refresh() == self.version or self._is_published() or self.moved_by_compactions():
            return
        self.version = self._ahead = None
        files = self._table.files()
        self._size, self.files = sum(file.size for file in files), len(files)
        self.look()
        if self.holds is None and not self._are_beyond(files):
            scan = in_order(self._table.scan())
            self.values = IndexedValues(self._layout, lambda: scan)
            self.sentinel, self.seq = self._layout.end(scan)
        else:  # no rows are read, or only those that are not in files of a base
            self.sentinel, self.seq = newest_sentinel(self._table), max((file.last for file in files), default=0)
            rows = self._table.scans_after(-1 if self.holds is None else self.holds.seq)
            self.values = self._published.index(self._layout, self.holds, rows) or IndexedValues(
                self._layout, lambda: in_order(self._table.scan())
            )
        self.version = self._table.version

    def look(self) -> None:
        """Look for the newest base, and hold the same values; `ConfigError`: its rows cannot expire."""
        self._published.refresh()
        holds = self._published.base_under(self._table)
        if holds is not None and self._ttl_s is not None:
            raise ConfigError(
                f"ttl_s={self._ttl_s} of {self._what}: the state has outgrown memory and is held in files, whose rows "
                "do not say when they were written. Leave ttl_s out, or move the state to a new path with trident state move"
            )
        if holds != self.holds:
            self._base_rows = sum(file.rows for file in self._published.files())
        self.holds, self._has_looked = holds, True

    def renew(self) -> None:
        """Read the values again over the newest base, because it has moved; look for it if no values are held."""
        if self.version is None:
            self.look()
        else:
            self.forget()
            self.load()

    def follow_base(self) -> None:
        """In a task, whose driver merges: read the values again if the base has moved."""
        self._published.refresh()
        if self._published.holds() != self.holds:
            self.renew()

    def let_go(self) -> None:
        """Hold no values, because tasks do."""
        self.forget()
        if not self._has_looked:
            self.look()
            self.files = len(self._table.files())

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

    @property
    def next_seq(self) -> int:
        # The version alone would do as a number, except for rows that were copied from a table of higher versions, or
        # added by hand.
        return max(self.seq, self._table.version) + 1

    def note_staged(self, name: str, puts: Puts, sentinel: Sentinel, seq: int) -> None:
        """Note a commit that is staged on top of this version, and not published yet, as far as this process knows."""
        self._ahead = name, puts, sentinel, seq

    def commit(
        self, puts: Puts, app: str, sentinel: Sentinel | None, notes: Mapping[str, str], *more: tuple[str, int]
    ) -> bool:
        """Commit the next version, with `more` transactions; False: another commit came first."""

        def commit() -> None:
            seq = self.next_seq
            named = (f"{app}/rows", seq) if sentinel is None else (app, sentinel.version)
            rows = self._table.data_file(self._layout.table(puts, seq, sentinel), (seq, seq))
            self._table.append([rows], "append", named, notes, *more)
            # After the store, never before it, because a failed commit must not look written.
            self._take(puts, sentinel, seq)

        assert self.version is not None, "a version was loaded"
        return commit_past_compactions(self._table, self.version, commit)

    def _take(self, puts: Puts, sentinel: Sentinel | None, seq: int) -> None:
        self.values.put(puts)
        self.sentinel, self.seq, self.version = sentinel or self.sentinel, seq, self._table.version


class Reader:
    """Follows the newest version of a table, and remembers what it answered of this version."""

    def __init__(self, tables: StateTables) -> None:
        self._table, self._layout, self._published = tables.changes, tables.layout, tables.at_path(read_only=True)
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
        index = self._published.index(self._layout, self._published.base_under(self._table), [changes])
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
                index = self._published.index(self._layout, self._published.base_under(self._table))
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
