r"""The names of the keys of a Redis state, on one server and in a cluster. Nothing here talks to a server.

One string for each key, P being the prefix::

    P:<key>              the value; <key> is the key's encoding, whose first byte is a control character
    P:sentinels          hash: partition number -> JSON [incarnation, txid, attempt, renewal, sealed, place], and run if it
                         is of a task of Spark's; and, while a commit is under way, "<partition>:calls" -> the number of
                         its writes

One hash for each key that its owner can read (`layout="fields"`, `plain_hashes.py`)::

    P:<text of the key>  hash: <field of the value> -> text, _txid, _attempt, _before
    P:\sentinels        hash, as P:sentinels; no text of a key has a backslash before a letter but N

What batches have changed, with `changes=` (`change_stream.py`)::

    P:changes, P:\changes with layout="fields"    stream: an entry for each call that writes

In a cluster there are these keys for each bucket (`ClusterLayout`); one server has one bucket. No name
has control characters, so no state's keys start like another's.

The names of a state's keys in a cluster: each bucket of keys has a hash tag, and so a slot, of its own.

For each bucket b the names are the same as in `RedisLayout` with the hash tag `{P:b}` in place of P. The sentinels are
copied to each bucket, because a write is fenced in the slot where it happens; the hash of sentinels also has the field
"buckets", the number of buckets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

from states.redis.plain_hashes import PlainHashes
from states.redis.wire import Words
from trident.errors import ConfigError
from trident.state.encoding.codec import decode_keys, encode_keys
from trident.state.interfaces import Key
from trident.state.table import OpaqueColumns
from trident.storekit import FieldsCodec

SENTINEL = FieldsCodec(("incarnation", "txid", "attempt", "renewal", "sealed", "place", "run"))
"""The record of a sentinel, with the number of its renewal as a note."""

_PLAIN_SENTINELS, _PLAIN_CHANGES = b":\\sentinels", b":\\changes"
_ODD = re.compile(r"[\x00-\x1f%]")
_GLOB = re.compile(rb"([\\*?\[\]^-])")


@dataclass(frozen=True)
class KeyGroup:
    """The keys of one call: keys of one bucket, at most as many as a call may have.

    `where`: their positions in the caller's list.
    `names`: what they are called in Redis.
    """

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
        return values.at(self.where) if type(values) is OpaqueColumns else [values[place] for place in self.where]

    def put(self, values: Sequence[Any], out: list[Any] | OpaqueColumns) -> None:
        """Put the values of these keys at their positions of `out`."""
        if isinstance(out, OpaqueColumns):
            out.put(self.where, values.columns)  # type: ignore[attr-defined]
        elif isinstance(self.where, slice):
            out[self.where] = values
        else:
            for place, value in zip(self.where, values, strict=True):
                out[place] = value


class RedisLayout:
    """The names of one state's keys.

    `stems`: the beginning of the names of each bucket.
    `plain`: the names of keys in `layout="fields"`.
    """

    recorded_buckets = b""
    """What is recorded with each sentinel, so that no other number of buckets is used; one server records nothing."""

    def __init__(self, stems: Sequence[bytes], plain: PlainHashes | None = None) -> None:
        self.stems, self.buckets, self.plain = list(stems), len(stems), plain
        self._starts = [stem + b":" for stem in stems]
        ends = (b":sentinels", _PLAIN_SENTINELS)
        end, other = ends if plain is None else reversed(ends)
        self.sentinel_keys = [stem + end for stem in stems]
        self.other_sentinels = [stem + other for stem in stems]
        self.change_keys = [stem + (b":changes" if plain is None else _PLAIN_CHANGES) for stem in stems]
        self._glob = b"[\x01-\x1f]*" if plain is None else b"*"
        self._named: Callable[..., list[bytes]] = encode_keys if plain is None else plain.names

    def check_buckets(self, recorded: bytes | None, place: str) -> None:
        """Refuse a number of buckets that differs from the one recorded with the sentinels of `place`."""

    def groups(self, keys: Sequence[Key], size: int) -> Iterator[KeyGroup]:
        """Group keys for calls of at most `size`, and encode them as the calls are made."""
        for first in range(0, len(keys), size):
            names = self._named(keys[first : first + size], self._starts[0])
            yield KeyGroup(0, slice(first, first + len(names)), names)

    def scan_pattern(self) -> bytes:
        """Return the glob that the names of all keys match."""
        return escaped(self.stems[0]) + b":" + self._glob

    def place_of(self, name: bytes) -> tuple[int, bytes] | None:
        """Return the bucket and the encoded key of a name that a scan found; None if it is something else."""
        start = self._starts[0]
        return (0, name[len(start) :]) if name.startswith(start) and self._is_key(name[len(start) :]) else None

    def keys(self, encoded: Sequence[bytes]) -> list[Key]:
        """Return the keys of encoded ones."""
        return decode_keys(encoded) if self.plain is None else self.plain.keys(encoded)

    def _is_key(self, encoded: bytes) -> bool:
        own = (_PLAIN_SENTINELS, _PLAIN_CHANGES)
        return b"" < encoded[:1] < b" " if self.plain is None else b":" + encoded not in own


def default_prefix(topology: str, state: str) -> str:
    """Return `topology/state`; a slash in the topology's name, and control characters, are percent-encoded."""
    return f"{_ODD.sub(_percent, topology).replace('/', '%2F')}/{_ODD.sub(_percent, state)}"


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def escaped(name: bytes) -> bytes:
    """Return the glob that matches this name alone."""
    return _GLOB.sub(rb"\\\1", name)


