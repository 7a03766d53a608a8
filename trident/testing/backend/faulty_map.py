"""A store that fails where a test asks for it: before a call, in the middle of it, after it, or with the reply lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

from trident.errors import BackendError
from trident.state.interfaces import IBackingMap, Key
from trident.state.txid import Sentinel, Txid
from trident.state.wrappers.forwarding import MapWrapper

How = Literal["before", "middle", "after", "lost_reply"]
_HOWS: tuple[How, ...] = get_args(How)
_FARTHEST = 16


class InjectedFault(BackendError):
    """A failure that a test asked for."""


class Faults:
    """The failures that are to come, for any number of maps that share this object.

    Parameters
    ----------
    seed
        For drawing when or how a call fails, where `fail` does not say.

    Attributes
    ----------
    calls
        How many calls there were.
    fired
        `"multi_put middle"` … for each failure that happened.
    """

    def __init__(self, seed: object = 0) -> None:
        self.calls = 0
        self.fired: list[str] = []
        self._random = random.Random(str(seed))
        self._at: dict[int, How] = {}

    def fail(self, at: int | None = None, how: How | None = None) -> None:
        """Let the n-th call from now on fail.

        Parameters
        ----------
        at
            1 is the next call; drawn from 1 to 16 if not given.
        how
            `"before"`: nothing is done. `"middle"`: half of the keys are written. `"after"`: all is done, then the
            caller dies. `"lost_reply"`: all is done, the caller gets a timeout. Drawn if not given.
        """
        if at is not None and at < 1:
            raise ValueError(f"at={at}: the next call is 1")
        if how is not None and how not in _HOWS:
            raise ValueError(f"how={how!r}: use one of {', '.join(map(repr, _HOWS))}")
        when = self._random.randint(1, _FARTHEST) if at is None else at
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


class FaultyMap(MapWrapper):
    """Passes every call to a map and fails as `faults` says.

    It takes part in commits, keeps a sentinel, deletes, lists and is emptied exactly if the map can.
    """

    def __init__(self, delegate: IBackingMap[Any], faults: Faults) -> None:
        super().__init__(delegate)
        self.delegate, self.faults = delegate, faults

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        answer: Sequence[Any] = self._call("multi_get", self.delegate.multi_get, None, keys)
        return answer

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write, or fail; in the middle means the first half of the keys."""
        put = self.delegate.multi_put
        self._call("multi_put", put, _half_of(put), keys, values)

    def begin(self, txid: Txid) -> None:
        self._call("begin", super().begin, None, txid)

    def end(self, txid: Txid) -> None:
        self._call("end", super().end, None, txid)

    def read_sentinel(self) -> Sentinel | None:
        sentinel: Sentinel | None = self._call("read_sentinel", super().read_sentinel, None)
        return sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        self._call("move_sentinel", super().move_sentinel, None, sentinel, force)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        pages: Iterator[Sequence[Key]] = self._call("key_pages", super().key_pages, None)
        return pages

    def reset(self) -> None:
        self._call("reset", super().reset, None)

    def keeps_attempts(self) -> bool:
        return bool(self._call("keeps_attempts", super().keeps_attempts, None))

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete, or fail; in the middle means the first half of the keys."""
        delete = super().multi_delete
        self._call("multi_delete", delete, _half_of(delete), keys)

    def _call(self, name: str, method: Callable[..., Any], half: Callable[..., None] | None, *args: Any) -> Any:
        how = self.faults.next_call(name) if self.offers(name) else None
        if how is None:
            return method(*args)
        if how == "middle" and half is not None:
            half(*args)
        elif how in ("after", "lost_reply"):
            method(*args)
        if how == "lost_reply":
            raise InjectedFault(f"{name}: no answer within the time allowed; the store may have done it")
        raise InjectedFault(f"{name}: failed {how} the call" if how != "middle" else f"{name}: failed in the middle")


def _half_of(method: Callable[..., Any]) -> Callable[..., None]:
    def half(*lists: Sequence[Any]) -> None:
        some = [one[: len(one) // 2] for one in lists]
        if some[0]:
            method(*some)

    return half
