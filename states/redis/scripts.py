"""The Lua scripts. Each reads the sentinel and acts in one call, which Redis runs as a whole (R9).

Every script gets the hash of the sentinels as KEYS[1], and the field of the partition's sentinel and the writer's own
record as ARGV[1] and ARGV[2]. It answers 1, or the record that it found instead, or nil where there was none. A writer
without a sentinel has '' for its record and is not compared. Each call that writes values is counted, beside the sentinel: so
a server that has lost some of them can be told from one that has them all.

KEYS[2 …] are all other keys that it touches. Only so does a node of a cluster know, while their slot is being moved, whether
it still has all of them: it runs the script with all of them or not at all.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any

__all__ = ["DELETE", "DROP", "HASH_DELETE", "HASH_PUT", "HASH_PUT_TTL", "MOVE", "PUT", "PUT_TTL", "RENEW", "eval_of"]

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

_SOURCES: dict[bytes, bytes] = {}


def _script(source: str) -> bytes:
    text = source.encode()
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    _SOURCES[digest] = text
    return digest


PUT = _script(
    _FENCE
    + """\
local pairs = {}
for i = 2, #KEYS do
  pairs[2 * i - 3] = KEYS[i]
  pairs[2 * i - 2] = ARGV[i + 1]
end
redis.call('MSET', unpack(pairs))
return 1"""
)
"""KEYS[2 …]: names; ARGV[3 …]: the value of each."""

PUT_TTL = _script(_FENCE + "for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 2], 'EX', ARGV[3]) end return 1")
"""ARGV[3]: seconds; KEYS[2 …], ARGV[4 …]: as for PUT."""

HASH_PUT = _script(_FENCE + "redis.call('HSET', KEYS[2], unpack(ARGV, 3)) return 1")
"""KEYS[2]: the hash; ARGV[3 …]: field, value, field, value …"""

HASH_PUT_TTL = _script(
    _FENCE + "redis.call('HSET', KEYS[2], unpack(ARGV, 4)) redis.call('EXPIRE', KEYS[2], ARGV[3]) return 1"
)
"""ARGV[3]: seconds; KEYS[2], ARGV[4 …]: as for HASH_PUT."""

DELETE = _script(_FENCE + "redis.call('UNLINK', unpack(KEYS, 2)) return 1")
"""KEYS[2 …]: names."""

HASH_DELETE = _script(_FENCE + "redis.call('HDEL', KEYS[2], unpack(ARGV, 3)) return 1")
"""KEYS[2]: the hash; ARGV[3 …]: fields."""

MOVE = _script(
    """\
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found == ARGV[2] then return 1 end
if (found or '') ~= ARGV[4] then return found end
"""
    + _LOST
    + """\
local buckets = redis.call('HGET', KEYS[1], 'buckets')
if buckets and ARGV[5] ~= '' and buckets ~= ARGV[5] then return {buckets} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[1], calls)
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'buckets', ARGV[5]) end
return 1"""
)
"""Lays the record in place of the one in ARGV[4] ('': of none), and begins to count the calls of its writer. The record may be
there already: then the answer to an earlier MOVE was lost. ARGV[3]: as for RENEW, or '' where another writer's record, or an
earlier commit's, is replaced. ARGV[5]: the number of buckets that is recorded with it, '' for none; the answer is a list of
the recorded number where another one was found."""

RENEW = _script(
    """\
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then return found end
local own, there = cjson.decode(ARGV[2]), cjson.decode(found)
for i = 1, 3 do if there[i] ~= own[i] then return found end end
if there[4] > own[4] or there[5] ~= own[5] then return found end
"""
    + _LOST
    + """\
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], calls, ARGV[3])
return 1"""
)
"""Replaces the writer's own record of an earlier renewal by ARGV[2]. ARGV[3]: how many of its calls are acknowledged. If the
server knows of fewer, it has lost some, and the answer is 0."""

DROP = _script(_FENCE + "redis.call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':calls') return 1")
"""Removes the writer's own sentinel."""


def eval_of(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the EVAL that does what an EVALSHA does, for a server that has not seen the script."""
    _evalsha, digest, *rest = command
    return (b"EVAL", _SOURCES[digest], *rest)
