"""CassandraBackingMap: rows, fence and timestamps together, as one backing map of bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from states.cassandra.cluster_session import borrow, give_back
from states.cassandra.options import CassandraOptions, table_name
from states.cassandra.row_statements import RowStatements
from states.cassandra.schema import open_table
from states.cassandra.stamps import FLOOR_BUCKET, Registers, Stamps, timestamp
from trident.errors import BackendError, CommitOrderError, StateError
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.codec import decode, decode_keys, encode, encode_keys
from trident.state.interfaces import Key, StateConf
from trident.state.txid import Sentinel, Txid
from trident.storekit import FieldsCodec, RecordFence, Register, SentinelRecord, refuse_read_only


class CassandraBackingMap(BackingMap):
    """One partition of a state in a table: a backing map that keeps its own sentinel. Used by one thread at a time.

    It connects when it is made. In a forked child it connects again when it is first used.

    Parameters
    ----------
    options
        See `CassandraOptions`.
    conf
        The names of the topology and the state; `read_only`.
    partition
        Number of the state partition: the place of its sentinel. The place of a key does not depend on it.
    """

    facts = MapFacts(shares_keys=True)

    def __init__(self, options: CassandraOptions, conf: StateConf | None = None, partition: int = 0) -> None:
        conf = StateConf() if conf is None else conf
        self._options, self._conf, self._partition = options, conf, partition
        self._table = options.table or table_name(conf.prefix)
        self._what = (
            f"partition {partition} of state {conf.prefix!r} in table {options.keyspace}.{self._table} of Cassandra at "
            f"{options.address}"
        )
        # The commit: the base of its timestamps. None: no commit has begun.
        self._stamp: int | None = None
        self._number = 0
        self._fenced = False  # after the first claim of a sentinel, or try of one, nothing is written without one
        self._closed = False
        self._open()

    # ---- reads and writes ----------------------------------------------------------------------------------------------

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Read many keys: one entry per key, in the order asked, None where never written."""
        self._at_home()
        return self._rows.get(encode_keys(keys)) if keys else []

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        """Write many keys; return once a quorum has them on its commit logs.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel. Earlier writes lose against the other writer's.
        StateLossDetected
            The sentinel is gone.
        BackendError
            No answer, or a refusal; any part may be written. Writing the same again is harmless.
        """
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        if keys:
            at = self._next_timestamp("write")
            self._rows.put(encode_keys(keys), values, at, self._fence.check)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored. Fenced as `multi_put` is."""
        if keys:
            at = self._next_timestamp("delete")
            self._rows.delete(encode_keys(keys), at, self._fence.check)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of all partitions of the state, 1,000 a page."""
        self._at_home()
        return map(decode_keys, self._rows.pages())

    # ---- commits --------------------------------------------------------------------------------------

    def begin(self, txid: Txid) -> None:
        """Begin a commit under the sentinel that was moved to it; one without a log is not fenced."""
        self._refuse_read_only("begin a commit")
        if txid.sentinel is None:
            self._begin_unfenced()
        elif self._fence.own != txid.sentinel:
            raise CommitOrderError(f"begin of batch {txid!s} without its sentinel: {self._what}")

    def end(self, txid: Txid) -> None:
        """End the commit. All is durable already; check once more that no other writer took over and nothing was lost."""
        if self._stamp is None:
            raise CommitOrderError(f"end of batch {txid!s} without its begin: {self._what}")
        self._at_home()
        self._fence.check()

    # ---- the sentinel ------------------------------------------------------------------------------------

    def read_sentinel(self) -> Sentinel | None:
        """Return the sentinel of this partition, None if there is none."""
        self._at_home()
        return self._fence.read()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that was read last by a lightweight transaction: forward, or anywhere with `force`."""
        self._refuse_read_only("move the sentinel")
        before, self._stamp, self._fenced = self._stamp, None, True
        stamp = self._fence.claim(sentinel, force)
        if stamp != before:  # otherwise it was sealed, and later writes belong to the same commit
            self._number = 0
        self._stamp = stamp

    def reset(self) -> None:
        """Delete every key of the state and the sentinel of this partition. Earlier writes stay deleted."""
        self._refuse_read_only("empty the state")
        self._stamp, self._fenced = None, False
        floor = self._fence.stamps.raise_floor(None, 0)
        self._rows.delete_all(timestamp(floor, 0))
        self._fence.clear()  # last, so that after a crash in between the sentinel still shows the mismatch

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            give_back(self._connection)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        options, conf = self._options, self._conf
        self._connection = borrow(options)
        try:
            table = open_table(self._connection, options, self._table, conf.read_only)
            self._rows = RowStatements(self._connection, table, conf.prefix, options)
            self._fence = CassandraFence(
                Registers(self._connection, table, conf.prefix, options), self._partition, self._what
            )
        except BaseException:
            give_back(self._connection)
            raise

    def _at_home(self) -> None:
        if self._closed:
            raise StateError(f"this instance was closed: {self._what}; make another one")
        if self._connection.process != os.getpid():
            self._stamp = None
            self._open()

    def _refuse_read_only(self, doing: str) -> None:
        refuse_read_only(self._conf.read_only, doing, self._what)
        self._at_home()

    def _begin_unfenced(self) -> None:
        self._fence.release()
        self._fenced = False
        self._stamp, self._number = self._fence.stamps.raise_floor(None, 0), 0

    def _next_timestamp(self, doing: str) -> int:
        self._refuse_read_only(doing)
        if self._stamp is None and not self._fenced:
            self._begin_unfenced()
        if self._stamp is None:
            raise CommitOrderError(f"cannot {doing} outside a commit: {self._what}")
        at = timestamp(self._stamp, self._number)
        self._number += 1
        return at


# The sentinel of one partition as a fence: who may write, and with which timestamps (R8, R9).

_TRIES = 8
RECORD = FieldsCodec(("incarnation", "txid", "attempt", "floor", "token", "place", "sealed", "run"), encode, decode)
"""The token distinguishes two runs of the same attempt."""


class CassandraFence:
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
        record = self._record.read()
        return None if record is None else record.sentinel

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
        self._record.lay(SentinelRecord(sentinel, (floor, token)))
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

    def _floor(self, record: SentinelRecord[tuple[Any, ...]] | None, sentinel: Sentinel, force: bool) -> int:
        if force or (record is not None and record.sentinel == sentinel):
            # The version does not rise with this move, so the floor must.
            return self.stamps.raise_floor(sentinel.incarnation, sentinel.version)
        return self.stamps.floor(sentinel.incarnation, sentinel.version, 0 if record is None else record.notes[0])


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
