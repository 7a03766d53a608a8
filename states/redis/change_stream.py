"""The changes of a state in Redis: a stream for each bucket, beside the keys; an entry for each call that writes.

An entry is called `txid-number`, so a range of batches is a range of the stream. It has `attempt`, `at` (the time of the
commit in milliseconds since 1970) and `rows`, in the codec: the keys, the values before and the values. The log decides which
count. The field `changes:gone` beside the sentinels has the last batch whose entries were deleted.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from states.redis.fence import RedisFence, fenced_script
from states.redis.layout import RedisLayout
from states.redis.wire import Call, Command, Wire, Words, script
from trident.errors import CorruptValueError
from trident.retention import Retention, Sweeps
from trident.state.encoding.codec import decode, encode
from trident.state.interfaces import Key
from trident.state.txid import Txid
from trident.state.values import OpaqueValue

_PAGE = 100
_GONE = b"changes:gone"

# KEYS[2]: the stream. ARGV[3]: the txid; then the attempt, the time and the rows.
_ADD = fenced_script(
    """\
local number = 0
for _, last in ipairs(redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)) do
  local txid, before = string.match(last[1], '(%d+)-(%d+)')
  if txid == ARGV[3] then number = tonumber(before) + 1 end
end
redis.call('XADD', KEYS[2], ARGV[3] .. '-' .. number, 'attempt', ARGV[4], 'at', ARGV[5], 'rows', ARGV[6])"""
)
# KEYS: the hash of the sentinels, the stream. ARGV[1]: the last batch to go, or ''; ARGV[2]: the time before which entries go.
# Batches are in the order of their times, so the last one that is old is found by halves.
_LET_GO = script(
    f"""\
local function at(start)
  local entry = redis.call('XRANGE', KEYS[2], start, '+', 'COUNT', 1)[1]
  if entry then return tonumber(string.match(entry[1], '%d+')), tonumber(entry[2][4]) end
end
local first = at('-')
if not first then return 0 end
local last = tonumber(ARGV[1])
if not last then
  last = first - 1
  local young = tonumber(string.match(redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1][1], '%d+')) + 1
  while young - last > 1 do
    local middle = math.floor((last + young) / 2)
    local txid, ms = at(string.format('%d-0', middle))
    if ms < tonumber(ARGV[2]) then last = txid else young = middle end
  end
end
if first > last then return 0 end
redis.call('HSET', KEYS[1], '{_GONE.decode()}', string.format('%d', last))
return redis.call('XTRIM', KEYS[2], 'MINID', string.format('%d-0', last + 1))"""
)


class ChangeStreams:
    """The streams of one state, under the fence of the partition that writes."""

    def __init__(self, wire: Wire, layout: RedisLayout, fence: RedisFence, kept: Retention, what: str) -> None:
        self._wire, self._layout, self._fence, self._kept, self._what = wire, layout, fence, kept, what
        self._sweeps = Sweeps()

    def puts(self, bucket: int, keys: Sequence[Key], values: Sequence[Any]) -> Iterator[Callable[[], Command]]:
        """Make the call that adds what a call writes; none if that is of no commit, or of another one."""
        by = self._fence.own
        if by is None or by.sealed:
            return
        changed = zip(keys, values, strict=True)
        own = [(list(key), value.prev, value.curr) for key, value in changed if value.txid == by.txid]
        if own:
            columns = encode(list(map(list, zip(*own, strict=True))))
            given = [b"%d" % by.txid, b"%d" % by.attempt, b"%d" % (time.time() * 1000), columns]
            yield partial(self._fence.command, _ADD, bucket, Words([self._layout.change_keys[bucket]]), Words(given))

    def end(self, txid: Txid) -> None:
        """The commit has ended; now and then delete what need not be kept."""
        if not self._sweeps.due(txid):
            return
        last = b"" if self._kept.batches is None else b"%d" % (txid - self._kept.batches)
        self._let_go(last, b"%d" % (time.time() * 1000 - (self._kept.ms or 0)))

    def forget(self, keys: Sequence[Key]) -> None:
        """Delete all entries, of whatever batch: an entry has changes of many keys."""
        commands = [(b"XREVRANGE", stream, b"+", b"-", b"COUNT", 1) for stream in self._layout.change_keys]
        newest = self._wire.ask(f"look for changes of {self._what}", commands)
        txids = [int(name.partition(b"-")[0]) for entries in newest for name, _ in entries]
        if txids:
            self._let_go(b"%d" % max(txids), b"0")

    def _let_go(self, last: bytes, before: bytes) -> None:
        keys = zip(self._layout.sentinel_keys, self._layout.change_keys, strict=True)
        commands = [(b"EVALSHA", _LET_GO, 2, *both, last, before) for both in keys]
        self._wire.ask(f"delete old changes of {self._what}", commands, reads=False)

    def last_gone(self) -> int:
        commands = [(b"HGET", sentinels, _GONE) for sentinels in self._layout.sentinel_keys]
        return max(int(one or 0) for one in self._wire.ask(f"look for changes of {self._what}", commands))

    def read(self, after: int, until: int) -> Iterator[tuple[int, list[tuple[Key, Any]]]]:
        entries = heapq.merge(
            *(self._entries(at, after, until) for at in range(self._layout.buckets)), key=lambda one: one[:2]
        )
        for txid, some in groupby(entries, key=lambda one: one[0]):
            yield txid, [pair for _, attempt, rows in some for pair in self._pairs(txid, attempt, rows)]

    def _entries(self, bucket: int, after: int, until: int) -> Iterator[tuple[int, int, bytes]]:
        stream, start, end = self._layout.change_keys[bucket], b"%d-0" % (after + 1), b"%d" % until
        while True:
            answers: list[Any] = []
            command = (b"XRANGE", stream, start, end, b"COUNT", _PAGE)
            self._wire.run(f"read changes of {self._what}", [Call(bucket, command, answers.append, True)])
            for name, fields in answers[0]:
                yield int(name.partition(b"-")[0]), int(fields[1]), fields[5]
            if len(answers[0]) < _PAGE:
                return
            txid, _, number = answers[0][-1][0].partition(b"-")
            start = b"%s-%d" % (txid, int(number) + 1)

    def _pairs(self, txid: int, attempt: int, rows: bytes) -> Iterator[tuple[Key, Any]]:
        keys, befores, values = decode(rows)
        if len(keys) != len(befores) or len(keys) != len(values):
            raise CorruptValueError(
                f"an entry of batch {txid} in the changes of {self._what} has columns of several lengths"
            )
        for key, before, value in zip(keys, befores, values, strict=True):
            yield tuple(key), OpaqueValue(txid, attempt, before, value)
