"""What is stored per key, and the rule by which a commit or a reader takes it (R6, R12); copies for user code (R13).

The rule, `OpaqueValue.stands_before`, is the whole of the exactly-once promise; everything else only makes sure that it is
asked with the right txid, attempt and winners. `stand_before` is the same rule for many values at once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from copy import deepcopy
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast
from uuid import UUID

from trident.errors import CorruptValueError
from trident.state.interfaces import ValueUpdater
from trident.state.txid import Snapshot, Winners

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

V = TypeVar("V")

Combine = Literal["sum", "min", "max", "mean"]
"""What `Count` and `Sum`, `Min`, `Max` do with the stored value and the new one, for stores that take columns.

Of a struct each field has one of them: "mean" is made of the two fields behind it, a sum and a count, once these are combined.
"""

UNKNOWN_ATTEMPT = -1
"""The attempt of a value that was stored without one, by Storm: it counts as the one that won, which is Storm's rule."""


class OpaqueValue(NamedTuple):
    """`[txid, attempt, prev, curr]`: `attempt` of batch `txid` wrote `curr`; `prev` is the value before.

    Storm stores no attempt, so it cannot tell a value of a failed attempt from a committed one once the txid has moved
    on (H1). The fourth field and the log's winners close this gap.
    """

    txid: int
    attempt: int
    prev: Any
    curr: Any

    def stands_before(self, txid: int, winners: Winners) -> bool:
        """Whether `curr`, and not `prev`, is the value before batch `txid`: an earlier batch wrote it, and won."""
        # If `txid` itself wrote it, that was an earlier attempt, or a retried task of this one.
        if self.txid >= txid:
            return False
        return winners.won(self.txid, self.attempt) or self.attempt == UNKNOWN_ATTEMPT

    def at(self, snapshot: Snapshot) -> Any:
        """Return the value as of a committed snapshot that is at most one batch behind this write (R12)."""
        return self.curr if self.stands_before(snapshot.txid + 1, snapshot.winners) else self.prev


class TransactionalValue(NamedTuple):
    """`[txid, value]`: `value` includes batch `txid`."""

    txid: int
    value: Any

    def includes(self, txid: int) -> bool:
        """Whether batch `txid` is in the value already, so that a replay of it must not be applied again."""
        return self.txid == txid


def stand_before(
    txids: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64], txid: int, winners: Winners
) -> npt.NDArray[np.bool_]:
    """Answer `OpaqueValue.stands_before` for each of many values (int64, shape (n,)), as bool, shape (n,)."""
    stand: npt.NDArray[np.bool_] = winners.won_each(txids, attempts) | (attempts == UNKNOWN_ATTEMPT)
    return stand & (txids < txid)


class CombinerValueUpdater(Generic[V]):
    """Combines what is stored with the batch's partial aggregate; the partial alone where nothing is stored."""

    __slots__ = ("arg", "combine")

    def __init__(self, combine: Callable[[V, V], V], arg: V) -> None:
        self.combine, self.arg = combine, arg

    def update(self, stored: V | None) -> V:
        return self.arg if stored is None else self.combine(stored, self.arg)


class CombinerUpdates(Sequence[CombinerValueUpdater[V]]):
    """The updaters of many keys as one object: a batch has as many as keys, and most maps need none of them made.

    `combine_all` combines two lists of values, faster than `combine` one by one; `is_pure`: neither changes what it is given,
    so what is stored need not be copied. `check` is called with all values before any is put, and raises for one that must
    not be; `checked` are the last ones that passed.
    """

    def __init__(
        self,
        combine: Callable[[V, V], V],
        args: Sequence[V],
        combine_all: Callable[[Sequence[V], Sequence[V]], list[V]] | None = None,
        is_pure: bool = False,
        check: Callable[[Sequence[V]], None] | None = None,
    ) -> None:
        self._combine, self._args, self._combine_all, self._is_pure = combine, args, combine_all, is_pure
        self._check = check
        self.checked: Sequence[V] | None = None

    def update_all(self, stored: list[V | None]) -> list[V]:
        """Return what each updater would give for its stored value; nothing of `stored` is changed."""
        values = self._values(stored)
        if self._check is not None:
            self._check(values)
            self.checked = values
        return values

    def _values(self, stored: list[V | None]) -> list[V]:
        combine = self._combine
        if not self._is_pure:
            stored = own_all(stored)
        if self._combine_all is not None:
            if None not in stored:
                return self._combine_all(cast("list[V]", stored), self._args)
            there = [at for at, old in enumerate(stored) if old is not None]
            olds: Sequence[Any] = [stored[at] for at in there]
            combined = list(self._args)
            for at, value in zip(there, self._combine_all(olds, [self._args[at] for at in there]), strict=True):
                combined[at] = value
            return combined
        return [arg if old is None else combine(old, arg) for old, arg in zip(stored, self._args, strict=True)]

    def __len__(self) -> int:
        return len(self._args)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return CombinerUpdates(self._combine, self._args[at], self._combine_all, self._is_pure)
        return CombinerValueUpdater(self._combine, self._args[at])


class ReducerValueUpdater(Generic[V]):
    """Folds the batch's tuples over what is stored, or over `init()` where nothing is."""

    __slots__ = ("init", "reduce", "tuples")

    def __init__(self, init: Callable[[], V], reduce: Callable[[V, Any], V], tuples: list[Any]) -> None:
        self.init, self.reduce, self.tuples = init, reduce, tuples

    def update(self, stored: V | None) -> V:
        value = self.init() if stored is None else stored
        for tuple_ in self.tuples:
            value = self.reduce(value, tuple_)
        return value


_IMMUTABLE: frozenset[type[Any]] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, Decimal, UUID, dt.date, dt.datetime, dt.time, dt.timedelta)
)


def own_all(bases: list[Any]) -> list[Any]:
    """Return values that updaters and readers may change in place."""
    return bases if _IMMUTABLE.issuperset(map(type, bases)) else list(map(own, bases))


def own(base: Any) -> Any:
    """Return a value that an updater or a reader may change in place: a copy, unless it is immutable."""
    if type(base) in _IMMUTABLE or (type(base) is tuple and all(type(part) in _IMMUTABLE for part in base)):
        return base
    if type(base) is dict and _IMMUTABLE.issuperset(map(type, base.values())):
        return base.copy()
    if type(base) is memoryview:  # as what stores keep of it
        return bytes(base)
    try:
        return deepcopy(base)
    except TypeError as error:
        raise CorruptValueError(
            f"copy a value of type {type(base).__name__}: {error}. A state keeps data; of a memoryview give bytes"
        ) from error


def values_to_store(values: list[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
    """Return the values to store: copies, unless an aggregate made them, because the user may change the others later."""
    if type(updaters) is CombinerUpdates:  # `isinstance` of an abstract class takes longer than the update of a key
        return values
    return values if updaters and type(updaters[0]) in (CombinerValueUpdater, ReducerValueUpdater) else own_all(values)
