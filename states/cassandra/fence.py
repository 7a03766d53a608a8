"""The sentinel of one partition as a fence: who may write, and with which timestamps (R8, R9)."""

from __future__ import annotations

import os
from typing import NamedTuple

from states.cassandra.stamps import FLOOR_BUCKET, Cells, Stamps
from trident.errors import BackendError, CorruptValueError
from trident.state.encoding.codec import decode, encode
from trident.state.sentinel import displaced, is_forward
from trident.state.txid import Sentinel

__all__ = ["Fence"]

_TRIES = 8
_UNREAD = b""  # no sentinel is empty


class _Claim(NamedTuple):
    """What the cell of a sentinel holds. The token tells two runs of the same attempt apart."""

    sentinel: Sentinel
    floor: int
    token: bytes

    @property
    def data(self) -> bytes:
        incarnation, txid, attempt, place, sealed = self.sentinel
        return encode([incarnation, txid, attempt, self.floor, self.token, place, sealed])

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
        self._seen: bytes | None = _UNREAD  # what the cell held when this instance read it or moved it last

    @property
    def own(self) -> Sentinel | None:
        """The sentinel that this instance claimed last; None if it claimed none."""
        return None if self._own is None else self._own.sentinel

    def read(self) -> Sentinel | None:
        """Return the sentinel in the store."""
        self._seen = self._cells.read(self._bucket)
        found = _claim(self._seen)
        return None if found is None else found.sentinel

    def claim(self, sentinel: Sentinel, force: bool = False) -> int:
        """Replace what was read or claimed last; return the stamp of what is written under the sentinel.

        Parameters
        ----------
        sentinel, force
            Forward, or anywhere with `force`. The own sentinel, sealed, keeps its stamp.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel, or it would go back.
        StateLossDetected
            It is gone, or was rolled back. Nothing was changed.
        """
        own, self._own = self._own, None
        if self._seen == _UNREAD:
            self._seen = self._cells.read(self._bucket)
        found = _claim(self._seen)
        if found is not None and not force and not is_forward(found.sentinel, sentinel):
            raise displaced(self._what, sentinel, found.sentinel, found.sentinel)
        if own is not None and own == found and own.sentinel == sentinel and not own.sentinel.sealed and not force:
            claim = own._replace(sentinel=sentinel)  # the seal of its own commit
        else:
            claim = _Claim(sentinel, self._floor(found, sentinel, force), os.urandom(8))
        data = self._cells.swap(self._bucket, self._seen, claim.data)
        if data != claim.data:
            raise self._displaced(sentinel, data, found)
        self._own, self._seen = claim, data
        return claim.stamp

    def check(self) -> None:
        """Make sure that the claim, if there is one, still stands.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel.
        StateLossDetected
            There is no sentinel any more, or an older one.
        """
        if self._own is None:
            return
        data = self._cells.look(self._bucket)
        if data != self._own.data:
            raise self._displaced(self._own.sentinel, data, self._own)

    def release(self) -> None:
        """Forget the claim; what is written next is not fenced."""
        self._own = None

    def clear(self) -> None:
        """Remove the sentinel."""
        self._own, self._seen = None, _UNREAD
        data = self._cells.read(self._bucket)
        for _ in range(_TRIES):
            if data is None:
                return
            data = self._cells.swap(self._bucket, data, None)
        raise BackendError(f"{self._what}: other writers moved the sentinel {_TRIES} times meanwhile; try again")

    def _displaced(self, own: Sentinel, data: bytes | None, seen: _Claim | None) -> Exception:
        found = _claim(data)
        return displaced(
            self._what, own, None if found is None else found.sentinel, None if seen is None else seen.sentinel
        )

    def _floor(self, found: _Claim | None, sentinel: Sentinel, force: bool) -> int:
        if force or (found is not None and found.sentinel == sentinel):
            # The version does not rise with this move, so the floor must.
            return self.stamps.raise_floor(sentinel.incarnation, sentinel.version)
        return self.stamps.floor(sentinel.incarnation, sentinel.version, 0 if found is None else found.floor)


def _claim(data: bytes | None) -> _Claim | None:
    if data is None:
        return None
    fields = decode(data)
    if not isinstance(fields, list) or len(fields) not in (5, 7):
        raise CorruptValueError(
            f"a sentinel is {fields!r}, not [incarnation, txid, attempt, floor, token, place, sealed]"
        )
    return _Claim(Sentinel(*fields[:3], *fields[5:]), fields[3], fields[4])  # earlier versions wrote five fields
