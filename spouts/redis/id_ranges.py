"""Batches as ranges of ids: the driver cuts them, the workers read them, and a replay reads the same entries.

An entry is added behind all others, and never changes. So the entries between two ids are the same ones for ever, unless they
are trimmed or deleted, and that shows in their number.

A definition is plain data. `ranges`: by stream `[after, up to, entries, cuts]`: the entries behind `after`, up to and including
`up to`; `cuts` are ids in between, at which the range may be cut into parts. `at`: by stream `[id, entries, digest]`: up to
where it was read, how many of all entries ever added that is (None: not known), and the digest of the entry of that id (empty:
there was none). `bytes`: about the size of the batch.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spouts.redis.stream_server import (
    NOTHING,
    Entry,
    EntryTables,
    RedisServerOptions,
    ServerAway,
    StreamCalls,
    StreamServer,
    order_of,
)
from trident.errors import ReplayMismatchError, SpoutError
from trident.spout.interfaces import Definition, Lag, ThrottledCoordinator, TransactionAttempt

_log = logging.getLogger(__name__)
_CUT_EVERY = 1_000
_READ_AT_ONCE = 1_000

# What a stream has, and up to which ids a batch may reach: as of one moment, without sending any entry to the driver.
_LOOK = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local function digest(entry)
  if not entry then return '' end
  local pieces = {}
  for at, value in ipairs(entry[2]) do pieces[at] = #value .. ':' .. value end
  return redis.sha1hex(table.concat(pieces))
end
local info, of = redis.call('XINFO', 'STREAM', KEYS[1]), {}
for at = 1, #info, 2 do of[info[at]] = info[at + 1] end
local after = ARGV[1]
if after == '$' then after = of['last-generated-id'] end
local found = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', ARGV[2])
local size, cuts, every = 0, {}, tonumber(ARGV[3])
for at, entry in ipairs(found) do
  size = size + #entry[1]
  for _, value in ipairs(entry[2]) do size = size + #value end
  if at % every == 0 or at == #found then cuts[#cuts + 1] = entry[1] end
end
local first = of['first-entry']
if not of['entries-added'] then return redis.error_reply('unknown command') end
local of_after, of_last = digest(redis.call('XRANGE', KEYS[1], after, after)[1]), digest(found[#found])
return {of['length'], first and first[1] or '', of['last-generated-id'], of['entries-added'], of['max-deleted-entry-id'],
        after, of_after, #found, size, cuts, of_last}
"""


class IdRange(NamedTuple):
    """A part of a batch: `entries` entries behind `after`, up to and including `up_to`."""

    stream: str
    after: str
    up_to: str
    entries: int


class _Look(NamedTuple):
    """What a stream has now, as `_LOOK` returns it; behind a position `entries` of them are next, up to the last of `cuts`."""

    length: int
    first: str  # id; empty: the stream is
    last: str  # id that was ever given
    added: int  # entries, ever
    deleted: str  # the greatest id of an entry that was deleted by its id
    after: str
    of_after: str  # digest of the entry at the position
    entries: int
    size: int
    cuts: list[str]
    of_last: str  # digest of the last of those that are next

    def is_of(self, at: str, read: int | None, digest: str) -> bool:
        """Whether this is the stream of which `read` entries up to `at` were read, the last one with this digest."""
        if order_of(self.last) < order_of(at) or self.missing(at, read) < 0:
            return False
        if read is not None and self.added - self.entries < read:
            return False
        if not digest or self.of_after:
            return digest in ("", self.of_after)
        # It may be gone because it was trimmed or deleted, and not because the server lost it.
        return not self.first or order_of(self.first) > order_of(at) or order_of(self.deleted) >= order_of(at)

    def missing(self, after: str, read: int | None) -> int:
        """Say how many entries behind `after` are gone without having been read; negative: it is another stream.

        `read`: how many of all entries that were ever added come up to `after`; None: not known.
        """
        # Streams are trimmed from their beginning. So as long as the first entry is not behind `after`, nothing is missing;
        # otherwise all that are there are unread, and the number of entries ever added says how many there should be.
        if read is None or (self.first and order_of(self.first) <= order_of(after)):
            return 0
        return self.added - read - self.length


