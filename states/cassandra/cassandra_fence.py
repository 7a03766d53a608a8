"""The sentinel of one partition as a fence: who may write, and with which timestamps (R8, R9).

Where a state has a table with columns, its sentinels are in another table. So each has a witness: a row that the last commit
wrote. A sentinel whose witness is not in the table any more counts as none, so a table that was emptied, dropped or brought
back from a backup is found although its sentinels are still there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from states.cassandra.stamps import FLOOR_BUCKET, TRIES, CassandraRegister, Stamps
from states.cassandra.statements import ColumnRows
from trident.errors import BackendError
from trident.state.encoding.codec import decode, encode, encode_keys
from trident.state.interfaces import Key
from trident.state.txid import Sentinel
from trident.storekit import FieldsCodec, RecordFence, Register, SentinelRecord

_FIELDS = ("incarnation", "txid", "attempt", "floor", "token", "place", "sealed", "run")
"""The token distinguishes two runs of the same attempt."""
RECORD = FieldsCodec(_FIELDS, encode, decode)
WITNESSED = FieldsCodec((*_FIELDS, "witness"), encode, decode)


class CassandraFence:
    """The sentinel of one partition, which moves by condition only.

    `register_of`: returns the register of a bucket.
    `partition`: its number.
    `what`: the state and its place, for messages.
    `rows`: the rows of a table with columns, among which witnesses are; None: rows and registers are in one table.
    """

    def __init__(
        self, register_of: Callable[[int], CassandraRegister], partition: int, what: str, rows: ColumnRows | None = None
    ) -> None:
        self._register, self._what, self._rows = register_of(FLOOR_BUCKET - 1 - partition), what, rows
        self._witness: bytes | None = None  # the first row that the commit under way has written
        if rows is None:
            self._record = RecordFence(self._register, RECORD, what)
        else:
            self._record = RecordFence(_WitnessedRegister(self._register, self._is_there), WITNESSED, what)
        self.stamps = Stamps(register_of(FLOOR_BUCKET), rows.refuse_rows if rows is not None else lambda: None)
        self.check = self._record.check
        self.release = self._record.forget  # later writes are not fenced

    @property
    def own(self) -> Sentinel | None:
        """The sentinel that this instance claimed last; None if it claimed none."""
        return None if self._record.own is None else self._record.own.sentinel

    def read(self) -> Sentinel | None:
        """Return the sentinel in the store."""
        record = self._record.read()
        return None if record is None else record.sentinel

    def claim(self, sentinel: Sentinel, force: bool = False) -> int:
        """Replace the record that was read or claimed last; return the stamp for writes under the sentinel.

        `sentinel`, `force`: forward, or anywhere with `force`. The own sentinel, sealed, keeps its stamp.
        Raises `FencedError`: another writer has moved the sentinel, or it would go back.
        Raises `StateLossDetected`: it is gone, or was rolled back. Nothing was changed.
        """
        found, own = self._record.check_move(sentinel, force), self._record.own
        if own is not None and own == found and own.sentinel == sentinel and not own.sentinel.sealed and not force:
            floor, token = own.notes[:2]  # the seal of its own commit
        else:
            floor, token = self._floor(found, sentinel, force), os.urandom(8)
            self._witness = None
        self._lay(sentinel, floor, token, None if found is None or force else found)
        return int(floor) + sentinel.version

    def wrote(self, key: Key, stored: Any) -> None:
        """Let the row that the commit wrote first be the next witness: a loss in the middle of its writes takes it as well."""
        if self._rows is not None and self._witness is None:
            self._witness = self._rows.witness_of(key, stored)

    def let_go(self, keys: Sequence[Key]) -> None:
        """Have no witness among keys that are going to be deleted."""
        own, names = self._record.own, set(encode_keys(keys))
        if self._witness is not None and decode(self._witness)[1] in names:
            self._witness = None
        if own is not None and own.notes[2] is not None and decode(own.notes[2])[1] in names:
            floor, token, _ = own.notes
            self._lay(own.sentinel, floor, token, None)

    def clear(self) -> None:
        """Remove the sentinel, whatever its witness is."""
        self._record.forget()
        data = self._register.read()
        for _ in range(TRIES):
            if data is None:
                return
            data = self._register.swap(data, None)
        raise BackendError(f"{self._what}: other writers moved the sentinel {TRIES} times meanwhile; try again")

    def _lay(
        self, sentinel: Sentinel, floor: int, token: bytes, before: SentinelRecord[tuple[Any, ...]] | None
    ) -> None:
        """Lay a record; without a row of its own its witness is that of the record before."""
        notes: tuple[Any, ...] = (floor, token)
        if self._rows is not None:
            notes += (self._witness or (None if before is None else before.notes[2]),)
        self._record.lay(SentinelRecord(sentinel, notes))

    def _is_there(self, data: bytes) -> bool:
        """Whether the table still has what was written last under a record."""
        assert self._rows is not None
        own, witness = self._record.own, WITNESSED.decode(data, self._what).notes[2]
        if own is not None and WITNESSED.encode(own) == data and self._witness is not None:
            witness = self._witness
        return witness is None or self._rows.has(witness)

    def _floor(self, record: SentinelRecord[tuple[Any, ...]] | None, sentinel: Sentinel, force: bool) -> int:
        if force or (record is not None and record.sentinel == sentinel):
            # The version does not rise with this move, so the floor must.
            return self.stamps.raise_floor(sentinel.incarnation, sentinel.version)
        return self.stamps.floor(sentinel.incarnation, sentinel.version, 0 if record is None else record.notes[0])


class _WitnessedRegister(Register):
    """A record that counts as none if its witness is gone."""

    def __init__(self, register: Register, is_there: Callable[[bytes], bool]) -> None:
        self._register, self._is_there = register, is_there
        self._dead: bytes | None = None  # the record that was found without its witness

    def read(self) -> bytes | None:
        return self._alive(self._register.read())

    def look(self) -> bytes | None:
        return self._alive(self._register.look())

    def swap(self, found: bytes | None, new: bytes) -> bytes | None:
        return self._register.swap(self._dead if found is None else found, new)

    def _alive(self, data: bytes | None) -> bytes | None:
        self._dead = None if data is None or self._is_there(data) else data
        return None if self._dead is not None else data
