"""What the checks of one run of the suite share: the end of its time, and the removal of what they wrote."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from trident.state.backing_map import BackingMap
from trident.state.interfaces import Key, StateConf

RUN_PREFIX = f"contract-{uuid4().hex[:8]}-"
"""What the names of this process's topologies start with."""

_AT_ONCE = 1000


class OutOfTime(BaseException):
    """The time of the run is over. Not an `Exception`: a check that expects errors must not take it for one."""


@dataclass
class SuiteRun:
    """One run.

    `until`: the time of `time.monotonic` after which no map is opened.
    `clean`: called with the configuration of a state whose values are no longer needed; None: the maps empty themselves.
    `left`: how many keys stayed in the store, by state.
    """

    until: float = math.inf
    clean: Callable[[StateConf], Any] | None = None
    left: dict[str, int] = field(default_factory=dict)
    _written: dict[str, set[Key]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def check_time(self) -> None:
        """Raise `OutOfTime` if the time is over."""
        if self.is_over:
            raise OutOfTime

    def note(self, conf: StateConf, backing: BackingMap) -> None:
        """Remember what is put into a map that cannot empty itself."""
        if self.clean is not None or backing.offers("reset"):
            return
        written, put = self._written.setdefault(conf.prefix, set()), backing.multi_put

        def noted(keys: Iterable[Key], values: Any) -> None:
            keys = list(keys)
            written.update(keys)
            put(keys, values)

        with suppress(AttributeError):  # a class with __slots__: what it leaves is not known
            backing.multi_put = noted  # type: ignore[method-assign]

    def empty(self, conf: StateConf, backing: BackingMap) -> None:
        """Remove what was written to a state."""
        keys = list(self._written.pop(conf.prefix, ()))
        if keys:
            self.left[conf.prefix] = len(keys)  # until they are removed
        if self.clean is not None:
            self.clean(conf)
        elif backing.offers("reset"):
            backing.reset()
        elif backing.offers("multi_delete"):
            for start in range(0, len(keys), _AT_ONCE):
                backing.multi_delete(keys[start : start + _AT_ONCE])
        else:
            return
        self.left.pop(conf.prefix, None)
