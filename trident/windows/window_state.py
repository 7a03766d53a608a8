"""The contents of a window's state: chunks of rows, and one directory that says to which pane each belongs.

::

    ("windows",)     -> version, fields, frontier, next slot, and for each pane its runs: [level, bytes, first slot, slots]
    ("chunk", slot)  -> rows of one pane, as an Arrow record batch of these fields

With n > 1 partitions each has a directory and chunks of its own, under `("windows", n, partition)` and
`("chunk", n, partition, slot)`; then `("windows",)` holds a version that earlier programs refuse, and n.

So a batch writes only its own rows, not all that its windows hold. The directory numbers the slots, and an opaque state undoes
the directory of a failed attempt; so the replay, or the next batch, overwrites the chunks of that attempt. Eight runs of one
level are merged into one of the next, so a directory has few entries for many batches; large runs of tuples are not merged.

Everything is stored as bytes, so no aggregator can change what is stored, and no store copies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.state.encoding.codec import decode, encode
from trident.state.interfaces import Key
from trident.windows.window_partitions import ONE, PartitionPlace, later, rows_of

MAX_CHUNK_BYTES = 256 * 1024
"""The largest size of a chunk, about: a value holds it twice (`prev`, `curr`) and Memcached takes 1 MiB."""

_FAN_IN = 8
_LARGE = MAX_CHUNK_BYTES // _FAN_IN
DIRECTORY = ONE.key("windows")
"""The key of the directory of a window that has one partition; else it holds their number."""

Frontier = int | list[int | None] | None
"""How far time has come, or of a join how far that of each side has; None: there was none yet."""

_VERSION = 1
_ELSEWHERE = 2
_PANES = "; in panes of "


class TupleRun(NamedTuple):
    """Rows of a pane that were written together: `slots` chunks, from slot `first` on."""

    level: int
    size: int
    first: int
    slots: int

    def keys_in(self, place: PartitionPlace = ONE) -> list[Key]:
        return [place.key("chunk", slot) for slot in range(self.first, self.first + self.slots)]


@dataclass
class Directory:
    """Says where each row is."""

    content: str = ""  # the fields of the rows with types, and the width of a pane
    frontier: Any = None  # how far windows have fired; None before the first tuple
    next_slot: int = 0  # the first slot that no chunk ever had
    panes: dict[int, list[TupleRun]] = field(default_factory=dict)  # oldest first, the order of the rows
    elsewhere: int = 0  # how many partitions keep the windows, if they have directories of their own

    def to_bytes(self) -> bytes:
        if self.elsewhere:
            return encode([_ELSEWHERE, self.elsewhere])
        panes = [[pane, *map(list, runs)] for pane, runs in self.panes.items()]
        return encode([_VERSION, self.content, self.frontier, self.next_slot, panes])

    @staticmethod
    def of(data: bytes | None) -> Directory:
        if data is None:
            return Directory()
        version, *rest = decode(data)
        if version == _ELSEWHERE:
            return Directory(elsewhere=rest[0])
        if version != _VERSION:
            raise CorruptValueError(
                f"read the directory of a window: it is of version {version}, this program knows {_VERSION} and {_ELSEWHERE}; "
                "a newer one wrote it"
            )
        content, frontier, next_slot, panes = rest
        return Directory(
            content, frontier, next_slot, {pane: [TupleRun(*run) for run in runs] for pane, *runs in panes}
        )


def mergeable(runs: Sequence[TupleRun], combines: bool) -> Sequence[TupleRun]:
    """Return the last ones of a pane's runs that are merged with the run that is added now."""
    taken, level = 0, 0
    while True:
        same = 0
        # Partial results are always merged, because equal keys become one row; tuples only while they are few.
        for run in reversed(runs[: len(runs) - taken]):
            if run.level != level or not (combines or run.size < _LARGE):
                break
            same += 1
        if same < _FAN_IN - 1:
            return runs[len(runs) - taken :]
        taken, level = taken + same, level + 1


