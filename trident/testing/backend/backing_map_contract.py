"""BackingMapContract: what every backing map must do."""

from __future__ import annotations

from trident.testing.backend.contract_basics import MapBasics
from trident.testing.backend.contract_sharing import MapSharing
from trident.testing.backend.contract_types import MapTypes

__all__ = ["BackingMapContract"]


class BackingMapContract(MapBasics, MapTypes, MapSharing):
    """What every `IBackingMap` must do. Subclass it, set `factory`, and let pytest run it.

    Examples
    --------
    >>> from states.memory import MemoryMapState
    >>> class TestMemoryMap(BackingMapContract):
    ...     factory = MemoryMapState
    >>> TestMemoryMap().test_answers_come_in_the_order_asked()
    """
