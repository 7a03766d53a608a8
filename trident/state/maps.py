"""The three kinds of maps over any two-method backing map, by their names.

`map_commits.py` is the life cycle of a commit, `opaque_map.py` and `transactional_maps.py` are the rules of the kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trident.state.interfaces import IBackingMap, StateType, state_type
from trident.state.map_commits import CommittedMap
from trident.state.opaque_map import OpaqueMap
from trident.state.transactional_maps import NonTransactionalMap, TransactionalMap

__all__ = ["NonTransactionalMap", "OpaqueMap", "TransactionalMap", "map_for"]

_KINDS: dict[StateType, Callable[..., CommittedMap]] = {
    StateType.OPAQUE: OpaqueMap,
    StateType.TRANSACTIONAL: TransactionalMap,
    StateType.NON_TRANSACTIONAL: NonTransactionalMap,
}


def map_for(kind: StateType | str, backing: IBackingMap[Any], name: str, partition: int) -> Any:
    """Return the map of `kind` over `backing`."""
    return _KINDS[state_type(kind)](backing, name, partition)
