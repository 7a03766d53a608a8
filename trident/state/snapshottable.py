"""SnapshottableMap: a map that is also a single value, kept under one fixed key.

It lets one store serve grouped and ungrouped `persistent_aggregate` alike.
"""

from __future__ import annotations

from typing import Any

from trident.errors import UnsupportedOperation
from trident.state.interfaces import Key, MapState, State, ValueUpdater, kind_of, state_of
from trident.state.map_commits import CommittedMap
from trident.state.txid import Snapshot
from trident.state.wrappers.forwarding import passes_on

_OF_A_VALUE = {"get", "get_at", "update"}

DEFAULT_SNAPSHOT_KEY = "$GLOBAL$"
"""The one part of the key that the single value is stored under, unless a store says otherwise."""


@passes_on(State)
class SnapshottableMap(State):
    """`MapState` and `Snapshottable` over one map state; everything else is what the map does.

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
        self.inner = inner = state_of(map_state)
        self.facts, self.kind, self.place, self.kept_changes = (
            inner.facts,
            kind_of(inner),
            inner.place,
            inner.kept_changes,
        )

    def offers(self, method: str) -> bool:
        """Whether the map, or this class besides, has a method of its own in place of the default."""
        is_passed_on = getattr(type(self), method) is getattr(SnapshottableMap, method) and method not in _OF_A_VALUE
        return self.inner.offers(method) if is_passed_on else super().offers(method)

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
        if not self.inner.offers("multi_get_at"):
            raise UnsupportedOperation(
                f"read as of batch {snapshot.txid}: a {type(self.map_state).__name__} keeps the latest value only; "
                "use an opaque state, or get() for the latest write"
            )
        (value,) = self.inner.multi_get_at([self.snapshot_key], snapshot)
        return value

    def update(self, updater: ValueUpdater[Any]) -> Any:
        """Update the single value and return the new one."""
        (value,) = self.map_state.multi_update([self.snapshot_key], [updater])
        return value

    def set(self, value: Any) -> None:
        self.map_state.multi_put([self.snapshot_key], [value])


def committed_map(state: Any) -> CommittedMap | None:
    """Return the map over a backing map that a state is, or forwards to; None if it is not one."""
    found = state.inner if isinstance(state, SnapshottableMap) else state
    return found if isinstance(found, CommittedMap) else None
