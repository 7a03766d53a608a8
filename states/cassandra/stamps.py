"""Registers, which are replaced by condition only, and write timestamps that come from one of them.

Of two writes of one value Cassandra keeps the one with the higher timestamp. A timestamp here is not a time::

    (floor + version) << 18 | number

`version` is `Sentinel.version`, which rises with every commit of one log. `number` counts the puts and deletes of a
commit, because Cassandra would decide between writes of the same timestamp by their bytes. `floor` is one number for
the whole state, stored in a register. It rises above everything handed out before when the state is emptied or adopted,
when another log writes it, or when the same attempt is run again. The register also holds the `ceiling` that no version
handed out so far has reached, so the floor can be raised without knowing which writer wrote what.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from states.cassandra.cluster_session import CassandraConnection, UnknownOutcome
from states.cassandra.options import CassandraOptions
from trident.errors import BackendError, CorruptValueError, UnsupportedOperation
from trident.state.encoding.codec import decode, encode
from trident.storekit import Register

FLOOR_BUCKET = -1
"""The bucket of the register with the floor; sentinels have buckets below it, keys above."""

_NUMBER_BITS = 18
PUTS_PER_COMMIT = 1 << _NUMBER_BITS
"""How many puts and deletes of one commit can have different timestamps."""

_STAMPS = 1 << (63 - _NUMBER_BITS)
_STEP = 1 << 24  # the versions between two raises of the ceiling: sixteen starts of a driver
TRIES = 8


class CassandraRegister(Register):
    """One row in a bucket of its own, read and written through Paxos, so never stale.

    A value must differ from all others ever written, because it shows whether a write without answer was made.
    """

    def __init__(
        self, connection: CassandraConnection, table: str, state: str, options: CassandraOptions, bucket: int
    ) -> None:
        local = options.write_consistency.startswith("LOCAL")
        quorum, serial = ("LOCAL_QUORUM", "LOCAL_SERIAL") if local else ("QUORUM", "SERIAL")
        where = "WHERE state = ? AND bucket = ? AND key = ?"
        self._connection, self._row, self._what = (
            connection,
            (state, bucket, b""),
            f"a record of state {state!r} in {table}",
        )
        self._look = connection.prepare(f"SELECT value FROM {table} {where}", quorum)
        self._read = connection.prepare(f"SELECT value FROM {table} {where}", serial)
        self._swap = connection.prepare(f"UPDATE {table} SET value = ? {where} IF value = ?", quorum, serial=True)

    def read(self) -> bytes | None:
        """Return what the register holds, after deciding any write that is under way."""
        return self._value(self._read)

    def look(self) -> bytes | None:
        return self._value(self._look)

    def swap(self, found: bytes | None, new: bytes | None) -> bytes | None:
        bound = self._swap.bind((new, *self._row, found))
        for left in range(TRIES - 1, -1, -1):
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
        rows = self._connection.execute(statement.bind(self._row), f"read {self._what}")
        return rows[0][0] if rows else None


class _Range(NamedTuple):
    incarnation: str | None
    floor: int
    ceiling: int


class Stamps:
    """Gives out the ranges of timestamps.

    `register`: the one with the floor.
    `when_new`: called when there is no floor yet; raises if there should be one.
    """

    def __init__(self, register: Register, when_new: Callable[[], None]) -> None:
        self._register, self._when_new = register, when_new
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
            if found.incarnation != incarnation or found.floor < at_least:
                floor = max(found.ceiling, at_least)
            else:
                floor = found.floor
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
        if data is None:
            self._when_new()
        for _ in range(TRIES):
            fields = None if data is None else decode(data)
            if fields is not None and (not isinstance(fields, list) or len(fields) != 4):
                raise CorruptValueError(
                    f"the floor of timestamps is {fields!r}, not [incarnation, floor, ceiling, token]"
                )
            found = None if fields is None else _Range(*fields[:3])
            new = follow(found)
            if new.ceiling >= _STAMPS:
                raise UnsupportedOperation(
                    f"the write timestamps of a state are used up: {new}; give it another prefix"
                )
            if new == found:
                return new
            wanted = encode([*new, os.urandom(8)])  # different from what any other writer asks for at the same time
            data = self._register.swap(data, wanted)
            if data == wanted:
                return new
        raise BackendError(f"other writers changed the floor of timestamps {TRIES} times meanwhile; try again")


def timestamp(stamp: int, number: int) -> int:
    """Return the write timestamp of the `number`-th put of a commit with that stamp (floor + version)."""
    if number >= PUTS_PER_COMMIT:
        raise UnsupportedOperation(
            f"more than {PUTS_PER_COMMIT} puts in one commit: put more keys at once, or make batches smaller"
        )
    return stamp << _NUMBER_BITS | number
