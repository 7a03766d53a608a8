"""The sentinel of one partition: read, moved, and compared by every write (R8, R9). The Lua is beside its callers.

A copy of the sentinel is in each bucket; one server has one bucket. Bucket 0 decides between two writers: both move it there
first. A read returns the copy that is farthest behind, so a loss of one node is found.

Two things guard a commit through broken connections. The record has a renewal number: a broken connection may still deliver
writes late, so before writes are sent again the record gets the next number, and writes with the old one are refused. And
each bucket counts the writes of the commit: a server that came back without the latest of them has counted fewer than it had
acknowledged.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from states.redis.layout import SENTINEL, RedisLayout
from states.redis.wire import Call, Command, Wire, Words, script
from trident.errors import BackendError, ConfigError, StateLossDetected
from trident.state.sentinel import check_move, displaced
from trident.state.txid import Sentinel
from trident.storekit import SentinelRecord

# Each script has the hash of the sentinels as KEYS[1], the field of the partition's sentinel as ARGV[1] and the writer's own
# record as ARGV[2]. It answers 1, or the record that it found instead, or nil where there was none. Redis runs it as a whole.
# KEYS[2 …] are all other keys that it touches. From them a node of a cluster knows, while their slot is being moved, whether it
# still has all of them: it runs the script with all of them or not at all.

_NO_WORDS = Words([])

_FENCE = """\
if ARGV[2] ~= '' then
  local found = redis.call('HGET', KEYS[1], ARGV[1])
  if found ~= ARGV[2] then return found end
  redis.call('HINCRBY', KEYS[1], ARGV[1] .. ':calls', 1)
end
"""

_LOST = """\
local calls = ARGV[1] .. ':calls'
if ARGV[3] ~= '' and tonumber(redis.call('HGET', KEYS[1], calls) or '0') < tonumber(ARGV[3]) then return 0 end
"""


def fenced_script(source: str) -> bytes:
    """Return a script that acts only while the sentinel is the writer's own ('': of none), and counts its calls."""
    return script(f"{_FENCE}{source} return 1")


_DROP = fenced_script("redis.call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':calls')")

# Writes the record in place of the one in ARGV[4] ('': of none), and begins to count the calls of its writer. The record may
# be there already: then the answer to an earlier move was lost. ARGV[3]: how many calls of the writer are acknowledged, or ''
# where another writer's record, or an earlier commit's, is replaced; if the server knows of fewer calls, it has lost some,
# and the answer is 0. ARGV[5]: the number of buckets that is recorded with it, '' for none; the answer is a list of the
# recorded number where another one was found.
_MOVE = script(
    f"""\
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found == ARGV[2] then return 1 end
if (found or '') ~= ARGV[4] then return found end
{_LOST}\
local buckets = redis.call('HGET', KEYS[1], 'buckets')
if buckets and ARGV[5] ~= '' and buckets ~= ARGV[5] then return {{buckets}} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[1], calls)
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'buckets', ARGV[5]) end
return 1"""
)

# Replaces the writer's own record of an earlier renewal by ARGV[2]. ARGV[3]: as for a move, never ''.
_RENEW = script(
    f"""\
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then return found end
local own, there = cjson.decode(ARGV[2]), cjson.decode(found)
for i = 1, 3 do if there[i] ~= own[i] then return found end end
if there[4] > own[4] or there[5] ~= own[5] or there[7] ~= own[7] then return found end
{_LOST}\
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], calls, ARGV[3])
return 1"""
)


