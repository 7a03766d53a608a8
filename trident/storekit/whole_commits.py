"""A backing map over a store with transactions: all puts of a commit and its sentinel are one write (R8, R9).

Such a store says in a class of `StoredRows` how rows of bytes are read and written; `WholeCommitMap` is the map over it.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from trident.errors import BackendError, CommitOrderError, TridentError
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.codec import decode_keys, encode_keys
from trident.state.interfaces import Key, StateConf
from trident.state.kinds import LaterWrite
from trident.state.txid import Sentinel, Txid
from trident.storekit.record_fence import FieldsCodec, RecordFence, Register, SentinelRecord, refuse_read_only

Puts = dict[bytes, bytes | None]
"""The values to write, by key; None deletes."""


class InTransaction(NamedTuple):
    """A write to be made in another's transaction: on its connection, or as a part of its statement; see `LaterWrite`."""

    write: Callable[[Any], bool]
    clause: Callable[[], tuple[bytes, Mapping[str, Any]] | None]


class StoredRows(ABC):
    """The rows of one state, each a key and a value, in a store with transactions. Used by one thread at a time.

    The first byte of an encoded key is a control character; the key of a sentinel begins with a letter. A store with keys and
    values of its own form overrides the methods after `close`. `max_key_bytes`: the longest key that the store takes; None:
    any.
    """

    max_key_bytes: ClassVar[int | None] = None

    @abstractmethod
    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of the keys that exist."""

    @abstractmethod
    def write(self, puts: Puts, sentinel: bytes = b"", found: bytes | None = None, new: bytes = b"") -> bool:
        """Write all or nothing, in one transaction.

        If a sentinel's key is given, its row must be `found` (None: absent) and becomes `new`; False: it is not, nothing was
        written.
        """

    @abstractmethod
    def pages(self) -> Iterator[Sequence[bytes]]:
        """Iterate over the keys, page by page, except the keys of sentinels."""

    @abstractmethod
    def empty(self) -> None:
        """Delete all rows, the sentinels' too."""

    @abstractmethod
    def close(self) -> None:
        """Release connections; a later call opens them again."""

    def read_sentinel(self, key: bytes) -> bytes | None:
        """Return the row of a sentinel; None: there is none."""
        return self.read([key]).get(key)

    def write_later(self, puts: Puts, sentinel: bytes, found: bytes | None, new: bytes) -> InTransaction:
        """Return what writes as `write` does, in another's transaction; for a store that is in the database of a log."""
        raise NotImplementedError

    def names(self, keys: Sequence[Key]) -> list[Any]:
        """Return keys as `read` and `write` have them."""
        return encode_keys(keys)

    def keys(self, names: Sequence[Any]) -> list[Key]:
        """Return the keys of names."""
        return decode_keys(names)

    def longest(self, names: Sequence[Any]) -> tuple[int, Any]:
        """Return how many bytes the longest of some names has at most, and that name."""
        name = max(names, key=len, default=b"")
        return len(name), name


class _SentinelRow(Register):
    """The row of a partition's sentinel; `puts` are written together with it, or not at all."""

    def __init__(self, rows: StoredRows, key: bytes) -> None:
        self._rows, self._key = rows, key
        self.puts: Puts = {}
        self.later: Callable[[bytes | None, InTransaction], None] | None = None

    def read(self) -> bytes | None:
        return self._rows.read_sentinel(self._key)

    def swap(self, found: bytes | None, new: bytes) -> bytes | None:
        if self.later is not None:
            self.later(found, self._rows.write_later(self.puts, self._key, found, new))
            return new
        return new if self._rows.write(self.puts, self._key, found, new) else self.read()


