"""The end of a file that may not be whole: what is known of it, how long it is waited for, and whether it may be read.

What cannot be whole is held. What may be whole is a guess once the file has not changed for a while; the definition says so,
and it is taken back if the file goes on before the batch is committed.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

WAIT_S = 10.0
STEPS = 4  # of a megabyte: what a look at the files may take of the driver
STEP = 1 << 20
_ALWAYS_CHECKED = 64 << 20
_YOUNG_S = 3600.0


class End(Enum):
    """What the bytes behind the last line end are: the state of the end of a file, as long as it does not change."""

    OPEN = "they cannot be whole, and are held"
    MAYBE = "they may be whole, and are waited for; then they are a guess"
    WHOLE = "nothing can be added to them"


Check = Iterator[End | None]
"""Looks at a whole file in steps of about a megabyte: None until it knows."""


@dataclass
class TailRule:
    """How ends of files are waited for."""

    tail: float | Literal["hold"]  # seconds without a change; "hold": a line is never given without its end
    follows: bool  # files may grow
    now: Callable[[], float]  # seconds since 1970
    steps: int = STEPS  # how much may still be checked at this look


class Tail:
    """The end of one file."""

    def __init__(self, rule: TailRule) -> None:
        self.rule, self._mtime_ns = rule, 0
        self.start, self.size = 0, -1  # the bytes behind the last line end
        # Since when it is as it is, as far as this driver knows, and by its own word; whether a warning says that it is left.
        self.since, self.changed, self.is_told = 0.0, 0.0, False
        self._end: End | None = None  # None: not known yet
        self._check: Check | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is held until the file changes, and no longer only waited for."""
        return self._end is End.OPEN

    @property
    def is_quiet(self) -> bool:
        """Whether the file has not changed for as long as is waited for, with `"hold"` a whole file."""
        return self.rule.now() - self.since >= (WAIT_S if self.rule.tail == "hold" else self.rule.tail)

    def sees(self, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) == (self.size, self._mtime_ns):
            return
        now = self.rule.now()
        # Of a change that was seen here, or in the future, the time is another clock's.
        self.since = now if self.size >= 0 or status.st_mtime > now else status.st_mtime
        self.changed = min(self.since, status.st_mtime)
        self.size, self._mtime_ns = status.st_size, status.st_mtime_ns
        self._end, self._check, self.is_told = None, None, False

    def hold(self, start: int) -> None:
        self.start, self._end = start, End.OPEN

    def may_be_read(self, start: int, end_of: Callable[[], End]) -> tuple[bool, bool]:
        """Whether the bytes from `start` on may be given as a line, and whether that is a guess."""
        if not self.rule.follows:
            return True, False
        if self._end is None or start != self.start:
            self.start, self._end = start, End.OPEN if self.rule.tail == "hold" else end_of()
        return self._end is End.WHOLE or (not self.is_held and self.is_quiet), self._end is End.MAYBE

    def may_be_read_whole(self, check: Callable[[], Check]) -> bool:
        if not self.rule.follows or not self.is_quiet:
            return not self.rule.follows
        if self._end is None and (self.size <= _ALWAYS_CHECKED or self.rule.now() - self.since < _YOUNG_S):
            self._check = self._check or check()
            while self._end is None and self.rule.steps > 0:
                self.rule.steps -= 1
                self._end = next(self._check, End.MAYBE)
            if self._end is None:
                return False
        return not self.is_held

    def __str__(self) -> str:
        why = "not whole" if self.is_held else "without a line end"
        return f"{self.size - self.start} bytes behind byte {self.start} are {why}"


def gz_end(path: str) -> Check:
    """Find out whether a compressed file ends where one of its members does; what is wrong in it is for its reader to say."""
    unpacked, at_end = zlib.decompressobj(wbits=31), False
    with Path(path).open("rb") as file:
        try:
            while data := file.read(STEP):
                has_more = False
                while data or has_more:
                    has_more = len(unpacked.decompress(data, STEP)) == STEP
                    data, at_end = unpacked.unconsumed_tail, unpacked.eof
                    if at_end:
                        data, unpacked = unpacked.unused_data.lstrip(b"\0"), zlib.decompressobj(wbits=31)
                yield None
        except zlib.error:
            at_end = True
    yield End.MAYBE if at_end else End.OPEN
