"""Keeps the log of a topology in an object store: one object that is its head, and immutable ones with older records.

::

    <prefix>/head          the claim, the position, the names of chunks, the newest records
    <prefix>/chunks/…      {epoch:08d}-{segment:04d}-{first:08d}-{id}: records of a segment, from number `first` on
                           {epoch:08d}-{segment:04d}-{count:08d}-0: the last head of a segment that is kept as history
    <prefix>/conditions    what is put at each start to see that the store refuses it

The objects are frames, as in files (`framing.py`). The head is replaced only on condition that it is the one last seen
(`If-Match`; the first one `If-None-Match`). It is never removed, and has the id of a claim and a number that rises, so no
content of it comes twice: a condition that has failed once never holds again. An append is one such request; when the head is
full, its records go into a chunk before. A chunk is written before a head names it, and removed when no head will.

A request without an answer is made again. If it is refused then, the head tells whether the first one was carried out.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trident.coordination.framing import decode, encode, frame, read_frames
from trident.coordination.lock import SegmentName
from trident.coordination.log_state import CommittedUpTo
from trident.coordination.patience import Patience
from trident.coordination.record_store import Head, LogEnd
from trident.errors import CorruptLogError, LogError
from trident.extras import needs_package
from trident.object_stores import is_unanswered, short
from trident.servers.log_addresses import ObjectAddress
from trident.state.kinds import LaterWrite

T = TypeVar("T")
_Tag = dict[str, str]
logger = logging.getLogger(__name__)

FORMAT = "trident-log-head"
VERSION = 1
_HEAD, _CHUNKS, _CONDITIONS = "head", "chunks", "conditions"
_LAST_HEAD = "-0"  # an id that no chunk has
_CHUNK = re.compile(r"(\d{8,})-(\d{4,})-\d{8,}-[0-9a-f]+")
_TIMEOUT = {"timeout": "15s", "connect_timeout": "5s"}
_NEVER = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}


class _Chunk(NamedTuple):
    name: str
    length: int


@dataclass(frozen=True)
class _Body:
    """What the head holds besides the claim. `turn` counts the heads of one claim."""

    epoch: int
    id: str
    about: str
    position: LogEnd
    is_held: bool = True
    turn: int = 0
    chunks: tuple[_Chunk, ...] = ()
    records: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        (segment, count), about = self.position, vars(self) | {"format": FORMAT, "version": VERSION}
        del about["records"]
        return _framed([encode({**about, "position": [*segment, count]}), *self.records])

    @staticmethod
    def of(data: bytes, where: str) -> _Body:
        first, *records = _unframed(data, where)
        try:
            about = decode(first)
            if about.pop("format") != FORMAT:
                raise ValueError("it is not the head of a transaction log")
            if about.pop("version") != VERSION:
                raise LogError(f"{where} is of another format version; use the version that wrote the log")
            *segment, count = about["position"]
            chunks = tuple(_Chunk(*each) for each in about["chunks"])
            about |= {"position": LogEnd(SegmentName(*segment), count), "chunks": chunks}
            return _Body(**about, records=tuple(records))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLogError(where, 0, f"not a head of a log: {error}") from error


class _Found(NamedTuple):
    """An object, and what a condition names it by."""

    data: bytes
    tag: _Tag


class _UnderWayError(Exception):
    """The store was changing the object for another request."""


class ObjectRecords:
    """The log at an address.

    `head_bytes`: how many bytes of records the head holds before they go into a chunk.
    """

    head_bytes = 64 << 10

    def __init__(self, address: ObjectAddress) -> None:
        with needs_package("a log in an object store", "object-store", "obstore"):
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        self._obstore, self._errors = obstore, exceptions
        options: Any = {"client_options": {**_TIMEOUT, "allow_http": True}, "retry_config": {"max_retries": 0}}
        self._store: Any = from_url(address.url, **options)
        self._refusals = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)
        self.patience = Patience("the object store", address, self._away)
        self._address = address
        self._body: _Body | None = None  # of the head that this writer has put there
        self._tag: _Tag | None = None
        self._listed: list[tuple[SegmentName, str]] = []  # for the next `sweep`
        self._last_heads: dict[SegmentName, str] = {}  # of the segments that were listed last

    def look(self) -> Head | None:
        found = self._get(_HEAD)
        if found is None:
            return None
        body = _Body.of(found.data, self._place(_HEAD))
        return Head(body.epoch, body.id, body.about, body.position, (body, found.tag))

    def claim(self, before: Head | None, epoch: int, id: str, about: str) -> Head | None:
        self._check_conditions()
        nothing: tuple[_Body, Any] = _Body(0, "", "", LogEnd(SegmentName(0, 0), 0)), None
        while True:
            body, tag = nothing if before is None else before.inside
            body = replace(body, epoch=epoch, id=id, about=about, is_held=True, turn=0)
            if self._swap(body, tag):
                return Head(epoch, id, about, body.position)
            now = self.look()
            if before is None or now is None or now.id != before.id:
                return None
            before = now  # the driver before has appended meanwhile

    def has(self, claim: Head) -> bool:
        known = self._tag  # before the request: a thread may append meanwhile
        if known is not None and self._call(self._tag_of_head) == known.get("e_tag"):
            return True
        now = self.look()
        return now is not None and now.id == claim.id

    def is_held(self, claim: Head) -> bool:
        body, _ = claim.inside
        return bool(body.is_held)

    def release(self, claim: Head) -> None:
        body = self._body
        if body is None or body.id != claim.id or not body.is_held:
            return
        try:
            self._swap(replace(body, is_held=False, turn=body.turn + 1), self._tag)
        except LogError as error:
            logger.warning("transaction log %s: cannot say that its driver has ended: %s", self._address, error)

    def write(
        self, claim: Head, before: LogEnd, after: LogEnd, payloads: Sequence[bytes], committed: CommittedUpTo,
        beside: Sequence[LaterWrite] = (),
    ) -> bool:  # fmt: skip
        body = self._body
        assert body is not None, "a claim comes before a record"
        begins = after.segment != before.segment
        chunks, records = ((), tuple(payloads)) if begins else (body.chunks, (*body.records, *payloads))
        if begins or sum(map(len, records)) > self.head_bytes:
            chunks = (*chunks, self._put_chunk(after, records))
            records = ()
        new = replace(body, position=after, turn=body.turn + 1, chunks=chunks, records=records)
        return self._swap(new, self._tag)

    def read(self, head: Head, first: int) -> list[bytes] | None:
        body, _ = head.inside
        payloads: list[bytes] = []
        number = 0
        for chunk in body.chunks:
            number += chunk.length
            if number <= first:
                continue
            records = self._read_chunk(chunk)
            if records is None:
                return None
            payloads += records
        payloads += body.records
        return payloads[len(payloads) - (head.position.length - first) :]

    def keep(self) -> None:
        body = self._body
        assert body is not None, "a claim comes before a record"
        (segment, count) = body.position
        # A driver that was replaced may write it again: it has the same records, because no other one appended them.
        name = f"{_CHUNKS}/{segment.epoch:08d}-{segment.seq:04d}-{count:08d}{_LAST_HEAD}"
        self._call(lambda: self._put(name, body.to_bytes(), "overwrite"))

    def segments(self, before: SegmentName, most: int | None = None) -> list[SegmentName]:
        self._listed = self._list()
        self._last_heads = {
            segment: name for segment, name in self._listed if name.endswith(_LAST_HEAD) and segment < before
        }
        return sorted(self._last_heads)[:most]

    def read_old(self, segment: SegmentName, header_only: bool) -> Iterator[bytes]:
        name = self._last_heads.get(segment)
        found = None if name is None else self._get(name)
        if name is None or found is None:
            return
        body = _Body.of(found.data, self._place(name))
        for chunk in body.chunks[:1] if header_only else body.chunks:
            records = self._read_chunk(chunk)
            if records is None:
                if self._get(name) is None:
                    return  # the history is being shortened: last heads go first
                raise CorruptLogError(self._place(chunk.name), 0, "the object is missing")
            yield from records
        yield from body.records

    def _read_chunk(self, chunk: _Chunk) -> list[bytes] | None:
        found = self._get(chunk.name)
        if found is None:
            return None
        records = _unframed(found.data, self._place(chunk.name))
        if len(records) != chunk.length:
            raise CorruptLogError(self._place(chunk.name), 0, f"it has {len(records)} records, not {chunk.length}")
        return records

    def sweep(self, keep: SegmentName) -> None:
        listed, self._listed = self._listed or self._list(), []
        old = [name for segment, name in listed if segment < keep]
        heads = [name for name in old if name.endswith(_LAST_HEAD)]
        for names in filter(None, (heads, old)):  # the last heads first: no chunk goes that one names
            self._call(partial(self._obstore.delete, self._store, names))

    def _list(self) -> list[tuple[SegmentName, str]]:
        """Return the names of chunks, and the segments that they are of."""

        def request() -> list[str]:
            return [each["path"] for batch in self._obstore.list(self._store, _CHUNKS) for each in batch]

        names = self._call(request)
        return [(segment, name) for name in names if (segment := segment_of(name)) is not None]

    def carry(self, timeout_s: float) -> None:
        raise NotImplementedError("an object store has no transactions")

    def stop(self) -> None:
        self.patience.stop()

    def close(self) -> None:
        """Do nothing: connections end by themselves."""

    def abandon(self) -> None:
        """Do nothing: a forked child sends no requests."""

    def _swap(self, body: _Body, tag: _Tag | None) -> bool:
        """Replace the head on condition that it has `tag`, or is not there if that is None; whether it was replaced."""
        data = body.to_bytes()

        def request() -> _Tag | None:
            try:
                return self._put(_HEAD, data, "create" if tag is None else tag)
            except self._refusals:
                found = self._get_once(_HEAD)
                if found is not None and found.data == data:
                    return found.tag  # by a request whose answer was lost
                if found is not None and found.tag == tag:
                    raise _UnderWayError from None
                return None

        new = self._call(request)
        if new is not None:
            self._body, self._tag = body, new
        return new is not None

    def _put_chunk(self, after: LogEnd, records: Sequence[bytes]) -> _Chunk:
        segment, first = after.segment, after.length - len(records)
        name = f"{_CHUNKS}/{segment.epoch:08d}-{segment.seq:04d}-{first:08d}-{secrets.token_hex(8)}"
        self._call(lambda: self._put(name, _framed(records), "overwrite"))
        return _Chunk(name, len(records))

    def _check_conditions(self) -> None:
        """Raise `LogError` unless the store refuses what its conditions forbid."""

        def refuses(condition: Any) -> bool:
            try:
                self._put(_CONDITIONS, b"", condition)
            except self._refusals as error:
                if isinstance(error, FileNotFoundError):
                    raise LogError(f"cannot keep a log at {self._address}: {short(error)}. Make the bucket") from error
                return True
            return False

        def request() -> bool:
            return (refuses("create") or refuses("create")) and refuses(_NEVER)

        if not self._call(request):
            raise LogError(
                f"cannot keep a log at {self._address}: this store carries out a put whose condition does not hold "
                "(If-None-Match, If-Match), so it could not keep two drivers apart. Use a store that has conditional writes, "
                "or keep the log elsewhere"
            )

    def _put(self, name: str, data: bytes, mode: Any) -> _Tag:
        result = self._obstore.put(self._store, name, data, mode=mode, use_multipart=False)
        return _tag(result)

    def _tag_of_head(self) -> str | None:
        try:
            tag: str | None = self._obstore.head(self._store, _HEAD)["e_tag"]
            return tag
        except FileNotFoundError:
            return None

    def _get(self, name: str) -> _Found | None:
        return self._call(lambda: self._get_once(name))

    def _get_once(self, name: str) -> _Found | None:
        try:
            found = self._obstore.get(self._store, name)
            return _Found(bytes(found.bytes()), _tag(found.meta))
        except FileNotFoundError:
            return None

    def _call(self, request: Callable[[], T]) -> T:
        def known() -> T:
            try:
                return request()
            except (self._errors.BaseError, NotImplementedError) as error:
                if self._away(error) is not None:
                    raise
                raise LogError(
                    f"the object store refuses {self._address}: {short(error)}. Check the credentials in the environment and "
                    "that they allow to read, write, list and remove objects there"
                ) from error

        return self.patience.run(known)

    def _away(self, error: Exception) -> str | None:
        if isinstance(error, _UnderWayError):
            return "it is busy with another request for the head"
        is_of_store = isinstance(error, self._errors.BaseError) and not isinstance(error, self._refusals)
        return short(error) if is_of_store and is_unanswered(error) else None

    def _place(self, name: str) -> str:
        return f"{self._address}/{name}"


def segment_of(name: str) -> SegmentName | None:
    """Return the segment of a chunk's name, None if it is of something else."""
    found = _CHUNK.fullmatch(name.rpartition("/")[2])
    return None if found is None else SegmentName(int(found[1]), int(found[2]))


def _tag(facts: Any) -> _Tag:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}


def _framed(payloads: Iterable[bytes]) -> bytes:
    data = bytearray()
    for payload in payloads:
        data += frame(payload, len(data))
    return bytes(data)


def _unframed(data: bytes, where: str) -> list[bytes]:
    frames, torn = read_frames(data, 0, Path(where))
    if torn or not frames:
        raise CorruptLogError(where, len(data) - torn, "the record there has a wrong checksum")
    return [each.payload for each in frames]