class ClusterLayout(RedisLayout):
    """The names of one state's keys in a cluster.

    `prefix`: P.
    `buckets`: their number.
    """

    def __init__(self, prefix: str, buckets: int, plain: PlainHashes | None = None) -> None:
        tag = prefix.replace("%", "%25").replace("}", "%7D")  # a closing brace would end the tag too early
        super().__init__([f"{{{tag}:{bucket}}}".encode() for bucket in range(buckets)], plain)
        self.recorded_buckets = b"%d" % buckets
        self._before_bucket = self.stems[0][: -len(b"0}")]

    def check_buckets(self, recorded: bytes | None, place: str) -> None:
        """Refuse a number of buckets that differs from the one recorded with the sentinels of `place`."""
        if recorded is not None and recorded != self.recorded_buckets:
            raise ConfigError(
                f"{place} is spread over {recorded.decode(errors='replace')} buckets, and cluster_buckets is "
                f"{self.buckets}; its keys would not be found. Give the recorded number"
            )

    def groups(self, keys: Sequence[Key], size: int) -> Iterator[KeyGroup]:
        """Group keys for calls of at most `size`, taking enough keys at a time to fill a call for each bucket."""
        stride = size * self.buckets
        for first in range(0, len(keys), stride):
            encoded = self._named(keys[first : first + stride])
            places: dict[int, list[int]] = {}
            for place, key in enumerate(encoded):
                places.setdefault(crc32(key) % self.buckets, []).append(place)
            for bucket, found in places.items():
                start = self._starts[bucket]
                for at in range(0, len(found), size):
                    some = found[at : at + size]
                    yield KeyGroup(
                        bucket, [first + place for place in some], [start + encoded[place] for place in some]
                    )

    def scan_pattern(self) -> bytes:
        """Return a glob that the names of all keys match, and few others."""
        return escaped(self._before_bucket) + b"*}:" + self._glob

    def place_of(self, name: bytes) -> tuple[int, bytes] | None:
        """Return the bucket and the encoded key of a name that a scan found; None if it is something else."""
        number = name[len(self._before_bucket) :].partition(b"}")[0]
        bucket = int(number) if number.isdigit() else self.buckets
        if bucket >= self.buckets or not name.startswith(self._starts[bucket]):
            return None
        key = name[len(self._starts[bucket]) :]
        return (bucket, key) if self._is_key(key) else None
