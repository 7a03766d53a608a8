"""What a Redis state stores under which key. Nothing here talks to a server.

One string for each key, P being the prefix::

    P:<key>              the value; <key> is the key's encoding, whose first byte is a control character
    P:sentinels          hash: partition number -> JSON [incarnation, txid, attempt, renewal, sealed, place]; and, while
                         a commit is under way, "<partition>:calls" -> how often it has written

One hash H for the whole state::

    H                    hash: <key> -> value, and "sentinel:<partition>" -> JSON, "sentinel:<partition>:calls"
    H:sentinels          hash: where the sentinels are if H may expire

In a cluster there are these keys for each bucket b, with the hash tag `{P:b}` (`{H:b}`) in place of P (H). The sentinels
are copied to each bucket, because a write is fenced in the slot where it happens; the hash of sentinels also has the
field "buckets" there. No name has control characters, so no state's keys start like another's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from trident.errors import CorruptValueError
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key
from trident.state.txid import Sentinel

__all__ = [
    "BUCKETS_FIELD",
    "Layout",
    "Part",
    "Where",
    "default_prefix",
    "interleaved",
    "lay",
    "pick",
    "sentinel_of",
    "sentinel_record",
]

BUCKETS_FIELD = b"buckets"

Where = slice | list[int]
"""The positions of some keys in the list that was asked for."""

_ODD = re.compile(r"[\x00-\x1f%]")
_GLOB = re.compile(rb"([\\*?\[\]^-])")


@dataclass(frozen=True)
class Part:
    """The keys of one call: of one bucket, no more than a call may have."""

    bucket: int
    where: Where
    names: list[bytes]


class Layout:
    """The names of one state's keys.

    Parameters
    ----------
    prefix
        P, or H if `hashed`.
    hashed
        One hash in place of a string for each key.
    expires
        The data expire, so the sentinels need a key of their own.
    buckets, clustered
        Number of buckets, and whether names have hash tags.
    """

    def __init__(self, prefix: str, hashed: bool, expires: bool, buckets: int, clustered: bool) -> None:
        self.prefix, self.hashed, self.buckets, self.clustered = prefix, hashed, buckets, clustered
        self._apart = expires or not hashed
        self.stems = [self._stem(bucket) for bucket in range(buckets)]
        self._starts = [b"" if hashed else stem + b":" for stem in self.stems]
        self.sentinel_keys = [stem + b":sentinels" if self._apart else stem for stem in self.stems]

    def _stem(self, bucket: int) -> bytes:
        if not self.clustered:
            return self.prefix.encode()
        # A closing brace would end the tag too early.
        tag = self.prefix.replace("%", "%25").replace("}", "%7D")
        return f"{{{tag}:{bucket}}}".encode()

    def sentinel_field(self, partition: int) -> bytes:
        """Return the field of a partition's sentinel."""
        return b"%d" % partition if self._apart else b"sentinel:%d" % partition

    def parts(self, keys: Sequence[Key], size: int) -> Iterator[Part]:
        """Cut keys into calls of at most `size`, encoding them as the calls are made."""
        if self.buckets == 1:
            for first in range(0, len(keys), size):
                names = encode_keys(keys[first : first + size], self._starts[0])
                yield Part(0, slice(first, first + len(names)), names)
            return
        # Enough keys at a time to fill a call for each bucket, and no more, for the memory's sake.
        stride = size * self.buckets
        for first in range(0, len(keys), stride):
            yield from self._bucketed(first, encode_keys(keys[first : first + stride]), size)

    def _bucketed(self, first: int, encoded: list[bytes], size: int) -> Iterator[Part]:
        places: dict[int, list[int]] = {}
        for place, key in enumerate(encoded):
            places.setdefault(crc32(key) % self.buckets, []).append(place)
        for bucket, found in places.items():
            start = self._starts[bucket]
            for at in range(0, len(found), size):
                some = found[at : at + size]
                yield Part(bucket, [first + place for place in some], [start + encoded[place] for place in some])

    def scan_pattern(self) -> bytes:
        """Return the glob that the names of all keys match (and, in a cluster, few others)."""
        if not self.clustered:
            return _GLOB.sub(rb"\\\1", self.stems[0]) + b":[\x01-\x1f]*"
        stem = _GLOB.sub(rb"\\\1", self.stems[0][: -len(b"0}")])
        return stem + b"*}:[\x01-\x1f]*"

    def place_of(self, name: bytes) -> tuple[int, bytes] | None:
        """Return the bucket and the encoded key of a name that a scan found; None if it is something else."""
        bucket = self._bucket_in(name) if self.clustered and not self.hashed else 0
        if bucket is None or not name.startswith(self._starts[bucket]):
            return None
        key = name[len(self._starts[bucket]) :]
        return (bucket, key) if b"" < key[:1] < b" " else None

    def _bucket_in(self, name: bytes) -> int | None:
        number = name[len(self.stems[0]) - len(b"0}") :].partition(b"}")[0]
        return int(number) if number.isdigit() and int(number) < self.buckets else None


def default_prefix(topology: str, state: str) -> str:
    """Return `topology/state`; a slash in the topology's name, and control characters, are percent-encoded."""
    return f"{_ODD.sub(_percent, topology).replace('/', '%2F')}/{_ODD.sub(_percent, state)}"


def _percent(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def sentinel_record(sentinel: Sentinel, renewal: int) -> bytes:
    """Return the record of a sentinel; the same one always gives the same bytes."""
    fields = [*sentinel[:3], renewal, sentinel.sealed, sentinel.place]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def sentinel_of(record: bytes, where: str) -> Sentinel:
    """Return the sentinel of a record.

    Raises
    ------
    CorruptValueError
        It is no such record; `where` names the key.
    """
    try:
        incarnation, txid, attempt, _renewal, *notes = json.loads(record)
        sealed, place = notes or (True, "")  # of older versions: complete, of a state that is not named
        if (type(incarnation), type(txid), type(attempt), type(sealed), type(place)) == (str, int, int, bool, str):
            return Sentinel(incarnation, txid, attempt, place, sealed)
    except (ValueError, TypeError):
        pass
    raise CorruptValueError(
        f"read {where}: found {record[:80]!r} in place of a sentinel; another program wrote it. Restore it, or give the "
        "state another prefix"
    )


def pick(values: Sequence[Any], where: Where) -> Sequence[Any]:
    """Return the values at some positions."""
    return values[where] if isinstance(where, slice) else [values[place] for place in where]


def lay(out: list[Any], where: Where, values: Sequence[Any]) -> None:
    """Put values at some positions of `out`."""
    if isinstance(where, slice):
        out[where] = values
    else:
        for place, value in zip(where, values, strict=True):
            out[place] = value


def interleaved(names: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """Return one list: a name, its value, the next name and so on."""
    pairs = [b""] * (2 * len(names))
    pairs[::2], pairs[1::2] = names, values
    return pairs