class RangeCoordinator(ThrottledCoordinator):
    """The driver's side of `TransactionalRedisStreamSpout`, which says what `first`, `max_entries` and `lost_entries` mean."""

    def __init__(
        self, server: StreamServer, streams: Sequence[str], first: str, max_entries: int, lost_entries: str
    ) -> None:
        self._server, self._streams, self._first = server, streams, first
        self._max_entries, self._lost_entries = max_entries, lost_entries
        self._added: dict[str, int] = {}

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if there is nothing new, or the server does not answer."""
        at = dict(previous["at"]) if previous else {}
        each = self._most(self._max_entries / len(self._streams))
        ranges: dict[str, list[Any]] = {}
        size = 0
        for stream in self._streams:
            try:
                found = self._look(stream, at.get(stream, [self._first])[0], each)
            except ServerAway:
                return None  # said by the server's object
            if found is None:
                if at.get(stream, [NOTHING])[0] != NOTHING:
                    raise SpoutError(
                        f"the stream {stream!r} is gone from Redis {self._server.place}; it was read up to entry "
                        f"{at[stream][0]}. Restore it, or start with another log_dir to read what comes as a new stream"
                    )
                if self._first == "$":
                    at.setdefault(stream, [NOTHING, 0, ""])
                continue
            if stream not in at:
                self._refuse_renamed(stream, at)
            read = self._read_before(stream, found, at.get(stream))
            if found.entries:
                ranges[stream] = [found.after, found.cuts[-1], found.entries, found.cuts[:-1]]
            at[stream] = _position(found, read)
            size += found.size
            self._added[stream] = found.added
        if not ranges and (self._first != "$" or (previous is not None and at.keys() == previous["at"].keys())):
            return None
        # A batch may be empty: it says where "$" was of a stream, or what is added until the next start would be left out.
        return {"ranges": ranges, "at": at, "bytes": size}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[IdRange]:
        ranges = definition["ranges"].items()
        joined = -(-sum(len(cuts) + 1 for _, (_, _, _, cuts) in ranges) // max(1, parallelism))  # pieces in a part
        parts = []
        for stream, (after, up_to, entries, cuts) in ranges:
            ends = [*cuts, up_to]
            for some in (ends[at : at + joined] for at in range(0, len(ends), joined)):
                count = min(_CUT_EVERY * len(some), entries)
                parts.append(IdRange(stream, after, some[-1], count))
                after, entries = some[-1], entries - count
        return parts

    def size(self, definition: Definition) -> int:
        return int(definition["bytes"])

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many entries were behind a batch when a batch was last defined; None if their number is not known."""
        behind = 0
        for stream, (_, read, _) in definition["at"].items():
            if read is None:
                return None
            behind += max(0, self._added.get(stream, read) - read)
        return Lag(behind, "records")

    def may_have_more(self) -> bool:
        return self._server.is_away

    def close(self) -> None:
        self._server.close()

    def _look(self, stream: str, after: str, count: int) -> _Look | None:
        arguments: Any = (1, stream, NOTHING if after == "0" else after, count, _CUT_EVERY)
        answer = self._server.call(f"looking at the stream {stream!r}", lambda client: client.eval(_LOOK, *arguments))
        return _Look(*map(_as_text, answer)) if answer else None

    def _refuse_renamed(self, stream: str, at: Mapping[str, list[Any]]) -> None:
        """Raise `SpoutError` if a stream is one that was read under another key: its entries would be counted again."""
        for other, (last, _, digest) in at.items():
            found = self._look(stream, last, 1) if digest and other not in self._streams else None
            if found is not None and found.of_after == digest:
                raise SpoutError(
                    f"the stream {stream!r} on Redis {self._server.place} is the one that was read as {other!r} up to entry "
                    f"{last}, and would be counted again. Give it that key again (RENAME), and name it so. If it is another "
                    "one that only has the same entry, give the stream of the topology another name"
                )

    def _read_before(self, stream: str, look: _Look, at: list[Any] | None) -> int | None:
        """Check that what the batches before read is still the beginning of the stream; return how many entries that were."""
        if at is None:
            if look.after == look.last:
                return look.added
            return look.added - look.length if look.after == NOTHING else None
        if not look.is_of(*at):
            raise SpoutError(
                f"the stream {stream!r} on Redis {self._server.place} was read up to entry {at[0]}, and is another "
                f"stream now (its last entry is {look.last}): it was deleted and made again, or the server lost its "
                "last writes. Restore it, or start with another log_dir to read it as a new stream"
            )
        missing = look.missing(*at[:2])
        if missing:
            what = (
                f"{missing} entries of the stream {stream!r} on Redis {self._server.place}, behind {at[0]}, were trimmed or "
                "deleted before a batch had them"
            )
            if self._lost_entries == "refuse":
                raise SpoutError(
                    f"{what}. Let fewer entries be trimmed (MAXLEN, MINID); "
                    'start with lost_entries="skip" to go on without them'
                )
            _log.warning("%s; they are skipped", what)
            return look.added - look.length
        read: int | None = at[1]
        return read


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def _position(look: _Look, read: int | None) -> list[Any]:
    """Return up to where a stream is read with this batch, and how many entries that are."""
    up_to, digest = (look.cuts[-1], look.of_last) if look.cuts else (look.after, look.of_after)
    if up_to == look.last:
        return [up_to, look.added, digest]  # all that was ever added: what was deleted one by one is no loss
    return [up_to, None if read is None else read + look.entries, digest]


class RangeEmitter:
    """Reads ranges in a worker, over a connection of its own for each part."""

    def __init__(self, options: RedisServerOptions, tables: EntryTables) -> None:
        self._options, self._tables = options, tables

    def emit(self, part: IdRange) -> Iterator[pa.Table]:
        """Give the entries of a part; `ReplayMismatchError` if they are no longer all there."""
        server, found, after = StreamCalls(self._options, self._options.retries), 0, part.after

        def read(client: Any) -> Any:
            return client.xrange(part.stream, f"({after}", part.up_to, _READ_AT_ONCE)

        try:
            while answer := server.call(f"reading the stream {part.stream!r}", read):
                entries = [Entry(part.stream, id_.decode(), fields) for id_, fields in answer]
                yield self._tables.table(entries)
                found, after = found + len(entries), entries[-1].id
                if len(entries) < _READ_AT_ONCE:
                    break
        finally:
            server.close()
        if found != part.entries or after != part.up_to:
            raise ReplayMismatchError(
                f"the batch has {part.entries} entries of the stream {part.stream!r}, behind {part.after} up to {part.up_to}; "
                f"Redis {self._options.place} has {found} of them now, up to {after}. They were trimmed or deleted, or the "
                "server lost them. Restore them and start again, or start with another log_dir"
            )
