"""The state in Redis, and the backing map of one partition: reads, fenced writes, and what begins and ends a commit.

A call of at most `max_keys_per_call` keys is one Lua script: it compares the partition's sentinel with the writer's own and
writes all of its keys or none. A put of more keys is several such calls, several in flight; after an error any of them may be
written, which the value rules undo at the replay. So a sentinel is sealed only when the last of them is acknowledged: a loss
of acknowledged writes moves the sentinel back, breaks its seal or removes it, and the next commit finds it at the latest.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import is_
from typing import Any, TypeVar
from zlib import crc32

from states.redis.change_stream import ChangeStreams
from states.redis.cluster import Cluster
from states.redis.evictions import Evictions, inspect_server
from states.redis.fence import RedisFence, fenced_script
from states.redis.layout import PlainHashes, RedisLayout, hashes_of
from states.redis.options import RedisOptions
from states.redis.wire import Call, Command, Each, Link, Server, Wire, Words
from trident.errors import ConfigError, StateLossDetected
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.serializers import Decode, DecodeOpaque, Serializer, StoredValues, keeps_attempts
from trident.state.interfaces import Key, StateConf, StoreFacts
from trident.state.table import KeyColumns, OpaqueTable
from trident.state.txid import Sentinel, Txid
from trident.storekit import StoreMapFactory, StoreState, by_count, by_size, called_as, kinds, refuse_read_only

Found = TypeVar("Found", list[Any], OpaqueTable)

_OF_SENTINELS = re.compile(rb"\d+(:calls)?|buckets")  # a field of a hash of sentinels
_REMEMBERED = 50_000  # keys of one read whose names are cached for the write that follows

# KEYS[2 …]: the names. ARGV[3 …]: the value of each; in the scripts with TTL, ARGV[3] is the seconds, and the values follow.
PUT = fenced_script(
    """\
local pairs, names, values = {}, KEYS, ARGV
for i = 2, #names do pairs[2 * i - 3], pairs[2 * i - 2] = names[i], values[i + 1] end
redis.call('MSET', unpack(pairs))"""
)
_PUT_TTL = fenced_script("for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 2], 'EX', ARGV[3]) end")
_DELETE = fenced_script("redis.call('UNLINK', unpack(KEYS, 2))")

# KEYS[2 …]: the hashes. ARGV[3]: the seconds, or ''. ARGV[4], ARGV[5]: how many fields all of them have in common, and how many
# others there are. Then the fields in common, each with its value; the names of the others; and for each hash their values, of
# which a null is a byte that no text has.
_PLAIN_PUT = fenced_script(
    """\
