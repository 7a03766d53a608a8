"""One form for all equal keys, so that equal keys are one key in every store and are in one partition (R11).

In a dict `-0.0` and `0.0` are one key, and so is one instant in two time zones; in a store that compares bytes they are
not. So
keys are brought into one form before they are encoded: datetimes with a zone in UTC, decimals without trailing zeros,
zero without a sign, and every NaN the same NaN. Types differ: 1, 1.0, True and Decimal(1) are four keys.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from itertools import chain
from typing import Any
from uuid import UUID

from trident.state.encoding.extensions import plain_number
from trident.state.interfaces import Key

__all__ = ["canonical", "canonical_key", "canonical_keys", "one_nan"]

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # normalizing must not round
_ONE_FORM = frozenset((str, int, bool, bytes, type(None), dt.date, dt.timedelta, UUID))


def canonical_keys(keys: Sequence[Key]) -> Sequence[Key]:
    """Return the keys in their one form; the very keys where all fields are of types that have only one."""
    if _ONE_FORM.issuperset(map(type, chain.from_iterable(keys))):
        return keys
    return [canonical_key(key) for key in keys]


def canonical_key(key: Key) -> Key:
    """Return the one form of a key."""
    return tuple(map(canonical, key))


def one_nan(keys: Sequence[Key]) -> Sequence[Key]:
    """Return the keys with each NaN made the one object `math.nan`, which a dict finds again; no NaN equals another."""
    if float not in set(map(type, chain.from_iterable(keys))):
        return keys
    return [tuple(math.nan if part != part else part for part in key) for key in keys]


def canonical(part: Any) -> Any:
    """Return the one form of all values of a type that are equal to `part`."""
    if type(part) in _ONE_FORM:
        return part
    if isinstance(part, float):
        return part + 0.0 if part == part else math.nan
    if isinstance(part, dt.datetime):
        # fold distinguishes two readings of one naive time, but == ignores it.
        return part.replace(fold=0) if part.tzinfo is None else part.astimezone(dt.UTC)
    if isinstance(part, Decimal):
        return _decimal(part)
    if isinstance(part, tuple):
        return tuple(map(canonical, part))
    if isinstance(part, frozenset):
        return frozenset(map(canonical, part))
    number = plain_number(part)
    return part if number is None else canonical(number)


def _decimal(part: Decimal) -> Decimal:
    if not part.is_finite():
        return part
    return part.normalize(_EXACT) if part else Decimal(0)
