"""Says who may write a partition (R8, R9): the record of its sentinel, which is replaced only by compare-and-set.

Beside it are the errors and warnings that all stores word alike.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trident.errors import CorruptValueError, FencedError, StateError, StateLossDetected, UnsupportedOperation
from trident.state.backing_map import warnings_left
from trident.state.sentinel import check_move, displaced
from trident.state.txid import Sentinel

N = TypeVar("N")
_UNREAD = b""  # no record is empty
_TYPES = (str, int, int, str, bool, str)  # of the fields of a sentinel


class SentinelRecord(NamedTuple, Generic[N]):
    """A sentinel and the notes of the store."""

    sentinel: Sentinel
    notes: N


class RecordCodec(Protocol[N]):
    """Turns records into bytes and back. The same record must always give the same bytes, because they are compared."""

    def encode(self, record: SentinelRecord[N]) -> bytes:
        """Return the bytes of a record."""

    def decode(self, data: bytes, what: str) -> SentinelRecord[N]:
        """Return the record of bytes; raise `CorruptValueError`, which names `what`, if they are not a record."""


def sentinel_of(fields: Any, what: str) -> Sentinel:
    """Return the sentinel of its stored fields, a list in the order of `Sentinel`; `CorruptValueError`: they are not such."""
    if isinstance(fields, list) and len(fields) == len(_TYPES) and all(map(is_, map(type, fields), _TYPES)):
        return Sentinel(*fields)
    raise no_sentinel(fields, what)


def no_sentinel(found: Any, what: str) -> CorruptValueError:
    """Return the error for something else where a sentinel should be."""
    return CorruptValueError(
        f"read the sentinel of {what}: found {found!r:.80} in its place; another program wrote it. Restore it, or give "
        "the state another prefix"
    )


def _dump_json(fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class FieldsCodec:
    """A record as one list of fields; the notes are a tuple.

    `fields` are the names in the order in which they are stored: those of `Sentinel`, and any others for the notes; `dumps`
    and `loads` make bytes of the list, and it of them.
    """

    fields: tuple[str, ...] = Sentinel._fields
    dumps: Callable[[Any], bytes] = _dump_json
    loads: Callable[[bytes], Any] = json.loads

    def encode(self, record: SentinelRecord[tuple[Any, ...]]) -> bytes:
        own, notes = record.sentinel._asdict(), iter(record.notes)
        return self.dumps([own[name] if name in own else next(notes) for name in self.fields])

    def decode(self, data: bytes, what: str) -> SentinelRecord[tuple[Any, ...]]:
        try:
            found = self.loads(data)
        except (ValueError, TypeError, CorruptValueError) as error:
            raise no_sentinel(data, what) from error
        if not isinstance(found, list) or len(found) != len(self.fields):
            raise no_sentinel(data, what)
        stored = dict(zip(self.fields, found, strict=True))
        sentinel = sentinel_of([stored.pop(name) for name in Sentinel._fields], what)
        return SentinelRecord(sentinel, tuple(stored.values()))


class Register(ABC):
    """One value of a store that is replaced only by compare-and-set."""

    @abstractmethod
    def read(self) -> bytes | None:
        """Return what the register holds; None: nothing."""

    @abstractmethod
    def swap(self, found: bytes | None, new: bytes) -> bytes | None:
        """Write `new` if the register holds `found` (None: nothing); return what it holds then: `new` if that was done.

        A swap that is sent again, because no answer came, finds `found` or its own value.
        """

    def look(self) -> bytes | None:
        """Return what the register holds after the last swap that was answered. A store may have a cheaper way than `read`."""
        return self.read()


class RecordFence(Generic[N]):
    """The sentinel of one partition: read, moved and compared; for a `BackingMap` that fences, with a `Register`.

    `what` is the state, partition and server, for messages; `own` is the record that this writer wrote last; None: none.
    """

    def __init__(self, register: Register, codec: RecordCodec[N], what: str) -> None:
        self._register, self._codec, self._what = register, codec, what
        self.own: SentinelRecord[N] | None = None
        self._own_data = _UNREAD
        self._seen: bytes | None = _UNREAD  # what the register held when this writer read it or replaced it last

    def read(self) -> SentinelRecord[N] | None:
        """Return the record in the store."""
        self._seen = self._register.read()
        return self._decode(self._seen)

    def check_move(self, sentinel: Sentinel, force: bool = False) -> SentinelRecord[N] | None:
        """Return the record that `lay` would replace: the one that was read or written last, or what is there now.

        Raises
        ------
        FencedError, StatePlaceError
            The sentinel may not follow that record.
        """
        found = self._decode(self._last_seen())
        before = None if found is None else found.sentinel
        check_move(self._what, sentinel, before, before, force)
        return found

    def lay(self, record: SentinelRecord[N]) -> None:
        """Replace the record that was read or written last; this instance is the writer from now on.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError, BackendError
            Something else is there. Nothing was written.
        """
        seen, data = self._last_seen(), self._codec.encode(record)
        now = self._register.swap(seen, data)
        if now != data:
            raise self.displaced(record.sentinel, now, seen)
        self.own, self._own_data, self._seen = record, data, data

    def check(self) -> None:
        """Make sure that the record of this writer is still there, if it has written any; raise as `lay` does."""
        if self.own is None:
            return
        data = self._register.look()
        if data != self._own_data:
            raise self.displaced(self.own.sentinel, data, self._own_data)

    def forget(self) -> None:
        """Stop being the writer, and forget what was read."""
        self.own, self._own_data, self._seen = None, _UNREAD, _UNREAD

    def _last_seen(self) -> bytes | None:
        if self._seen == _UNREAD:
            self._seen = self._register.read()
        return self._seen

    def displaced(self, own: Sentinel, data: bytes | None, seen: bytes | None) -> StateError | FencedError:
        """Return the error of a writer that wanted to lay `own` over `seen` and finds `data`."""
        found, before = self._decode(data), self._decode(seen)
        return displaced(
            self._what, own, None if found is None else found.sentinel, None if before is None else before.sentinel
        )

    def _decode(self, data: bytes | None) -> SentinelRecord[N] | None:
        return None if data is None else self._codec.decode(data, self._what)


_warned: set[tuple[str, str]] = set()


def refuse_read_only(read_only: bool, doing: str, what: str) -> None:
    """Raise `UnsupportedOperation` if the instance was opened read-only. Call it first in every method that writes.

    `doing`, `what`: "write 10 keys", "move the sentinel"; the state, its partition and the server.
    """
    if read_only:
        raise UnsupportedOperation(f"cannot {doing}: {what} was opened to be read only")


def warn_once(logger: logging.Logger, server: str, risk: str, level: int = logging.WARNING) -> None:
    """Log a warning about what a server may lose, once per process, server and risk; a worker leaves it to the driver."""
    if (server, risk) not in _warned:
        _warned.add((server, risk))
        logger.log(logging.DEBUG if warnings_left() else level, "%s: %s", server, risk)


def warn_of_eviction(logger: logging.Logger, what: str, loss: str, allowed: bool) -> None:
    """Warn that keys were evicted, if the user allows it (`allow_eviction`); else raise `StateLossDetected`."""
    if not allowed:
        raise StateLossDetected(what, loss)
    logger.warning("%s: %s; a key that was evicted begins again as if it had never been written", what, loss)
