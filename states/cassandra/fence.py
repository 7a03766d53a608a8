"""The sentinel of one partition as a fence: who may write, and with which timestamps (R8, R9)."""

from __future__ import annotations

import os
from typing import Any

from states.cassandra.stamps import FLOOR_BUCKET, Registers, Stamps
from trident.errors import BackendError
from trident.state.encoding.codec import decode, encode
from trident.state.txid import Sentinel
from trident.storekit import FieldsCodec, Record, RecordFence, Register

__all__ = ["RECORD", "Fence"]

_TRIES = 8
RECORD = FieldsCodec(("incarnation", "txid", "attempt", "floor", "token", "place", "sealed", "run"), encode, decode)
"""The token distinguishes two runs of the same attempt."""


class Fence:
    """The sentinel of one partition, which moves by condition only.

    Parameters
    ----------
    registers, partition
        The registers of the state, and the number of the partition.
    what
        The state and its place, for messages.
    """

    def __init__(self, registers: Registers, partition: int, what: str) -> None:
        self._register, self._what = _SentinelRegister(registers, FLOOR_BUCKET - 1 - partition), what
        self._record = RecordFence(self._register, RECORD, what)
        self.stamps = Stamps(registers)
        self.check = self._record.check
        self.release = self._record.forget  # later writes are not fenced

    @property
    def own(self) -> Sentinel | None:
        """The sentinel that this instance claimed last; None if it claimed none."""
        return None if self._record.own is None else self._record.own.sentinel

    def read(self) -> Sentinel | None:
        """Return the sentinel in the store."""
        found = self._record.read()
        return None if found is None else found.sentinel

    def claim(self, sentinel: Sentinel, force: bool = False) -> int:
        """Replace the record that was read or claimed last; return the stamp for writes under the sentinel.

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
        found, own = self._record.check_move(sentinel, force), self._record.own
        if own is not None and own == found and own.sentinel == sentinel and not own.sentinel.sealed and not force:
            floor, token = own.notes  # the seal of its own commit
        else:
            floor, token = self._floor(found, sentinel, force), os.urandom(8)
        self._record.lay(Record(sentinel, (floor, token)))
        return int(floor) + sentinel.version

    def clear(self) -> None:
        """Remove the sentinel."""
        self._record.forget()
        data = self._register.read()
        for _ in range(_TRIES):
            if data is None:
                return
            data = self._register.swap(data, None)
        raise BackendError(f"{self._what}: other writers moved the sentinel {_TRIES} times meanwhile; try again")

    def _floor(self, found: Record[tuple[Any, ...]] | None, sentinel: Sentinel, force: bool) -> int:
        if force or (found is not None and found.sentinel == sentinel):
            # The version does not rise with this move, so the floor must.
            return self.stamps.raise_floor(sentinel.incarnation, sentinel.version)
        return self.stamps.floor(sentinel.incarnation, sentinel.version, 0 if found is None else found.notes[0])


class _SentinelRegister(Register):
    """The record of one partition among the registers of its state."""

    def __init__(self, registers: Registers, bucket: int) -> None:
        self._registers, self._bucket = registers, bucket

    def read(self) -> bytes | None:
        return self._registers.read(self._bucket)

    def look(self) -> bytes | None:
        return self._registers.look(self._bucket)

    def swap(self, found: bytes | None, new: bytes | None) -> bytes | None:
        return self._registers.swap(self._bucket, found, new)