class RedisFence:
    """The partition's sentinel as this writer knows it: `own` is what it laid last; None: it is no writer."""

    def __init__(self, wire: Wire, layout: RedisLayout, partition: int, what: str) -> None:
        self._wire, self._layout, self._what = wire, layout, what
        self._place = f"{what} on Redis {wire.servers.name}"
        self._field, self.is_layout_checked = b"%d" % partition, not layout.recorded_buckets
        self.forget()

    def forget(self) -> None:
        self.own: Sentinel | None = None
        self._renewal, self._record = 0, b""  # of `_own`
        self._acknowledged = [0] * self._layout.buckets  # the writes of the commit
        self._seen: list[bytes | None] | None = None  # the records that were read or written last

    def command(self, script: bytes, bucket: int, names: Words = _NO_WORDS, arguments: Words = _NO_WORDS) -> Command:
        """Return the call of a `fenced_script` that writes under these names."""
        sentinels = self._layout.sentinel_keys[bucket]
        return (b"EVALSHA", script, 1 + names.count, sentinels, names, self._field, self._record, arguments)

    def acknowledge(self, doing: str, bucket: int, answer: Any) -> None:
        """Check the answer of a `fenced_script`, and count the call; if this raises, the call wrote nothing."""
        self._check(doing, self.own, answer)
        self._acknowledged[bucket] += 1

    def read(self) -> Sentinel | None:
        """Return the copy that is farthest behind; None if one is missing."""
        commands = [(b"HMGET", key, self._field, b"buckets") for key in self._layout.sentinel_keys]
        answers = self._wire.ask(f"read the sentinel of {self._what}", commands)
        self._check_buckets(recorded for _, recorded in answers)
        self._seen = records = [record for record, _ in answers]
        found = [self._sentinel(record) for record in dict.fromkeys(records) if record is not None]
        if not found or None in records:
            return None
        if len(found) == 1:
            return found[0]
        first = found[0].incarnation
        # An incomplete move to a new incarnation leaves copies of the old one behind.
        return min(found, key=lambda one: (one.incarnation == first, one.version, one.sealed))

    def check_layout(self) -> None:
        """Check that the state is spread over as many buckets as the options say, if it was ever written."""
        command = (b"HGET", self._layout.sentinel_keys[0], b"buckets")
        self._check_buckets(self._wire.ask(f"read the layout of {self._what}", [command]))

    def move(self, sentinel: Sentinel, force: bool) -> None:
        """Replace what was read or written last by this sentinel, in each bucket; this is the writer from now on."""
        doing, own = "move the sentinel", self.own
        if self._seen is None:
            self.read()
        seen = self._seen or []
        there = list(map(self._sentinel, {before for before in seen if before is not None}))
        mine = own is not None and own == sentinel and own.run == sentinel.run
        for found in there:
            check_move(f"{doing} of {self._place}", sentinel, found, found, force)
        renewal = self._renewal if mine else 0
        record = SENTINEL.encode(SentinelRecord(sentinel, (renewal,)))
        calls = [self._move_of(bucket, sentinel, record, before, mine) for bucket, before in enumerate(seen)]
        if not mine:
            self._run(doing, [calls.pop(0)])
        if calls:
            self._run(doing, calls)
        self.forget()
        self.own, self._renewal, self._record = sentinel, renewal, record
        self._seen = [record for _ in seen]

    def renewals(self) -> Iterable[Call]:
        """Make the calls after which only later calls can write."""
        if self.own is None:
            return []
        self._renewal += 1
        self._record = record = SENTINEL.encode(SentinelRecord(self.own, (self._renewal,)))

        def command(bucket: int) -> Command:
            return self.command(_RENEW, bucket, arguments=Words([b"%d" % self._acknowledged[bucket]]))

        def take(bucket: int, answer: Any) -> None:
            self._check("write again", self.own, answer)
            if self._seen is not None:
                self._seen[bucket] = record

        buckets = range(self._layout.buckets)
        return [Call(bucket, partial(command, bucket), partial(take, bucket)) for bucket in buckets]

    def drop(self) -> None:
        """Remove this writer's sentinel, so that no commit can continue as if nothing had been lost."""
        if self.own is not None:
            buckets = range(self._layout.buckets)
            calls = [Call(b, partial(self.command, _DROP, b), lambda _answer: None) for b in buckets]
            self._run("remove the sentinel", calls)
        self.forget()

    def _run(self, doing: str, calls: Iterable[Call]) -> None:
        self._wire.run(f"{doing} of {self._what}", calls)

    def _move_of(self, bucket: int, sentinel: Sentinel, record: bytes, seen: bytes | None, mine: bool) -> Call:
        """Make the call that writes a record in one bucket; it seals a commit if the sentinel is `mine`."""

        def take(answer: Any) -> None:
            if isinstance(answer, list):
                self._check_buckets(answer)
            else:
                self._check("move the sentinel", sentinel, answer, seen)

        acknowledged = b"%d" % self._acknowledged[bucket] if mine else b""
        command = (
            b"EVALSHA", _MOVE, 1, self._layout.sentinel_keys[bucket], self._field, record, acknowledged, seen or b"",
            self._layout.recorded_buckets,
        )  # fmt: skip
        return Call(bucket, command, take)

    def _check_buckets(self, found: Iterable[bytes | None]) -> None:
        """Refuse a number of buckets that differs from one recorded with the sentinels."""
        known = self._layout.recorded_buckets
        for recorded in found if known else ():
            if recorded is not None and recorded != known:
                raise ConfigError(
                    f"{self._place} is spread over {recorded.decode(errors='replace')} buckets, and cluster_buckets is "
                    f"{known.decode()}; its keys would not be found. Give the recorded number"
                )
        self.is_layout_checked = True

    def _check(self, doing: str, own: Sentinel | None, answer: Any, before: bytes | None = None) -> None:
        if answer == 1:
            return
        what, seen = f"{doing} of {self._place}", own if before is None else self._sentinel(before)
        if answer == 0:
            raise BackendError(
                f"{what}: Redis has lost writes of this very commit that it had acknowledged; it was restarted or replaced "
                "without its latest data. The batch may be replayed"
            )
        if answer is None:
            why = "Redis was emptied, was restarted without its data, or evicted the key"
            raise StateLossDetected(what, f"the sentinel that was read or written there ({seen}) is gone; {why}")
        assert own is not None
        raise displaced(what, own, self._sentinel(answer), seen)

    def _sentinel(self, record: bytes) -> Sentinel:
        if self.own is not None and record == self._record:
            return self.own
        return SENTINEL.decode(record, f"{self._place} (key {self._layout.sentinel_keys[0]!r})").sentinel
