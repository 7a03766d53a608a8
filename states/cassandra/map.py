"""CassandraBackingMap: rows, fence and timestamps together, as one backing map; of bytes, or of declared columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from states.cassandra.cluster_session import borrow, give_back
from states.cassandra.cql_columns import BytesColumns, CqlColumns
from states.cassandra.fence import CassandraFence, CassandraRegister, timestamp
from states.cassandra.options import CassandraOptions, table_name
from states.cassandra.schema import TableForm, open_table
from states.cassandra.statements import StateRows
from trident.errors import CommitOrderError, StateError
from trident.roles import close_on_error
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.table import OpaqueTable
from trident.state.txid import Sentinel, Txid
from trident.storekit import refuse_read_only


class CassandraBackingMap(BackingMap):
    """One partition of a state in a table: a backing map that keeps its own sentinel. Used by one thread at a time.

    It connects when it is made. In a forked child it connects again when it is first used.

    `conf`: the names of the topology and the state; `read_only`.
    `partition`: the place of its sentinel. The place of a key does not depend on it.
    `columns`: None: what it puts and gives are bytes; of declared fields they are what the kind of the state stores.
    """

    facts = MapFacts(shares_keys=True)

    def __init__(
        self,
        options: CassandraOptions,
        conf: StateConf | None = None,
        partition: int = 0,
        columns: CqlColumns | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        if columns is not None:
            self.facts = replace(self.facts, gives_copies=True, has_typed_columns=True)
        self._columns = columns or BytesColumns()
        self._is_opaque = columns is not None and columns.kind is StateType.OPAQUE
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

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Read many keys: one entry per key, in the order asked, None where never written."""
        self._at_home()
        return self._rows.get(keys) if keys else []

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read opaque values as `multi_get` does, as a table; None: what is stored is bytes, or of another kind."""
        return OpaqueTable.of(self.multi_get(keys)) if self._is_opaque else None

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write many keys; return once a quorum has them on its commit logs.

        Raises `FencedError`: another writer has moved the sentinel. Earlier writes lose against the other writer's.
        Raises `StateLossDetected`: the sentinel is gone.
        Raises `BackendError`: no answer, or a refusal; any part may be written. Writing the same again is harmless.
        """
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        if keys:
            at = self._next_timestamp("write")
            self._rows.put(keys, values, at, self._fence.check)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored. Fenced as `multi_put` is."""
        if keys:
            at = self._next_timestamp("delete")
            self._rows.delete(keys, at, self._fence.check)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of all partitions of the state, 1,000 a page."""
        self._at_home()
        return self._rows.pages()

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
        self._connection = connection = borrow(options)
        with close_on_error(partial(give_back, connection)):
            form = TableForm.of(self._columns, options.buckets)
            table = open_table(connection, options, self._table, form, conf)
            self._rows = StateRows(connection, options, table, self._columns, conf.prefix)
            registers = partial(CassandraRegister, connection, table, conf.prefix, options)
            self._fence = CassandraFence(registers, self._partition, self._what)

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