local names, given, ttl, common, count = KEYS, ARGV, ARGV[3], 2 * tonumber(ARGV[4]), tonumber(ARGV[5])
local fields, call = 5 + common, redis.call
local row, at = {unpack(given, 6, fields)}, fields + count
for field = 1, count do row[common + 2 * field - 1] = given[fields + field] end
for i = 2, #names do
  local gone
  for field = 1, count do
    local value = given[at + field]
    if value == '\\255' then
      gone = gone or {}
      gone[#gone + 1] = given[fields + field]
    end
    row[common + 2 * field] = value
  end
  at = at + count
  call('HSET', names[i], unpack(row))
  if gone then call('HDEL', names[i], unpack(gone)) end
  if ttl ~= '' then call('EXPIRE', names[i], ttl) end
end"""
)


@dataclass(frozen=True)
class KeyGroup:
    """The keys of one call, all of one bucket: their positions in the caller's list, and their names in Redis."""

    bucket: int
    where: slice | list[int]
    names: list[bytes]

    @cached_property
    def words(self) -> Words:
        """The names, packed: a commit reads and writes them."""
        return Words(self.names)

    def of(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of these keys, from a list of the values of all keys."""
        if isinstance(self.where, slice):
            return values[self.where]
        return values.at(self.where) if type(values) is OpaqueTable else [values[place] for place in self.where]

    def put(self, values: Any, out: list[Any] | OpaqueTable) -> None:
        """Put the values of these keys at their positions of `out`."""
        if isinstance(out, OpaqueTable):
            out.put(self.where, values.columns)
        elif isinstance(self.where, slice):
            out[self.where] = values
        else:
            for place, value in zip(self.where, values, strict=True):
                out[place] = value


class RedisBackingMap(BackingMap):
    """One partition's view of a map in Redis, with the partition's sentinel. Used by one thread at a time.

    Nothing is connected before the first call. Each call's values are encoded and decoded while Redis works on other calls.
    Partitions share the keys; each has a sentinel of its own. Without a `serializer`, and `plain` forms in its place
    (`layout="fields"`), values are bytes.
    """

    facts = MapFacts(gives_copies=True, shares_keys=True)  # each read decodes values for this very call

    def __init__(
        self,
        options: RedisOptions,
        conf: StateConf | None = None,
        partition: int = 0,
        serializer: Serializer | None = None,
        plain: PlainHashes | None = None,
    ) -> None:
        conf = StateConf() if conf is None else conf
        prefix = options.prefix or conf.prefix
        self._options, self._read_only = options, conf.read_only
        self._what = f"state {prefix!r} partition {partition}"
        self._evictions = Evictions(options, repr(prefix))
        greet = (lambda _link: None) if conf.read_only else partial(inspect_server, self._evictions)
        self._layout = layout = RedisLayout(prefix, options.buckets, plain)
        is_one = options.buckets is None
        servers = Server(Link.to(options.arguments(), greet)) if is_one else Cluster(options, layout.stems, greet)
        self._is_checked = False
        self._wire = Wire(servers, options)
        self._fence = RedisFence(self._wire, self._layout, partition, self._what)
        self.facts = replace(self.facts, has_typed_columns=plain is not None)
        self._values: Any = plain
        if serializer is not None and plain is None:
            self._values = stored = StoredValues(serializer, conf.value_type)
            self.keeps_attempts = partial(keeps_attempts, serializer)
            self.facts = replace(self.facts, keeps_columns=stored.structs is not None)
        self._named: tuple[list[Key], list[KeyGroup]] = ([], [])
        kept = options.kept_changes
        streams = None if kept is None else ChangeStreams(self._wire, self._layout, self._fence, kept, self._what)
        self.kept_changes = self._changes = streams

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        return self._read(keys, _as_stored if self._values is None else self._values.decode, lambda n: [None] * n)

    def multi_get_opaque(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Read as `multi_get` does, as columns, if the values are opaque and in the codec."""
        if isinstance(keys, KeyColumns):
            read = partial(self._read, decode=_as_stored, absent=lambda n: [None] * n)
            found: OpaqueTable | None = self._values.structs_of(keys, read)
            return found
        decode = None if self._values is None else self._values.decode_opaque
        return None if decode is None else self._read(keys, decode, OpaqueTable.absent)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        self._write(f"write {len(keys)} keys", self._puts(keys, values))

    def multi_delete(self, keys: Sequence[Key]) -> None:
        groups, command = _key_groups(self._layout, keys, self._options.max_keys_per_call), self._fence.command
        commands = ((group.bucket, partial(command, _DELETE, group.bucket, group.words)) for group in groups)
        self._write(f"delete {len(keys)} keys", commands)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of all partitions, about 1,000 at a time; their names are remembered to find duplicates."""
        seen: set[bytes] = set()
        for names in self._names():
            places = map(self._layout.place_of, names)
            encoded = list(dict.fromkeys(place[1] for place in places if place is not None and place[1] not in seen))
            if encoded:
                seen.update(encoded)
                yield self._layout.keys(encoded)

    def end(self, txid: Txid) -> None:
        """End the commit; every put is acknowledged.

        Raises
        ------
        StateLossDetected
            Keys were evicted. The sentinel is removed, so that a replay does not continue as if nothing were lost.
        """
        self._named = ([], [])
        try:
            self._evictions.check(self._wire, self._layout.buckets)
        except StateLossDetected:
            self._fence.drop()
            raise
        if self._changes is not None:
            self._changes.end(txid)

    def read_sentinel(self) -> Sentinel | None:
        """Return the partition's sentinel; in a cluster the copy that is farthest behind."""
        if not self._is_checked:
            self._refuse_other_layout()
        sentinel = self._fence.read()
        if self._evictions.risks:
            self._evictions.say_risks(is_new=sentinel is None)
        return sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        refuse_read_only(self._read_only, "move the sentinel", self._what)
        self._fence.move(sentinel, force)

    def reset(self) -> None:
        """Remove all keys of the state, of every partition, and all sentinels: first these, so that no writer can write."""
        refuse_read_only(self._read_only, "empty the state", self._what)
        self._fence.forget()
        run, doing, layout = self._wire.run, f"empty {self._what}", self._layout
        for keys in (layout.sentinel_keys, layout.change_keys):
            run(doing, [_removal(bucket, [key]) for bucket, key in enumerate(keys)])
        for names in self._names():
            buckets: dict[int, list[bytes]] = {}
            for name in names:
                place = layout.place_of(name)
                if place is not None:
                    buckets.setdefault(place[0], []).append(name)
            run(doing, [_removal(bucket, found) for bucket, found in buckets.items()])

    def close(self) -> None:
        self._wire.servers.forget()

    def _refuse_other_layout(self) -> None:
        layout, doing = self._layout, f"look for {self._what}"
        there = self._wire.ask(doing, [(b"EXISTS", name) for name in layout.other_sentinels])
        if any(there):
            # A key in `layout="fields"` may be called as the sentinels in strings are, and may have lost its own.
            own = self._wire.ask(doing, [(b"EXISTS", name) for name in layout.sentinel_keys])
            held = self._wire.ask(doing, [(b"HKEYS", name) for name in layout.other_sentinels])
            for fields, is_own, other in zip(held, own, layout.other_sentinels, strict=True):
                if fields and not is_own and all(map(_OF_SENTINELS.fullmatch, fields)):
                    given, written = ("fields", "strings") if layout.plain else ("strings", "fields")
                    raise ConfigError(
                        f"{self._what} was written with layout={written!r} (there is {other.decode()!r}); "
                        f"layout={given!r} would find none of its keys. Give layout={written!r}, or another prefix"
                    )
        self._is_checked = True

    def _names(self) -> Iterator[list[bytes]]:
        return self._wire.names(f"list the keys of {self._what}", self._layout.scan)

    def _groups(self, keys: Sequence[Key]) -> Iterator[KeyGroup]:
        """Group keys for calls. A commit writes the keys that it has read, so their names are made only once."""
        known, groups = self._named
        # The same objects: equal ones, such as 1 and True, have other names.
        if keys and len(known) == len(keys) and all(map(is_, known, keys)):
            yield from groups
            return
        made: list[KeyGroup] = []
        remember = len(keys) <= _REMEMBERED and not self._read_only
        for group in _key_groups(self._layout, keys, self._options.max_keys_per_call):
            if remember:
                made.append(group)
            yield group
        self._named = (list(keys), made) if remember else ([], [])

    def _read(self, keys: Sequence[Key], decode: Decode | DecodeOpaque, absent: Callable[[int], Found]) -> Found:
        """Read what `decode` makes of stored values; `absent` makes the answer for so many keys that were never written."""
        if not self._fence.is_layout_checked:
            self._fence.check_layout()
        found, plain = list[tuple[KeyGroup, Any]](), self._layout.plain

        def take(group: KeyGroup, answer: list[Any]) -> None:
            found.append((group, decode(group.of(keys), answer)))

        def call(group: KeyGroup) -> Call:
            if plain is None:
                return Call(group.bucket, (b"MGET", group.words), partial(take, group), reads=True)
            # Not in Lua, which takes twice as long. A slot on its way is waited for, because ASKING is for one command only.
            each = Each(b"HMGET", group.names, Words(plain.stored_fields))
            return Call(group.bucket, each, partial(take, group), reads=False)

        groups: Iterable[KeyGroup] = self._groups(keys)
        if len(keys) <= self._options.max_keys_per_call:  # there is no call during which the next can be made
            groups = list(groups)
        self._wire.run(f"read {len(keys)} keys of {self._what}", map(call, groups))
        if len(found) == 1:  # of one server: it has the keys in their order
            values: Found = found[0][1]
            return values
        values = absent(len(keys))
        for group, some in found:
            group.put(some, values)
        return values

    def _write(self, doing: str, commands: Iterator[tuple[int, Callable[[], Command]]]) -> None:
        refuse_read_only(self._read_only, doing, self._what)
        acknowledge = self._fence.acknowledge
        calls = (Call(bucket, command, partial(acknowledge, doing, bucket)) for bucket, command in commands)
        self._wire.run(f"{doing} of {self._what}", calls, self._fence.renewals)

    def _puts(self, keys: Sequence[Key], values: Sequence[Any]) -> Iterator[tuple[int, Callable[[], Command]]]:
        plain = self._layout.plain
        encode = _as_stored if self._values is None else self._values.encode
        for group in self._groups(keys):
            own, mine = group.of(keys), group.of(values)
            common = {} if plain is None else plain.common(mine)
            encoded = encode(own, mine) if plain is None else plain.encode(own, mine, common)
            for part, some in self._split_by_size(group, encoded):
                yield group.bucket, self._put(part, some, common)
            if self._changes is not None:
                yield from ((group.bucket, put) for put in self._changes.puts(group.bucket, own, mine))

    def _split_by_size(self, group: KeyGroup, values: list[Any]) -> Iterator[tuple[KeyGroup, list[Any]]]:
        count, room, plain = len(values), self._options.max_bytes_per_call, self._layout.plain
        parts = values if plain is None else list(itertools.chain.from_iterable(values))
        if sum(map(len, parts)) <= room:
            yield group, values
            return
        sizes = map(len, values if plain is None else map(b"".join, values))
        for some in by_size(range(count), sizes, count, room):
            part = slice(some[0], some[-1] + 1)
            yield KeyGroup(group.bucket, part, group.names[part]), values[part]

    def _put(self, group: KeyGroup, values: Sequence[Any], common: dict[bytes, bytes]) -> Callable[[], Command]:
        """Return what makes the call that writes a group; it has the sentinel's record as it is then."""
        ttl, plain = self._options.ttl_s, self._layout.plain
        seconds = [] if ttl is None else [b"%d" % ttl]
        if plain is not None:
            names = [name for name in plain.stored_fields if name not in common]
            counts = b"".join(seconds), b"%d" % len(common), b"%d" % len(names)
            given = Words([*counts, *itertools.chain(*common.items()), *names, *itertools.chain.from_iterable(values)])
            return partial(self._fence.command, _PLAIN_PUT, group.bucket, group.words, given)
        script = PUT if ttl is None else _PUT_TTL
        return partial(self._fence.command, script, group.bucket, group.words, Words([*seconds, *values]))


def _as_stored(_keys: Sequence[Key], values: Sequence[Any]) -> list[Any]:
    return list(values)


def _key_groups(layout: RedisLayout, keys: Sequence[Key], size: int) -> Iterator[KeyGroup]:
    """Group keys for calls of at most `size`, enough at a time to fill a call for each bucket; encoded as calls are made."""
    if layout.buckets == 1:
        for first in range(0, len(keys), size):
            names = layout.named(keys[first : first + size], layout.starts[0])
            yield KeyGroup(0, slice(first, first + len(names)), names)
        return
    stride = size * layout.buckets
    for first in range(0, len(keys), stride):
        encoded = layout.named(keys[first : first + stride])
        places: dict[int, list[int]] = {}
        for place, key in enumerate(encoded):
            places.setdefault(crc32(key) % layout.buckets, []).append(place)
        for bucket, found in places.items():
            start = layout.starts[bucket]
            for some in by_count(found, size):
                names = [start + encoded[place] for place in some]
                yield KeyGroup(bucket, [first + place for place in some], names)


def _removal(bucket: int, names: list[bytes]) -> Call:
    return Call(bucket, (b"UNLINK", *names), lambda _answer: None)


@dataclass(frozen=True)
class _RedisMapFactory(StoreMapFactory):
    options: RedisOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> RedisBackingMap:
        """Open a partition that serializes by itself, while Redis works on the values before."""
        hashes = hashes_of(conf, self.kind, self.options)
        serializer = self.serializer if hashes is None else None
        return RedisBackingMap(self.options, conf, partition_index, serializer, hashes)

    @property
    def facts(self) -> StoreFacts:
        return replace(super().facts, layout=self._layout if self.options.layout == "fields" else None)

    def _layout(self, conf: StateConf) -> str:
        hashes = hashes_of(conf, self.kind, self.options)
        assert hashes is not None
        keys = ":".join(name for name, _ in hashes.shape.keys)
        return f"hashes {self.options.prefix or conf.prefix}:<{keys}> with the fields {', '.join(hashes.fields)}"


class RedisState(StoreState[str | RedisOptions]):
    """States in Redis, as `StateSpec`s for `persistent_aggregate` and the like: opaque, or by one of the methods.

    Each takes a URL or a `RedisOptions`; `options` are its fields.
    """

    options = RedisOptions
    opaque, transactional, non_transactional = kinds(RedisOptions)
    map_factory = _RedisMapFactory
    open_map = RedisBackingMap

    @called_as(opaque)
    def __new__(cls, target: str | RedisOptions, /) -> Any: ...
