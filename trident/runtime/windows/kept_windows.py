"""The contents of a window's state: chunks of rows, and one directory that says to which pane each belongs.

::

    ("windows",)     -> version, fields, frontier, next slot, and for each pane its runs: [level, bytes, first slot, slots]
    ("chunk", slot)  -> rows of one pane, as an Arrow record batch of these fields

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
from trident.state.interfaces import Key, RemovableMapState

__all__ = ["DIRECTORY", "MAX_CHUNK_BYTES", "Directory", "Run", "WindowStore", "mergeable", "remove"]

DIRECTORY: Key = ("windows",)
MAX_CHUNK_BYTES = 256 * 1024
"""The largest size of a chunk, about: a value holds it twice (`prev`, `curr`) and Memcached takes 1 MiB."""

_VERSION = 1
_FAN_IN = 8
_LARGE = MAX_CHUNK_BYTES // _FAN_IN


class Run(NamedTuple):
    """Rows of a pane that were written together: `slots` chunks, from slot `first` on."""

    level: int
    size: int
    first: int
    slots: int

    @property
    def keys(self) -> list[Key]:
        """The keys of its chunks."""
        return [("chunk", slot) for slot in range(self.first, self.first + self.slots)]


@dataclass
class Directory:
    """Says where each row is.

    Attributes
    ----------
    content
        The fields of the rows with types, and the width of a pane.
    frontier
        How far windows have fired; None before the first tuple.
    next_slot
        The first slot that no chunk ever had.
    panes
        The runs of each pane, oldest first, which is the order of the rows.
    """

    content: str = ""
    frontier: int | None = None
    next_slot: int = 0
    panes: dict[int, list[Run]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        panes = [[pane, *map(list, runs)] for pane, runs in self.panes.items()]
        return encode([_VERSION, self.content, self.frontier, self.next_slot, panes])

    @staticmethod
    def of(data: bytes | None) -> Directory:
        """Decode a stored directory; None gives an empty one."""
        if data is None:
            return Directory()
        version, *rest = decode(data)
        if version != _VERSION:
            raise CorruptValueError(
                f"read the directory of a window: it is of version {version}, this program knows {_VERSION}; a newer one "
                "wrote it"
            )
        content, frontier, next_slot, panes = rest
        return Directory(content, frontier, next_slot, {pane: [Run(*run) for run in runs] for pane, *runs in panes})


def mergeable(runs: Sequence[Run], combines: bool) -> int:
    """Return how many of a pane's last runs to merge with the run that is added now; 0: none.

    Partial results are always merged, because equal keys become one row; tuples only while they are few.
    """
    taken, level = 0, 0
    while True:
        same = 0
        for run in reversed(runs[: len(runs) - taken]):
            if run.level != level or not (combines or run.size < _LARGE):
                break
            same += 1
        if same < _FAN_IN - 1:
            return taken
        taken, level = taken + same, level + 1


class WindowStore:
    """The directory and the chunks in one partition of a state, within a commit.

    Parameters
    ----------
    state
        A map state, between `begin_commit` and `commit`.
    fields
        Of the rows, with their types.
    width
        The width of a pane, which its number refers to.

    Raises
    ------
    CorruptValueError
        The state holds rows of other fields.
    """

    def __init__(self, state: Any, fields: Fields, width: int = 1) -> None:
        self._state, self.schema = state, schema_of(fields)
        (data,) = state.multi_get([DIRECTORY])
        self.directory = Directory.of(data)
        content = f"{fields}; in panes of {width}"
        if self.directory.panes and self.directory.content != content:
            raise CorruptValueError(
                f"read the directory of a window: it holds ({self.directory.content}), but this topology keeps ({content}); it "
                "was written by another version of the topology. Give the window another state_name"
            )
        self.directory.content = content
        self._puts: dict[Key, bytes] = {}
        self._removed: list[Key] = []

    def read(self, runs: Iterable[Run]) -> dict[Run, list[pa.RecordBatch]]:
        """Read runs, all at once."""
        wanted = list(dict.fromkeys(runs))
        found = iter(self._state.multi_get([key for run in wanted for key in run.keys]) if wanted else [])
        return {run: [self._rows(key, next(found)) for key in run.keys] for run in wanted}

    def add(self, pane: int, rows: pa.Table, instead_of: Sequence[Run] = ()) -> None:
        """Add rows to a pane, in place of its last runs `instead_of`, whose rows they include."""
        runs = self.directory.panes.setdefault(pane, [])
        if instead_of:
            del runs[-len(instead_of) :]
            self._forget(instead_of)
        chunks = list(_cut(rows))
        run = Run(
            max((run.level for run in instead_of), default=-1) + 1,
            sum(map(len, chunks)),
            self.directory.next_slot,
            len(chunks),
        )
        self._puts.update(zip(run.keys, chunks, strict=True))
        self.directory.next_slot += len(chunks)
        runs.append(run)

    def remove(self, pane: int) -> None:
        """Remove a pane with all that it holds."""
        self._forget(self.directory.panes.pop(pane))

    def write(self) -> None:
        """Write what was added and removed, and the directory."""
        self._puts[DIRECTORY] = self.directory.to_bytes()
        self._state.multi_put(list(self._puts), list(self._puts.values()))
        remove(self._state, self._removed)

    def _forget(self, runs: Iterable[Run]) -> None:
        self._removed.extend(key for run in runs for key in run.keys)

    def _rows(self, key: Key, data: bytes | None) -> pa.RecordBatch:
        if data is None:
            raise CorruptValueError(
                f"read {key!r} of a window: it is not there; the store lost what it had acknowledged (an eviction, an expiry)"
            )
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
        except (pa.ArrowException, OSError) as error:
            raise CorruptValueError(f"read {key!r} of a window: it is damaged ({error}); restore the store") from error


def remove(state: Any, keys: Sequence[Key]) -> None:
    """Remove keys from a map state, or make their values None if it cannot."""
    if not keys:
        return
    if isinstance(state, RemovableMapState):
        state.multi_remove(keys)
    else:
        state.multi_put(keys, [None] * len(keys))


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
