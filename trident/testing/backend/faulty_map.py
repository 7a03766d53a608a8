"""A store that fails where a test asks for it: before a call, in the middle of it, after it, or with the reply lost."""

import random
from collections.abc import Callable
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

from trident.errors import BackendError
from trident.state.backing_map import BackingMap
from trident.state.forwarding import MapWrapper, passed_on
from trident.state.interfaces import IBackingMap

P = ParamSpec("P")
R = TypeVar("R")
How = Literal["before", "middle", "after", "lost_reply"]
_HOWS: tuple[How, ...] = get_args(How)


class InjectedFault(BackendError):
    """A failure that a test asked for."""


class Faults:
    """The failures that are to come, for any number of maps that share this object.

    `seed`: for drawing when or how a call fails, where `fail` does not say.
    `fired`: `"multi_put middle"` … for each failure that happened, in one of so many `calls`.
    """

    def __init__(self, seed: object = 0) -> None:
        self.calls = 0
        self.fired: list[str] = []
        self._random = random.Random(str(seed))
        self._at: dict[int, How] = {}

    def fail(self, at: int | None = None, how: How | None = None) -> None:
        """Let the n-th call from now on fail, 1 being the next one; drawn from 1 to 16 if not given.

        `how`, drawn if not given: `"before"`: nothing is done. `"middle"`: half of the keys are written. `"after"`: all is
        done, then the caller dies. `"lost_reply"`: all is done, the caller gets a timeout.
        """
        if at is not None and at < 1:
            raise ValueError(f"at={at}: the next call is 1")
        if how is not None and how not in _HOWS:
            raise ValueError(f"how={how!r}: use one of {', '.join(map(repr, _HOWS))}")
        when = self._random.randint(1, 16) if at is None else at
        self._at[self.calls + when] = self._random.choice(_HOWS) if how is None else how

    def clear(self) -> None:
        """Forget the failures that have not happened."""
        self._at.clear()

    def next_call(self, method: str) -> How | None:
        """Count a call; return how it is to fail, None if it is not."""
        self.calls += 1
        how = self._at.pop(self.calls, None)
        if how is not None:
            self.fired.append(f"{method} {how}")
        return how


def _failing(declared: Callable[Concatenate[Any, P], R], halves: bool = False) -> Callable[Concatenate[Any, P], R]:
    """Return a method of a `FaultyMap` that calls that of its map, or fails; `halves`: perhaps in the middle of its lists."""
    name = declared.__name__
    pass_on: Any = passed_on(declared)

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        how = self.faults.next_call(name) if self.offers(name) else None
        if how is None:
            result: R = pass_on(self, *args, **kwargs)
            return result
        if how == "middle" and halves:
            half: list[Any] = [one[: len(one) // 2] for one in args]  # type: ignore[index,arg-type]
            if half[0]:
                pass_on(self, *half)
        elif how in ("after", "lost_reply"):
            pass_on(self, *args, **kwargs)
        if how == "lost_reply":
            raise InjectedFault(f"{name}: no answer within the time allowed; the store may have done it")
        raise InjectedFault(f"{name}: failed {how} the call" if how != "middle" else f"{name}: failed in the middle")

    method.__name__, method.__doc__ = name, declared.__doc__
    return method


class FaultyMap(MapWrapper):
    """Passes every call to a map and fails as `faults` says; in the middle of a put or a deletion half of the keys are done.

    It takes part in commits, keeps a sentinel, deletes, lists and is emptied exactly if the map can.
    """

    def __init__(self, delegate: IBackingMap[Any], faults: Faults) -> None:
        super().__init__(delegate)
        self.delegate, self.faults = delegate, faults

    multi_get = _failing(BackingMap.multi_get)
    multi_put = _failing(BackingMap.multi_put, halves=True)
    multi_delete = _failing(BackingMap.multi_delete, halves=True)
    begin = _failing(BackingMap.begin)
    end = _failing(BackingMap.end)
    read_sentinel = _failing(BackingMap.read_sentinel)
    move_sentinel = _failing(BackingMap.move_sentinel)
    key_pages = _failing(BackingMap.key_pages)
    reset = _failing(BackingMap.reset)
