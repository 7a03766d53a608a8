"""SnapshottableMap: a map that is also a single value, kept under one fixed key.

It lets one store serve grouped and ungrouped `persistent_aggregate` alike.
"""

from __future__ import annotations

from typing import Any, cast

from trident.errors import UnsupportedOperation
from trident.state.abilities import (
    Closable,
    ColumnarState,
    FreelyWritten,
    ITupleCollection,
    KeepsAttempts,
    OnceUpdatable,
    Resettable,
    SnapshotListable,
    SnapshotReadable,
)
from trident.state.interfaces import Key, MapState, RemovableMapState, State, StateType, ValueUpdater, kind_of
from trident.state.map_abilities import FencedMap, ListableMap
from trident.state.txid import Snapshot
from trident.state.wrappers.forwarding import IfOffered, passed_on

__all__ = ["DEFAULT_SNAPSHOT_KEY", "SnapshottableMap"]

DEFAULT_SNAPSHOT_KEY = "$GLOBAL$"
"""The one part of the key that the single value is kept under, unless a store says otherwise."""


class SnapshottableMap:
    """`MapState` and `Snapshottable` over one map state.

    Everything else that the map can do (`multi_get_at`, `read_sentinel`, `move_sentinel`, `reset`, `close`,
    `multi_remove`, `get_tuples`) is a method of this object too; what the map cannot do, this object does not have.

    Parameters
    ----------
    map_state
        The map to forward to.
    snapshot_key
        The key of the single value: a tuple, or its only field.
    """

    def __init__(self, map_state: MapState[Any], snapshot_key: Key | str = DEFAULT_SNAPSHOT_KEY) -> None:
        self.map_state = map_state
        self.snapshot_key: Key = snapshot_key if isinstance(snapshot_key, tuple) else (snapshot_key,)
        self.inner: Any = map_state

    begin_commit = passed_on(State.begin_commit)
    commit = passed_on(State.commit)
    multi_get = passed_on(MapState.multi_get)
    multi_update = passed_on(MapState.multi_update)
    multi_update_once = passed_on(OnceUpdatable.multi_update_once)
    multi_put = passed_on(MapState.multi_put)
    multi_get_at = passed_on(SnapshotReadable.multi_get_at)
    share_keys = passed_on(FreelyWritten.share_keys)
    written_keys = passed_on(FreelyWritten.written_keys)
    multi_combine = passed_on(ColumnarState.multi_combine)
    multi_remove = passed_on(RemovableMapState.multi_remove)
    get_tuples = passed_on(ITupleCollection.get_tuples)
    get_tuples_at = passed_on(SnapshotListable.get_tuples_at)
    key_pages = passed_on(ListableMap.key_pages)
    read_sentinel = passed_on(FencedMap.read_sentinel)
    move_sentinel = passed_on(FencedMap.move_sentinel)
    keeps_attempts = passed_on(KeepsAttempts.keeps_attempts)
    reset = passed_on(Resettable.reset)
    close = passed_on(Closable.close)
    keeps_columns: bool = cast("bool", IfOffered("keeps_columns"))
    place: str = cast("str", IfOffered("place"))
    fences: bool = cast("bool", IfOffered("fences"))
    shares_keys: bool = cast("bool", IfOffered("shares_keys"))

    @property
    def kind(self) -> StateType | None:
        """How the map undoes a failed attempt; None for a map that does not say."""
        return kind_of(self.map_state)

    def get(self) -> Any:
        """Return the single value, None if never written."""
        (value,) = self.map_state.multi_get([self.snapshot_key])
        return value

    def get_at(self, snapshot: Snapshot) -> Any:
        """Return the single value as it was after `snapshot.txid`, None if not yet written then.

        Raises
        ------
        StaleTransactionError
            The snapshot is too old: take a newer one and read again.
        UnsupportedOperation
            The map keeps no earlier values (only an opaque one does).
        """
        if not isinstance(self.map_state, SnapshotReadable):
            raise UnsupportedOperation(
                f"read as of batch {snapshot.txid}: a {type(self.map_state).__name__} keeps the latest value only; "
                "use an opaque state, or get() for the latest write"
            )
        (value,) = self.map_state.multi_get_at([self.snapshot_key], snapshot)
        return value

    def update(self, updater: ValueUpdater[Any]) -> Any:
        """Update the single value and return the new one."""
        (value,) = self.map_state.multi_update([self.snapshot_key], [updater])
        return value

    def set(self, value: Any) -> None:
        """Replace the single value."""
        self.map_state.multi_put([self.snapshot_key], [value])
