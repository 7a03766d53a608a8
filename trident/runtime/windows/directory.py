"""The directory of a window's state: to which pane each chunk of rows belongs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from trident.errors import CorruptValueError
from trident.runtime.windows.shares import ONE, PartitionPlace
from trident.state.encoding.codec import decode, encode
from trident.state.interfaces import Key

DIRECTORY = ONE.key("windows")
"""The key of the directory of a window that has one partition; else it holds their number."""

_VERSION = 1
_ELSEWHERE = 2


class TupleRun(NamedTuple):
    """Rows of a pane that were written together: `slots` chunks, from slot `first` on."""

    level: int
    size: int
    first: int
    slots: int

    def keys_in(self, place: PartitionPlace = ONE) -> list[Key]:
        """Return the keys of its chunks in a partition."""
        return [place.key("chunk", slot) for slot in range(self.first, self.first + self.slots)]


@dataclass
class Directory:
    """Says where each row is.

    `content`: the fields of the rows with types, and the width of a pane.
    `frontier`: how far windows have fired; None before the first tuple.
    `next_slot`: the first slot that no chunk ever had.
    `panes`: the runs of each pane, oldest first, which is the order of the rows.
    `elsewhere`: the number of partitions that keep the windows, if they have directories of their own; else 0.
    """

    content: str = ""
    frontier: int | None = None
    next_slot: int = 0
    panes: dict[int, list[TupleRun]] = field(default_factory=dict)
    elsewhere: int = 0

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        if self.elsewhere:
            return encode([_ELSEWHERE, self.elsewhere])
        panes = [[pane, *map(list, runs)] for pane, runs in self.panes.items()]
        return encode([_VERSION, self.content, self.frontier, self.next_slot, panes])

    @staticmethod
    def of(data: bytes | None) -> Directory:
        """Decode a stored directory; None gives an empty one."""
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
