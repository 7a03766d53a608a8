"""The record of a sentinel: its bytes in a store, with the notes of the store beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trident.errors import CorruptValueError
from trident.state.txid import Sentinel

N = TypeVar("N")
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
    """Return the sentinel of its stored fields, a list in the order of `Sentinel`.

    Raises
    ------
    CorruptValueError
        They are not the fields of a sentinel.
    """
    if isinstance(fields, list) and len(fields) == len(_TYPES) and all(map(_is_of, fields, _TYPES)):
        return Sentinel(*fields)
    raise no_sentinel(fields, what)


def no_sentinel(found: Any, what: str) -> CorruptValueError:
    """Return the error for something else where a sentinel should be."""
    return CorruptValueError(
        f"read the sentinel of {what}: found {found!r:.80} in its place; another program wrote it. Restore it, or give "
        "the state another prefix"
    )


def _dump_json(fields: Any) -> bytes:
    """Return JSON without spaces, with non-ASCII letters as they are."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class FieldsCodec:
    """A record as one list of fields; the notes are a tuple.

    Attributes
    ----------
    fields
        The names in the order in which they are stored: the fields of `Sentinel`, and any others for the notes.
    dumps, loads
        From the list to bytes and back.
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


def _is_of(value: Any, expected: type) -> bool:
    return type(value) is expected
