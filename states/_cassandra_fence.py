"""The sentinel of one partition as a fence: who may write, and with which timestamps (R8, R9)."""

from __future__ import annotations

import os
from typing import NamedTuple

from states._cassandra_stamps import FLOOR_BUCKET, Cells, Stamps
from trident.errors import BackendError, CorruptValueError, FencedError, StateLossDetected
from trident.state.codec import decode, encode
from trident.state.txid import Sentinel

__all__ = ["Fence"]

_TRIES = 8


class _Claim(NamedTuple):
    """What the cell of a sentinel holds. The token tells two runs of the same attempt apart."""

    sentinel: Sentinel
    floor: int
    token: bytes

    @property
    def data(self) -> bytes:
        return encode([*self.sentinel[:3], self.floor, self.token])

    @property
    def stamp(self) -> int:
        return self.floor + self.sentinel.version


class Fence:
    """One partition's place in the store, moved by condition only.

    Parameters
    ----------
    cells, partition
        Where the sentinel lies.
    what
        The state and its place, for messages.
    """

    def __init__(self, cells: Cells, partition: int, what: str) -> None:
        self._cells, self._bucket, self._what = cells, FLOOR_BUCKET - 1 - partition, what
        self.stamps = Stamps(cells)
        self._own: _Claim | None = None
        self._read: list[bytes | None] = []  # what the cell held when it was read last, until that is used

    @property
    def own(self) -> Sentinel | None:
        """The sentinel that this instance claimed last; None if it claimed none."""
        return None if self._own is None else self._own.sentinel

    def read(self) -> Sentinel | None:
        """Return the sentinel in the store."""
        self._read = [self._cells.read(self._bucket)]
        found = _claim(self._read[0])
        return None if found is None else found.sentinel

    def claim(self, sentinel: Sentinel, force: bool = False) -> int:
        """Move the sentinel forward, or anywhere with `force`; return the stamp of what is written under it.

        Raises
        ------
        FencedError
            The store has one that is not behind. Nothing was changed.
        """
        self._own = None
        # What was read before may be outdated by now; then the swap fails and tells what there is.
        data = self._read.pop() if self._read else self._cells.read(self._bucket)
        for _ in range(_TRIES):
            found = _claim(data)
            if not force and found is not None and not _is_behind(found.sentinel, sentinel):
                raise FencedError(self._what, str(sentinel), str(found.sentinel))
            claim = _Claim(sentinel, self._floor(found, sentinel, force), os.urandom(8))
            data = self._cells.swap(self._bucket, data, claim.data)
            if data == claim.data:
                self._own = claim
                return claim.stamp
        raise BackendError(f"{self._what}: other writers moved the sentinel {_TRIES} times meanwhile; try again")

    def check(self) -> None:
        """Make sure that the claim, if there is one, still stands.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel.
        StateLossDetected
            There is no sentinel any more.
        """
        if self._own is None:
            return
        data = self._cells.look(self._bucket)
        if data == self._own.data:
            return
        found = _claim(data)
        if found is None:
            raise StateLossDetected(self._what, f"the sentinel of {self._own.sentinel} is gone")
        again = " (another run of it)" if found.sentinel == self._own.sentinel else ""
        raise FencedError(self._what, str(self._own.sentinel), f"{found.sentinel}{again}")

    def release(self) -> None:
        """Forget the claim; what is written next is not fenced."""
        self._own = None

    def clear(self) -> None:
        """Remove the sentinel."""
        self._own = None
        data = self._cells.read(self._bucket)
        for _ in range(_TRIES):
            if data is None:
                return
            data = self._cells.swap(self._bucket, data, None)
        raise BackendError(f"{self._what}: other writers moved the sentinel {_TRIES} times meanwhile; try again")

    def _floor(self, found: _Claim | None, sentinel: Sentinel, force: bool) -> int:
        if force or (found is not None and found.sentinel == sentinel):
            # The version does not rise with this move, so the floor must.
            return self.stamps.raise_floor(sentinel.incarnation, sentinel.version)
        return self.stamps.floor(sentinel.incarnation, sentinel.version, 0 if found is None else found.floor)


def _is_behind(found: Sentinel, own: Sentinel) -> bool:
    if found.incarnation != own.incarnation:
        return False
    return found.txid <= own.txid and found.attempt <= own.attempt


def _claim(data: bytes | None) -> _Claim | None:
    if data is None:
        return None
    fields = decode(data)
    if not isinstance(fields, list) or len(fields) != 5:
        raise CorruptValueError(f"a sentinel is {fields!r}, not [incarnation, txid, attempt, floor, token]")
    return _Claim(Sentinel(*fields[:3]), fields[3], fields[4])
