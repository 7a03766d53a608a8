"""Copies of values: an updater and a reader get objects of their own, so that their changes in place are not stored (R13)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from copy import deepcopy
from decimal import Decimal
from typing import Any
from uuid import UUID

from trident.state.interfaces import ValueUpdater
from trident.state.values import CombinerUpdates, CombinerValueUpdater, ReducerValueUpdater

__all__ = ["kept", "own", "owned"]

_IMMUTABLE: frozenset[type[Any]] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, Decimal, UUID, dt.date, dt.datetime, dt.time, dt.timedelta)
)


def owned(bases: list[Any]) -> list[Any]:
    """Return values that updaters and readers may change in place."""
    return bases if _IMMUTABLE.issuperset(map(type, bases)) else list(map(own, bases))


def own(base: Any) -> Any:
    """Return a value that an updater or a reader may change in place: a copy, unless it is immutable."""
    if type(base) in _IMMUTABLE or (type(base) is tuple and all(type(part) in _IMMUTABLE for part in base)):
        return base
    return deepcopy(base)


def kept(values: list[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
    """Return the values to store: copies, unless an aggregate made them, because the user may change the others later."""
    if type(updaters) is CombinerUpdates:  # `isinstance` of an abstract class takes longer than the update of a key
        return values
    return values if updaters and type(updaters[0]) in (CombinerValueUpdater, ReducerValueUpdater) else owned(values)
