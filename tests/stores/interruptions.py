"""Where a commit can be interrupted: a wrapper right above the store, below the chunks of a put."""

from collections.abc import Callable, Sequence
from typing import Any

from trident.state import CachedMap, IBackingMap, Key, MicroBatchIBackingMap, OpaqueMap, Txid
from trident.state.forwarding import MapWrapper

CHUNK = 3
POINTS = ("begin", "chunk", "commit", "ended")
"""Before `begin_commit`; before a chunk of a put; before `commit`; after it."""

Reach = Callable[[str], None]


def go_on(point: str) -> None:
    """Nothing happens at any point."""


class FaultHooks(MapWrapper):
    """Tells of every chunk before it is written, and of a delete."""

    def __init__(self, delegate: IBackingMap[Any], reach: Reach) -> None:
        super().__init__(delegate)
        self._reach = reach

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self._reach("chunk")
        self.inner.multi_put(keys, values)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        self._reach("delete")
        super().multi_delete(keys)


class SeamedState:
    """One partition of an opaque state: the store that a spec opened, written in small chunks with a seam below.

    Parameters
    ----------
    state
        What the spec's factory made.
    cache
        Entries of a `CachedMap` above the chunks; 0: none.
    """

    def __init__(self, state: Any, reach: Reach, name: str, partition: int, cache: int = 0) -> None:
        backing: Any = MicroBatchIBackingMap(FaultHooks(state.map_state.backing, reach), 0, CHUNK)
        self.map = OpaqueMap(CachedMap(backing, cache) if cache else backing, name, partition)
        self._reach = reach

    def run(self, txid: Txid, update: Callable[[OpaqueMap], None]) -> None:
        """Run one whole commit."""
        self._reach("begin")
        self.map.begin_commit(txid)
        update(self.map)
        self._reach("commit")
        self.map.commit(txid)
        self._reach("ended")