class WindowStore:
    """The directory and the chunks in one partition of a state, within a commit.

    `width`, `key`: of a pane; the fields by which rows are partitioned.
    `times`: what times are counted in, as of `WindowConfig`.
    Raises `CorruptValueError`: the state holds rows of other fields, or times of another unit.
    """

    def __init__(
        self,
        state: Any,
        fields: Fields,
        width: int = 1,
        place: PartitionPlace = ONE,
        key: Fields | None = None,
        times: str = "",
    ) -> None:
        self._state, self.schema, self._place = state, schema_of(fields), place
        self._fields, self._key = fields, key or Fields()
        self._content = f"{fields}{_PANES}{width}{times}"
        self._puts: dict[Key, bytes] = {}
        self._removed: list[Key] = []
        self.taken_from: Sequence[PartitionPlace] = ()  # of another layout, whose rows this commit takes over
        self.directory = self._directory(place)
        self._is_new = not self.directory.content
        if self._is_new:
            self._begin()
        self.directory.content = self._content

    def must_write(self, given: int) -> bool:
        """Whether the directory must be written although nothing changed: all partitions begin with the same batch."""
        return self._is_new and (given > 0 or len(self.taken_from) > 0)

    def read(
        self, runs: Iterable[TupleRun], place: PartitionPlace | None = None
    ) -> dict[TupleRun, list[pa.RecordBatch]]:
        """Read runs, of this partition or of another place, all at once."""
        keys = {run: run.keys_in(place or self._place) for run in runs}
        stored = [key for of_run in keys.values() for key in of_run if key not in self._puts]
        found = dict(zip(stored, self._state.multi_get(stored), strict=True)) if stored else {}
        if self._puts:
            found.update(self._puts)  # what this very commit takes over
        return {run: [self._rows(key, found[key]) for key in of_run] for run, of_run in keys.items()}

    def add(self, pane: int, rows: pa.Table, instead_of: Sequence[TupleRun] = ()) -> None:
        """Add rows to a pane, in place of its last runs `instead_of`, whose rows they include."""
        runs = self.directory.panes.setdefault(pane, [])
        if instead_of:
            del runs[-len(instead_of) :]
            self._forget(instead_of)
        chunks = list(_cut(rows))
        level = max((run.level for run in instead_of), default=-1) + 1
        run = TupleRun(level, sum(map(len, chunks)), self.directory.next_slot, len(chunks))
        self._puts.update(zip(run.keys_in(self._place), chunks, strict=True))
        self.directory.next_slot += len(chunks)
        runs.append(run)

    def remove(self, pane: int) -> None:
        self._forget(self.directory.panes.pop(pane))

    def write(self) -> None:
        self._puts[self._place.key("windows")] = self.directory.to_bytes()
        if self._is_new and self._place.partitions > 1 and self._place.partition == 0:
            self._puts[DIRECTORY] = Directory(elsewhere=self._place.partitions).to_bytes()
        self._state.multi_put(list(self._puts), list(self._puts.values()))
        if self._removed:
            self._state.multi_remove(self._removed)

    def _forget(self, runs: Iterable[TupleRun]) -> None:
        for key in (key for run in runs for key in run.keys_in(self._place)):
            if self._puts.pop(key, None) is None:
                self._removed.append(key)

    def _directory(self, place: PartitionPlace) -> Directory:
        (data,) = self._state.multi_get([place.key("windows")])
        directory = Directory.of(data)
        if directory.content and not self._can_read(directory.content, bool(directory.panes)):
            raise CorruptValueError(
                f"read the directory of a window: it holds ({directory.content}), but this topology keeps ({self._content}); "
                "another version of the topology wrote it. Declare it as it was: another state_name begins with nothing"
            )
        return directory

    def _can_read(self, content: str, has_rows: bool) -> bool:
        """Whether times of a directory have this unit, and its rows these fields; those of the key may have had other names."""
        if content == self._content:
            return True
        (fields, _, panes), own_panes = content.rpartition(_PANES), self._content.rpartition(_PANES)[2]
        if not has_rows:
            return panes.partition(" ")[2] == own_panes.partition(" ")[2]
        before, own, width = Fields(fields), self._fields, len(self._key)
        same = before.types == own.types and before.names[width:] == own.names[width:]
        return same and own.names[:width] == self._key.names and panes == own_panes

    def _begin(self) -> None:
        """Begin the directory: empty, or with what another number of partitions had stored for this one's keys.

        All partitions do so in the same commit, and partition 0 removes what they had stored. Each reads the state as after
        the batch before, whatever the others wrote meanwhile; so a replay moves the same rows again.
        """
        place = self._place
        first = self.directory if place.partitions == 1 else self._directory(ONE)
        self.directory = Directory()
        count = first.elsewhere or (1 if first.content else 0)
        if count == place.partitions:
            raise CorruptValueError(
                f"read {place.key('windows')!r} of a window: it is not there, but the window was stored in {count} partitions; "
                "the store lost what it had acknowledged (an eviction, an expiry)"
            )
        self.taken_from = [PartitionPlace(partition, count) for partition in range(count)]
        for other in self.taken_from:
            self._take_over(self._directory(other), other)

    def _take_over(self, before: Directory, other: PartitionPlace) -> None:
        self.directory.frontier = later(self.directory.frontier, before.frontier)
        for pane, runs in before.panes.items():
            read = self.read(runs, other)
            rows = pa.Table.from_batches([some for run in runs for some in read[run]], self.schema)
            own = rows_of(self._place, self._key, rows)
            if own.num_rows:
                self.add(pane, own)
        if self._place.partition == 0:  # once for all partitions
            chunks = [key for runs in before.panes.values() for run in runs for key in run.keys_in(other)]
            self._removed += [key for key in (other.key("windows"), *chunks) if key != DIRECTORY]

    def _rows(self, key: Key, data: bytes | None) -> pa.RecordBatch:
        if data is None:
            raise CorruptValueError(
                f"read {key!r} of a window: it is not there; the store lost what it had acknowledged (an eviction, an expiry)"
            )
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
        except (pa.ArrowException, OSError) as error:
            raise CorruptValueError(f"read {key!r} of a window: it is damaged ({error}); restore the store") from error


def _cut(rows: pa.Table) -> Iterator[bytes]:
    """Cut rows into chunks that are small enough, in order; a larger row is a chunk of its own."""
    parts = -(-rows.nbytes // MAX_CHUNK_BYTES)
    if parts <= 1 or rows.num_rows <= 1:
        (batch,) = rows.combine_chunks().to_batches()
        yield bytes(batch.serialize())
        return
    size = -(-rows.num_rows // parts)
    for start in range(0, rows.num_rows, size):
        yield from _cut(rows.slice(start, size))
