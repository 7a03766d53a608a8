"""The sentinel of one partition as a fence: who may write, and with which timestamps (R8, R9).

Of two writes of one value Cassandra keeps the one with the higher timestamp. A timestamp here is not a time::

    (floor + version) << 18 | number

`version` is `Sentinel.version`, which rises with every commit of one log. `number` counts the puts and deletes of a commit,
because Cassandra would decide between writes of the same timestamp by their bytes. `floor` is one number for the whole state,
stored in a register. It rises above everything handed out before when the state is emptied or adopted, when another log
writes it, or when the same attempt is run again. The register also holds the `ceiling` that no version handed out so far has
reached, so the floor can be raised without knowing which writer wrote what.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from states.cassandra.cluster_session import CassandraConnection, UnknownOutcome
from states.cassandra.options import CassandraOptions
from states.cassandra.schema import PARTITION, RECORD
from trident.errors import BackendError, CorruptValueError, UnsupportedOperation
from trident.state.encoding.codec import decode, encode
from trident.state.txid import Sentinel
from trident.storekit import FieldsCodec, RecordFence, Register, SentinelRecord

FLOOR_BUCKET = -1  # the bucket of the register with the floor; sentinels have buckets below it, rows above
_NUMBER_BITS = 18
PUTS_PER_COMMIT = 1 << _NUMBER_BITS  # how many puts and deletes of one commit can have different timestamps
_STAMPS = 1 << (63 - _NUMBER_BITS)
_STEP = 1 << 24  # the versions between two raises of the ceiling: sixteen starts of a driver
_TRIES = 8
_FIELDS = ("incarnation", "txid", "attempt", "floor", "token", "place", "sealed", "run")
"""The token distinguishes two runs of the same attempt."""
CODEC = FieldsCodec(_FIELDS, encode, decode)


class CassandraFence:
    """The sentinel of one partition, which moves by condition only."""

    def __init__(self, register_of: Callable[[int], CassandraRegister], partition: int, what: str) -> None:
        self._register, self._what = register_of(FLOOR_BUCKET - 1 - partition), what
        self._record = RecordFence(self._register, CODEC, what)
        self.stamps = Stamps(register_of(FLOOR_BUCKET))
        self.check = self._record.check
        self.release = self._record.forget  # later writes are not fenced

    @property
    def own(self) -> Sentinel | None:
        """The sentinel that this instance claimed last; None if it claimed none."""
        return None if self._record.own is None else self._record.own.sentinel

    def read(self) -> Sentinel | None:
        record = self._record.read()
        return None if record is None else record.sentinel

    def claim(self, sentinel: Sentinel, force: bool = False) -> int:
        """Replace the record that was read or claimed last; return the stamp for writes under the sentinel."""
        found, own = self._record.check_move(sentinel, force), self._record.own
        if own is not None and own == found and own.sentinel == sentinel and not own.sentinel.sealed and not force:
            floor, token = own.notes  # the seal of its own commit
        else:
            floor, token = self._floor(found, sentinel, force), os.urandom(8)
        self._record.lay(SentinelRecord(sentinel, (floor, token)))
        return int(floor) + sentinel.version

    def clear(self) -> None:
        self._record.forget()
        data = self._register.read()
        for _ in range(_TRIES):
            if data is None:
                return
            data = self._register.swap(data, None)
        raise BackendError(f"{self._what}: other writers moved the sentinel {_TRIES} times meanwhile; try again")

    def _floor(self, record: SentinelRecord[tuple[Any, ...]] | None, sentinel: Sentinel, force: bool) -> int:
        if force or (record is not None and record.sentinel == sentinel):
            # The version does not rise with this move, so the floor must.
            return self.stamps.raise_floor(sentinel.incarnation, sentinel.version)
        return self.stamps.floor(sentinel.incarnation, sentinel.version, 0 if record is None else record.notes[0])


class CassandraRegister(Register):
    """The record of a bucket, read and written through Paxos, so never stale.

    A value must differ from all others ever written, because it shows whether a write without answer was made.
    """

    def __init__(
        self, connection: CassandraConnection, table: str, state: str, options: CassandraOptions, bucket: int
    ) -> None:
        local = options.write_consistency.startswith("LOCAL")
        quorum, serial = ("LOCAL_QUORUM", "LOCAL_SERIAL") if local else ("QUORUM", "SERIAL")
        where = "WHERE " + " AND ".join(f"{name} = ?" for name in PARTITION)
        self._connection, self._bucket = connection, (state, bucket)
        self._what = f"a record of state {state!r} in {table}"
        self._look = connection.prepare(f"SELECT {RECORD} FROM {table} {where}", quorum)
        self._read = connection.prepare(f"SELECT {RECORD} FROM {table} {where}", serial)
        self._swap = connection.prepare(f"UPDATE {table} SET {RECORD} = ? {where} IF {RECORD} = ?", quorum, serial=True)

    def read(self) -> bytes | None:
        """Return what the register holds, after deciding any write that is under way."""
        return self._value(self._read)

    def look(self) -> bytes | None:
        return self._value(self._look)

    def swap(self, found: bytes | None, new: bytes | None) -> bytes | None:
        bound = self._swap.bind((new, *self._bucket, found))
        for left in range(_TRIES - 1, -1, -1):
            try:
                answer = self._connection.execute(bound, f"move {self._what}")[0]
            except UnknownOutcome:
                current = self.read()
                if current != found or not left:
                    return current
                continue
            return new if answer[0] else answer[1] if len(answer) > 1 else None
        return found

    def _value(self, statement: Any) -> bytes | None:
        rows = self._connection.execute(statement.bind(self._bucket), f"read {self._what}")
        return rows[0][0] if rows else None


class _Range(NamedTuple):
    incarnation: str | None
    floor: int
    ceiling: int


class Stamps:
    """Gives out the ranges of timestamps, by the register with the floor."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._known: _Range | None = None

    def floor(self, incarnation: str, version: int, at_least: int = 0) -> int:
        """Return the floor for a commit; ask the store only if the known floor is not sufficient."""

        def fits(known: _Range) -> bool:
            return (
                known.incarnation == incarnation and known.floor >= at_least and known.floor + version < known.ceiling
            )

        if self._known is not None and fits(self._known):
            return self._known.floor

        def follow(found: _Range | None) -> _Range:
            if found is None:
                return _Range(incarnation, at_least, at_least + version + _STEP)
            if fits(found):
                return found
            is_usable = found.incarnation == incarnation and found.floor >= at_least
            floor = found.floor if is_usable else max(found.ceiling, at_least)
            return _Range(incarnation, floor, floor + version + _STEP)

        self._known = self._move(follow)
        return self._known.floor

    def raise_floor(self, incarnation: str | None, version: int) -> int:
        """Raise the floor above every timestamp given out so far; return it."""

        def follow(found: _Range | None) -> _Range:
            floor = 0 if found is None else found.ceiling
            return _Range(incarnation, floor, floor + version + (_STEP if incarnation is not None else 1))

        self._known = self._move(follow)
        return self._known.floor

    def _move(self, follow: Callable[[_Range | None], _Range]) -> _Range:
        data = self._register.read()
        for _ in range(_TRIES):
            fields = None if data is None else decode(data)
            if fields is not None and (not isinstance(fields, list) or len(fields) != 4):
                raise CorruptValueError(
                    f"the floor of timestamps is {fields!r}, not [incarnation, floor, ceiling, token]"
                )
            found = None if fields is None else _Range(*fields[:3])
            new = follow(found)
            if new.ceiling >= _STAMPS:
                raise UnsupportedOperation(f"a state's write timestamps are used up: {new}; give it another prefix")
            if new == found:
                return new
            wanted = encode([*new, os.urandom(8)])  # different from what any other writer asks for at the same time
            data = self._register.swap(data, wanted)
            if data == wanted:
                return new
        raise BackendError(f"other writers changed the floor of timestamps {_TRIES} times meanwhile; try again")


def timestamp(stamp: int, number: int) -> int:
    """Return the write timestamp of the `number`-th put of a commit with that stamp (floor + version)."""
    if number >= PUTS_PER_COMMIT:
        raise UnsupportedOperation(
            f"more than {PUTS_PER_COMMIT} puts in one commit: put more keys at once, or make batches smaller"
        )
    return stamp << _NUMBER_BITS | number