class WholeCommitMap(BackingMap):
    """One partition's view of a map of bytes, with its sentinel. Used by one thread at a time.

    Within `begin` … `end` puts and deletions are collected and become one transaction at `end`; outside, each `multi_put` and
    `multi_delete` is a transaction of its own. Partitions share the rows; each has a sentinel, `sentinel:0` …. `what` is the
    state, its partition and the server, for messages.
    """

    facts = MapFacts(commits_atomically=True, shares_keys=True)  # no seal: rows and sentinel are one transaction

    def __init__(self, rows: StoredRows, conf: StateConf, partition: int, what: str) -> None:
        self._rows, self._read_only, self._what = rows, conf.read_only, what
        self._row = _SentinelRow(rows, b"sentinel:%d" % partition)
        # The token distinguishes a write whose answer was lost from another run of the same attempt.
        self._fence = RecordFence(self._row, FieldsCodec((*Sentinel._fields, "token")), what)
        self._claim: Sentinel | None = None  # what each write lays; None: a write compares nothing
        self._puts: Any = None  # of the commit that has begun: `Puts`, or what the rows take besides
        self._later: Callable[[LaterWrite], None] | None = None
        self.is_written: Sentinel | None = None  # with a record, by this writer, and not looked at since

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        names = self._rows.names(keys)
        return list(map(self._rows.read(names).get, names))

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self._put(f"write {len(keys)} keys", dict(zip(self._rows.names(keys), values, strict=True)))

    def multi_delete(self, keys: Sequence[Key]) -> None:
        self._put(f"delete {len(keys)} keys", dict.fromkeys(self._rows.names(keys)))

    def key_pages(self) -> Iterator[Sequence[Key]]:
        return map(self._rows.keys, self._rows.pages())

    def begin(self, txid: Txid) -> None:
        """Begin a commit under the sentinel that was moved to it; one without a log compares nothing."""
        refuse_read_only(self._read_only, "begin a commit", self._what)
        if self._claim != txid.sentinel:
            self._claim = None
        self._puts = {}

    def commit_with_record(self, later: Callable[[LaterWrite], None]) -> None:
        """Leave the writes of commits to `later` from now on; see `MapFacts`."""
        self._later = later

    def end(self, txid: Txid) -> None:
        """Write the puts and the sentinel in one transaction, all or nothing: now, or with the record."""
        puts, self._puts = self._puts, None
        if puts is None:
            raise CommitOrderError(f"end of batch {txid!s} without its begin: {self._what}")
        later, claim = self._later, self._claim
        if later is not None and claim is not None:
            self._row.later = lambda found, write: later(
                LaterWrite(*write, partial(self._note, claim), partial(self._refusal, claim, found))
            )
        try:
            self._write(puts)
        finally:
            self._row.later = None

    def read_sentinel(self) -> Sentinel | None:
        known, self.is_written, self._puts = self.is_written, None, None
        if known is not None:  # the next write finds out if it is gone, before anything is written
            return known
        found = self._fence.read()
        return None if found is None else found.sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Claim the partition for the commit that `begin` starts next; `force` lays the sentinel at once."""
        refuse_read_only(self._read_only, "move the sentinel", self._what)
        self._fence.check_move(sentinel, force)
        self._puts, self._claim = None, sentinel
        if force:
            self._lay(sentinel, {})

    def reset(self) -> None:
        """Remove all keys of the state, of every partition, and all sentinels."""
        refuse_read_only(self._read_only, "empty the state", self._what)
        self._rows.empty()
        self._fence.forget()
        self._puts = self._claim = None

    def close(self) -> None:
        self._puts = None
        self._rows.close()

    def _note(self, written: Sentinel) -> None:
        self.is_written = written

    def _refusal(self, own: Sentinel, found: bytes | None) -> Exception:
        """Return why `own` could not be laid over `found`, in the transaction of the record."""
        try:
            return self._fence.displaced(own, self._row.read(), found)
        except TridentError as error:
            return error

    def _put(self, doing: str, puts: Puts) -> None:
        refuse_read_only(self._read_only, doing, self._what)
        (size, longest), most = self._rows.longest(list(puts)), self._rows.max_key_bytes
        if most is not None and size > most:
            raise BackendError(
                f"{doing}: the key {self._rows.keys([longest])[0]!r:.80} … has {size} bytes, and the store takes "
                f"{most}; group by something shorter: {self._what}",
                retryable=False,
            )
        if self._puts is not None:
            self._puts.update(puts)
        elif puts:
            self._write(puts)

    def _write(self, puts: Puts) -> None:
        if self._claim is None:
            self._rows.write(puts)
        else:
            self._fence.check_move(self._claim)  # the sentinel may have been read again since
            self._lay(self._claim, puts)

    def _lay(self, sentinel: Sentinel, puts: Puts) -> None:
        self._row.puts = puts
        self._fence.lay(SentinelRecord(sentinel, (os.urandom(8).hex(),)))
